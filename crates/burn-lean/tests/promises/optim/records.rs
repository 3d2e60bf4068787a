//! A whole model: with and without gradient release, and from record to record.

use burn::grad_clipping::GradientClippingConfig;
use burn::module::{Module, ParamGroup};
use burn::nn::{Embedding, EmbeddingConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::optim::momentum::MomentumConfig;
use burn::optim::{
    AdamConfig, AdamWConfig, LionConfig, ModuleOptimizer, OptimizerRecord, SgdConfig,
};
use burn::tensor::Tensor;
use burn::tensor::activation::gelu;
use burn_lean::WithGradientRelease;
use burn_lean::optim::{InOnePass, Lean};

use crate::harness::{
    assert_bits, assert_released, flex, ids, numbers, plain_run, release_run, seeded,
};

const STEPS: usize = 24;
const HALF: usize = STEPS / 2;

#[derive(Module, Debug)]
struct Net {
    embedding: Embedding,
    body: Vec<Linear>,
    norm: LayerNorm,
    head: Linear,
}

impl Net {
    fn new() -> Self {
        seeded(&flex(), |device| Self {
            embedding: EmbeddingConfig::new(12, 6).init(device),
            body: vec![
                LinearConfig::new(6, 40).init(device),
                LinearConfig::new(40, 6).init(device),
            ],
            norm: LayerNormConfig::new(6).init(device),
            head: LinearConfig::new(6, 3).init(device),
        })
    }

    fn loss(&self, step: usize) -> Tensor<1> {
        let device = flex();
        let x = self.embedding.forward(ids([3, 4], step, 12, &device));
        let inner = gelu(self.body[0].forward(x.clone()));
        let x = self.norm.forward(x + self.body[1].forward(inner));
        let x: Tensor<3> = self.head.forward(x);
        (x - numbers([3, 4, 3], step, &device)).square().mean()
    }
}

fn through_bytes(record: OptimizerRecord) -> OptimizerRecord {
    OptimizerRecord::from_bytes(record.into_bytes().unwrap()).unwrap()
}

/// Burn's optimizer and the same in one pass: without and with release, and each resumed from the
/// other's record in the middle.
fn assert_same(plain: impl Fn() -> ModuleOptimizer, lean: impl Fn() -> ModuleOptimizer) {
    let (_, expected) = plain_run(Net::new(), &mut plain(), 0..STEPS, Net::loss);
    let (_, run) = plain_run(Net::new(), &mut lean(), 0..STEPS, Net::loss);
    for (found, expected) in run.iter().zip(&expected) {
        assert_bits(found, expected, "in one pass");
    }
    let mut release = lean().with_gradient_release();
    let steps = 0..STEPS;
    let (_, reports) = release_run(
        Net::new(),
        &mut release,
        steps,
        Net::loss,
        &expected,
        "released",
    );
    assert_released(&reports, 1, "released");

    type Make<'a> = &'a dyn Fn() -> ModuleOptimizer;
    for (before, after) in [(&plain as Make<'_>, &lean as Make<'_>), (&lean, &plain)] {
        let mut first = before();
        let (model, _) = plain_run(Net::new(), &mut first, 0..HALF, Net::loss);
        let record = through_bytes(first.to_record());
        assert!(!record.is_empty());
        let mut second = after().load_record(record).with_gradient_release();
        release_run(
            model,
            &mut second,
            HALF..STEPS,
            Net::loss,
            &expected[HALF..],
            "resumed",
        );
    }
}

macro_rules! optimizers {
    ($($name:ident: $config:expr;)+) => {
        $(
            #[test]
            fn $name() {
                assert_same(|| $config.init(), || $config.in_one_pass().init());
            }
        )+
    };
}

optimizers! {
    adam: AdamConfig::new().with_amsgrad(true);
    adam_w: AdamWConfig::new().with_weight_decay(0.1).with_cautious_weight_decay(true);
    clipped_by_norm: AdamWConfig::new()
        .with_grad_clipping(Some(GradientClippingConfig::Norm(0.01)));
    clipped_by_value: LionConfig::new()
        .with_grad_clipping(Some(GradientClippingConfig::Value(0.001)));
    lion: LionConfig::new().with_weight_decay(0.1);
    sgd: SgdConfig::new().with_momentum(Some(MomentumConfig::new().with_nesterov(true)));
}

#[test]
fn a_group_in_one_pass() {
    let body = || ParamGroup::from_predicate("body");
    let adamw = AdamWConfig::new();
    assert_same(
        || {
            AdamConfig::new()
                .init()
                .with_group(body(), adamw.build(), None)
        },
        || {
            AdamConfig::new()
                .init()
                .with_group(body(), adamw.in_one_pass(), None)
        },
    );
}
