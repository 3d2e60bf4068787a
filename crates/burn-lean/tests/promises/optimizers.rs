//! Every optimizer of Burn, with its groups, rates, clipping and records.

use burn::grad_clipping::GradientClippingConfig;
use burn::lr_scheduler::cosine::CosineAnnealingLrSchedulerConfig;
use burn::lr_scheduler::exponential::ExponentialLrSchedulerConfig;
use burn::lr_scheduler::linear::LinearLrSchedulerConfig;
use burn::lr_scheduler::module_lr_scheduler::{
    ModuleLearningRate, ModuleLrScheduler, ModuleLrSchedulerConfig,
};
use burn::module::{Module, ParamGroup};
use burn::nn::{Embedding, EmbeddingConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::optim::decay::WeightDecayConfig;
use burn::optim::momentum::MomentumConfig;
use burn::optim::{
    AdaGradConfig, AdafactorConfig, AdamConfig, AdamWConfig, AdanConfig, AdjustLrFn,
    GradientsParams, LambConfig, LionConfig, ModuleOptimizer, MuonConfig, OptimizerRecord,
    RmsPropConfig, SgdConfig,
};
use burn::store::ModuleRecord;
use burn::tensor::Tensor;
use burn::tensor::activation::gelu;
use burn_lean::{FirstPass, ReleaseError, WithGradientRelease};

use crate::harness::{
    Bits, LR, adamw, assert_bits, assert_released, bits, flex, ids, momentum, numbers, plain_run,
    release_run, seeded,
};

const STEPS: usize = 20;

/// Parameters of one and of two dimensions.
#[derive(Module, Debug)]
struct Net {
    embedding: Embedding,
    body: Vec<Linear>,
    norm: LayerNorm,
    head: Linear,
}

impl Net {
    fn new() -> Self {
        let linear = |inputs, outputs| LinearConfig::new(inputs, outputs);
        seeded(&flex(), |device| Self {
            embedding: EmbeddingConfig::new(12, 6).init(device),
            body: vec![linear(6, 10).init(device), linear(10, 6).init(device)],
            norm: LayerNormConfig::new(6).init(device),
            head: linear(6, 3).init(device),
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

fn assert_equal(optim: impl Fn() -> ModuleOptimizer) {
    let (_, expected) = plain_run(Net::new(), &mut optim(), 0..STEPS, Net::loss);
    for first_pass in [FirstPass::Exact, FirstPass::Small] {
        let what = format!("{first_pass:?}");
        let mut release = optim().with_gradient_release().with_first_pass(first_pass);
        let (_, reports) = release_run(
            Net::new(),
            &mut release,
            0..STEPS,
            Net::loss,
            &expected,
            &what,
        );
        assert_released(&reports, usize::from(first_pass == FirstPass::Exact), &what);
    }
}

/// A test for each line: what makes the optimizer.
macro_rules! optimizers {
    ($($name:ident: $optim:expr;)+) => {
        $(
            #[test]
            fn $name() {
                assert_equal(|| $optim);
            }
        )+
    };
}

fn decay() -> Option<WeightDecayConfig> {
    Some(WeightDecayConfig::new(0.05))
}

fn by_norm(norm: f32) -> Option<GradientClippingConfig> {
    Some(GradientClippingConfig::Norm(norm))
}

fn by_value(value: f32) -> Option<GradientClippingConfig> {
    Some(GradientClippingConfig::Value(value))
}

fn heavy_ball(nesterov: bool) -> Option<MomentumConfig> {
    Some(MomentumConfig::new().with_nesterov(nesterov))
}

/// Muon, which takes matrices only, on weights of the body; AdamW for the rest.
fn muon(config: MuonConfig) -> ModuleOptimizer {
    let matrices = ParamGroup::from_predicates(vec!["body", "weight"]);
    adamw().with_group(matrices, config.build(), None)
}

optimizers! {
    adafactor: AdafactorConfig::new().init();
    adafactor_with_given_rate: AdafactorConfig::new()
        .with_relative_step(false).with_scale_parameter(false).with_weight_decay(0.01).init();
    adagrad: AdaGradConfig::new().init();
    adagrad_with_decay: AdaGradConfig::new().with_lr_decay(0.1).with_weight_decay(decay()).init();
    adam: AdamConfig::new().init();
    adam_amsgrad: AdamConfig::new().with_amsgrad(true).with_weight_decay(decay()).init();
    adam_w: AdamWConfig::new().init();
    adam_w_amsgrad: AdamWConfig::new().with_amsgrad(true).init();
    adam_w_cautious: AdamWConfig::new()
        .with_weight_decay(0.1).with_cautious_weight_decay(true).init();
    adan: AdanConfig::new().init();
    adan_without_prox: AdanConfig::new().with_no_prox(true).with_weight_decay(0.1).init();
    lamb: LambConfig::new().init();
    lamb_with_decay: LambConfig::new().with_weight_decay(0.1).init();
    lamb_without_trust_ratio: LambConfig::new().with_use_trust_ratio(false).init();
    lion: LionConfig::new().init();
    lion_with_decay: LionConfig::new().with_weight_decay(0.1).init();
    muon_and_adam_w: muon(MuonConfig::new());
    muon_with_decay: muon(
        MuonConfig::new().with_weight_decay(decay()).with_adjust_lr_fn(AdjustLrFn::MatchRmsAdamW)
    );
    rms_prop: RmsPropConfig::new().init();
    rms_prop_centered: RmsPropConfig::new().with_centered(true).with_weight_decay(decay()).init();
    sgd: SgdConfig::new().init();
    sgd_with_momentum: SgdConfig::new().with_momentum(heavy_ball(false)).init();
    sgd_nesterov: SgdConfig::new().with_momentum(heavy_ball(true)).init();
    sgd_with_decay: SgdConfig::new()
        .with_momentum(heavy_ball(false)).with_weight_decay(decay()).init();

    clipped_by_norm: AdamWConfig::new().with_grad_clipping(by_norm(0.01)).init();
    clipped_by_value: SgdConfig::new().with_gradient_clipping(by_value(0.001)).init();
    a_group_for_each_kind: adamw()
        .with_group(ParamGroup::from_predicate("norm"), LionConfig::new().build(), None)
        .with_group(ParamGroup::from_path("head.weight"), AdamConfig::new().build(), None)
        .with_group(
            ParamGroup::from_predicate("body.1"),
            SgdConfig::new().with_momentum(heavy_ball(true)).build(),
            by_norm(0.02).map(|clipping| clipping.init()),
        )
        .with_group(ParamGroup::from_predicate("embedding"), AdaGradConfig::new().build(), None);
}

/// That clipping, groups and rates matter in these tests: otherwise they would pass without them.
#[test]
fn what_is_configured_shows_in_the_weights() {
    let run = |mut optim: ModuleOptimizer| {
        plain_run(Net::new(), &mut optim, 0..3, Net::loss)
            .1
            .pop()
            .unwrap()
    };
    let clipped = AdamWConfig::new().with_grad_clipping(by_norm(0.01)).init();
    assert_ne!(run(clipped), run(AdamWConfig::new().init()));
    let clipped = SgdConfig::new()
        .with_gradient_clipping(by_value(0.001))
        .init();
    assert_ne!(run(clipped), run(SgdConfig::new().init()));
    assert_ne!(run(muon(MuonConfig::new())), run(adamw()));
}

/// Steps with the rates of a scheduler, which is asked once a step, before `arm`.
fn assert_equal_with_rates(schedule: impl Fn() -> Box<dyn FnMut() -> ModuleLearningRate>) {
    let mut next = schedule();
    let (mut model, mut optim) = (Net::new(), adamw());
    let mut expected = Vec::new();
    for step in 0..STEPS {
        let grads = GradientsParams::from_grads(model.loss(step).backward(), &model);
        model = optim.step(next(), model, grads);
        expected.push(bits(&model));
    }

    let constant = plain_run(Net::new(), &mut adamw(), 0..STEPS, Net::loss).1;
    assert_ne!(
        expected, constant,
        "these rates are no others than the constant one"
    );

    let mut next = schedule();
    let (mut model, mut optim) = (Net::new(), adamw().with_gradient_release());
    for (step, expected) in expected.iter().enumerate() {
        let lr = next();
        model = optim.arm(lr.clone(), model);
        let grads = GradientsParams::from_grads(model.loss(step).backward(), &model);
        model = optim.step(lr, model, grads);
        assert_bits(&bits(&model), expected, &format!("after step {step}"));
        assert_released(
            &[optim.last_step().unwrap().clone()],
            usize::from(step == 0),
            "rates",
        );
    }
}

fn scheduler() -> ModuleLrScheduler {
    ModuleLrSchedulerConfig::new(ExponentialLrSchedulerConfig::new(LR, 0.9).into())
        .with_group(
            ParamGroup::from_predicate("norm"),
            LinearLrSchedulerConfig::new(LR, LR / 10.0, STEPS),
        )
        .with_group(
            ParamGroup::from_path("head.bias"),
            CosineAnnealingLrSchedulerConfig::new(LR, 7),
        )
        .init()
        .unwrap()
}

#[test]
fn rates_of_one_scheduler() {
    assert_equal_with_rates(|| {
        let mut scheduler = ExponentialLrSchedulerConfig::new(LR, 0.9).init().unwrap();
        Box::new(move || scheduler.step())
    });
}

#[test]
fn rates_of_a_scheduler_for_each_group() {
    assert_equal_with_rates(|| {
        let mut scheduler = scheduler();
        Box::new(move || scheduler.step())
    });
}

#[test]
fn a_group_that_stands_still() {
    assert_equal_with_rates(|| {
        let constant = ExponentialLrSchedulerConfig::new(LR, 1.0);
        let none = ExponentialLrSchedulerConfig::new(1e-30, 1.0);
        let scheduler = ModuleLrSchedulerConfig::new(constant.into());
        let body = ParamGroup::from_predicate("body");
        let mut scheduler = scheduler.with_group(body, none).init().unwrap();
        Box::new(move || scheduler.step())
    });
}

/// The step is refused, and finished with the right rates.
#[test]
fn other_rates_in_step_than_in_arm_are_refused() {
    let lr = scheduler().step();
    let other = {
        let mut scheduler = scheduler();
        scheduler.step();
        scheduler.step()
    };
    let mut optim = adamw().with_gradient_release();
    let model = optim.arm(lr.clone(), Net::new());
    let grads = GradientsParams::from_grads(model.loss(0).backward(), &model);
    let refused = optim.try_step(other, model, grads).unwrap_err();
    assert!(
        matches!(refused.error(), ReleaseError::LearningRate { .. }),
        "{refused:?}"
    );
    let (model, grads) = refused.into_given();
    let model = optim.step(lr.clone(), model, grads);

    let (expected, mut plain) = (Net::new(), adamw());
    let grads = GradientsParams::from_grads(expected.loss(0).backward(), &expected);
    let expected = plain.step(lr, expected, grads);
    assert_bits(&bits(&model), &bits(&expected), "after the refusal");
}

fn through_bytes(record: OptimizerRecord) -> OptimizerRecord {
    OptimizerRecord::from_bytes(record.into_bytes().unwrap()).unwrap()
}

/// The model of a new process: a record of the old one, loaded.
fn model_through_bytes(model: Net) -> Net {
    let bytes = model.into_record().into_bytes().unwrap();
    Net::new().load_record(ModuleRecord::from_bytes(bytes).unwrap())
}

type Named = (&'static str, fn() -> ModuleOptimizer);

/// Optimizers with states of every kind.
const RECORDED: [Named; 8] = [
    ("AdamW", adamw),
    ("AMSGrad", || AdamWConfig::new().with_amsgrad(true).init()),
    ("momentum", momentum),
    ("Adafactor", || AdafactorConfig::new().init()),
    ("Adan", || AdanConfig::new().init()),
    ("RMSProp", || {
        RmsPropConfig::new().with_centered(true).init()
    }),
    ("Muon", || muon(MuonConfig::new())),
    ("SGD", || SgdConfig::new().init()),
];

const HALF: usize = STEPS / 2;

fn expected_run(optim: fn() -> ModuleOptimizer) -> Vec<Bits> {
    plain_run(Net::new(), &mut optim(), 0..STEPS, Net::loss).1
}

#[test]
fn records_of_plain_burn_are_loaded() {
    for (name, optim) in RECORDED {
        let expected = expected_run(optim);
        let mut plain = optim();
        let (model, _) = plain_run(Net::new(), &mut plain, 0..HALF, Net::loss);

        let record = through_bytes(plain.to_record());
        let mut release = optim().with_gradient_release().load_record(record);
        let model = model_through_bytes(model);
        assert_bits(&bits(&model), &expected[HALF - 1], name);
        release_run(
            model,
            &mut release,
            HALF..STEPS,
            Net::loss,
            &expected[HALF..],
            name,
        );
    }
}

#[test]
fn plain_burn_loads_records() {
    for (name, optim) in RECORDED {
        let expected = expected_run(optim);
        let mut release = optim().with_gradient_release();
        let (model, _) = release_run(
            Net::new(),
            &mut release,
            0..HALF,
            Net::loss,
            &expected[..HALF],
            name,
        );

        let mut plain = optim().load_record(through_bytes(release.to_record()));
        let model = model_through_bytes(model);
        assert_bits(&bits(&model), &expected[HALF - 1], name);
        let (_, run) = plain_run(model, &mut plain, HALF..STEPS, Net::loss);
        for (at, (found, expected)) in run.iter().zip(&expected[HALF..]).enumerate() {
            assert_bits(
                found,
                expected,
                &format!("{name}, after step {}", HALF + at),
            );
        }
    }
}

#[test]
fn records_of_gradient_release_are_loaded() {
    for (name, optim) in RECORDED {
        let expected = expected_run(optim);
        let mut release = optim().with_gradient_release();
        let (model, _) = release_run(
            Net::new(),
            &mut release,
            0..HALF,
            Net::loss,
            &expected[..HALF],
            name,
        );
        let record = through_bytes(release.to_record());
        let mut release = optim().with_gradient_release().load_record(record);
        let model = model_through_bytes(model);
        release_run(
            model,
            &mut release,
            HALF..STEPS,
            Net::loss,
            &expected[HALF..],
            name,
        );
    }
}

/// The states themselves are compared by training on: the order in a record is that of a hash map.
#[test]
fn a_record_holds_as_many_states_as_that_of_plain_burn() {
    for (name, optim) in RECORDED {
        let mut plain = optim();
        let (_, expected) = plain_run(Net::new(), &mut plain, 0..3, Net::loss);
        let mut release = optim().with_gradient_release();
        release_run(Net::new(), &mut release, 0..3, Net::loss, &expected, name);
        let (found, expected) = (release.to_record(), plain.to_record());
        assert_eq!(format!("{found:?}"), format!("{expected:?}"), "{name}");
        // Plain SGD alone has none.
        assert_eq!(found.is_empty(), name == "SGD", "{name}");
    }
}

#[test]
fn the_optimizer_is_taken_out_and_put_back_in_mid_run() {
    for (name, optim) in RECORDED {
        let expected = expected_run(optim);
        let mut plain = optim();
        let (mut model, _) = plain_run(Net::new(), &mut plain, 0..4, Net::loss);
        for start in (4..STEPS).step_by(4) {
            let is_released = start % 8 == 4;
            let (steps, wanted) = (start..start + 4, &expected[start..start + 4]);
            if is_released {
                let mut release = plain.with_gradient_release();
                model = release_run(model, &mut release, steps, Net::loss, wanted, name).0;
                plain = release.into_optimizer();
            } else {
                let (trained, run) = plain_run(model, &mut plain, steps, Net::loss);
                model = trained;
                for (found, wanted) in run.iter().zip(wanted) {
                    assert_bits(found, wanted, name);
                }
            }
        }
    }
}

/// Without arming, it is Burn's optimizer.
#[test]
fn unarmed_steps_are_plain_ones() {
    let expected = expected_run(adamw);
    let (mut model, mut optim) = (Net::new(), adamw().with_gradient_release());
    for (step, expected) in expected.iter().enumerate() {
        if step % 3 == 0 {
            model = optim.arm(LR, model);
        }
        let grads = GradientsParams::from_grads(model.loss(step).backward(), &model);
        model = optim.step(LR, model, grads);
        assert_bits(&bits(&model), expected, &format!("after step {step}"));
    }
}
