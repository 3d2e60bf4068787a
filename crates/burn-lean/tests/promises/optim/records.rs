//! A whole model: with and without gradient release, and from record to record.

use burn::optim::LionConfig;
use burn_lean::optim::{
    AccumulateInMoments, AdamWState, Bf16Weights, EightBitMoments, InOnePass, Lean, MasterWeights,
    MomentDecay, Stochastic,
};

use super::noise::Noise;
use super::run::Run;
use super::side::{Saved, device, model_with_embedding};
use crate::harness::prelude::*;
use crate::net::Net;

const STEPS: usize = 24;
const HALF: usize = STEPS / 2;

fn net() -> Net {
    Net::of_width(40)
}

type Make<'a> = &'a dyn Fn() -> ModuleOptimizer;

/// Burn's optimizer and the same in one pass: without and with release, and each resumed from the
/// other's record in the middle.
fn assert_same(name: &str, plain: Make<'_>, lean: Make<'_>) {
    let (_, expected) = plain_run(net(), &mut plain(), 0..STEPS, Net::loss);
    let (_, run) = plain_run(net(), &mut lean(), 0..STEPS, Net::loss);
    for (found, expected) in run.iter().zip(&expected) {
        assert_bits(found, expected, name);
    }
    let what = format!("{name}, released");
    let mut release = lean().with_gradient_release();
    let steps = 0..STEPS;
    let (_, reports) = release_run(net(), &mut release, steps, Net::loss, &expected, &what);
    assert_released(&reports, &what);

    for (before, after) in [(plain, lean), (lean, plain)] {
        let what = format!("{name}, resumed");
        let mut first = before();
        let (model, _) = plain_run(net(), &mut first, 0..HALF, Net::loss);
        let record = first.to_record();
        assert!(!record.is_empty(), "{what}");
        let record = OptimizerRecord::from_bytes(record.into_bytes().unwrap()).unwrap();
        let mut second = after().load_record(record).with_gradient_release();
        let steps = HALF..STEPS;
        release_run(
            model,
            &mut second,
            steps,
            Net::loss,
            &expected[HALF..],
            &what,
        );
    }
}

#[test]
fn burns_optimizers_and_those_in_one_pass_are_the_same_for_a_model() {
    macro_rules! check {
        ($name:literal, $config:expr) => {{
            let config = $config;
            assert_same($name, &|| config.init(), &|| config.in_one_pass().init());
        }};
    }
    let by_norm = Some(GradientClippingConfig::Norm(0.01));
    let by_value = Some(GradientClippingConfig::Value(0.001));
    let adamw = AdamWConfig::new().with_weight_decay(0.1);
    let nesterov = MomentumConfig::new().with_nesterov(true);
    check!("adam", AdamConfig::new().with_amsgrad(true));
    check!("adamw", adamw.with_cautious_weight_decay(true));
    check!(
        "clipped by norm",
        AdamWConfig::new().with_grad_clipping(by_norm)
    );
    check!(
        "clipped by value",
        LionConfig::new().with_grad_clipping(by_value)
    );
    check!("lion", LionConfig::new().with_weight_decay(0.1));
    check!("sgd", SgdConfig::new().with_momentum(Some(nesterov)));

    let body = || ParamGroup::from_predicate("body");
    let (adam, adamw) = (AdamConfig::new(), AdamWConfig::new());
    assert_same(
        "a group",
        &|| adam.init().with_group(body(), adamw.build(), None),
        &|| adam.init().with_group(body(), adamw.in_one_pass(), None),
    );
}

/// With release, and resumed in the middle from a record in Burn's file format, the weights are
/// those of the plain loop. These, and the bytes of the record.
fn assert_released_and_resumed<M: Module>(
    what: &str,
    model: impl Fn() -> M,
    optim: impl Fn() -> ModuleOptimizer,
    loss: fn(&M, usize) -> Tensor<1>,
) -> (Vec<Bits>, usize) {
    let (_, expected) = plain_run(model(), &mut optim(), 0..STEPS, loss);
    let mut release = optim().with_gradient_release();
    let (before, after) = expected.split_at(HALF);
    let (model, _) = release_run(model(), &mut release, 0..HALF, loss, before, what);
    let bytes = release.to_record().into_bytes().unwrap();
    let length = bytes.len();
    let record = OptimizerRecord::from_bytes(bytes).unwrap();
    let mut release = optim().load_record(record).with_gradient_release();
    release_run(model, &mut release, HALF..STEPS, loss, after, what);
    (expected, length)
}

#[test]
fn with_moments_in_8_bits_release_changes_no_bit() {
    type Model = (Embedding, Linear);
    fn loss((tokens, head): &Model, step: usize) -> Tensor<1> {
        let x = tokens.forward(ids([2, 8], step, 100, &flex()));
        head.forward(x).square().mean()
    }
    let model = || {
        seeded(&flex(), |device| {
            (
                EmbeddingConfig::new(100, 50).init(device),
                LinearConfig::new(50, 100).init(device),
            )
        })
    };
    let adamw = || AdamWConfig::new().in_one_pass();
    let optim = || adamw().with_8_bit_moments(&model_with_embedding()).init();
    let (weights, bytes) = assert_released_and_resumed("8 bits", model, optim, loss);
    // Embedding and bias in 32 bits, the head in 8; names and numbers are little.
    let least = 2 * (4 * (100 * 50 + 100) + 50 * 100 + 4 * 20);
    let is_small = (least..least + 6000).contains(&bytes);
    assert!(is_small, "{bytes} of {least} bytes");
    let (_, full) = plain_run(model(), &mut adamw().init(), 0..STEPS, loss);
    assert_ne!(weights.last(), full.last(), "8 bits show in the weights");
}

/// Of a model in bf16, whose first layer takes activations in 32 bits.
#[test]
fn with_weights_in_bf16_release_changes_no_bit() {
    fn loss(model: &Linear, step: usize) -> Tensor<1> {
        let x: Tensor<2> = numbers([4, 80], step, &flex()).cast(DType::BF16);
        model.forward(x).cast(DType::F32).square().mean()
    }
    let model = || {
        let model: Linear = seeded(&flex(), |device| LinearConfig::new(80, 60).init(device));
        map_numbers(model, |weight| weight.cast(DType::BF16))
    };
    let adamw = || AdamWConfig::new().in_one_pass();
    let stochastic = || Bf16Weights::new(adamw(), Stochastic { seed: 7 }).init();
    let master = || Bf16Weights::new(adamw(), MasterWeights).init();
    let sgd = || SgdConfig::new().in_one_pass();
    let stochastic_sgd = || Bf16Weights::new(sgd(), Stochastic { seed: 7 }).init();
    assert_released_and_resumed("stochastic", model, stochastic, loss);
    assert_released_and_resumed("stochastic, no state", model, stochastic_sgd, loss);
    assert_released_and_resumed("master weights", model, master, loss);
}

/// Each micro-batch is a step of the release.
#[test]
fn with_micro_batches_in_the_moments_release_changes_no_bit() {
    const MICRO_BATCHES: usize = 4;
    let loss = |model: &Linear, step: usize| -> Tensor<1> {
        let x = model.forward(numbers::<2>([4, 9], step, &flex()));
        x.square().mean().div_scalar(MICRO_BATCHES as f32)
    };
    let model = || seeded(&flex(), |device| LinearConfig::new(9, 5).init(device));
    let adamw = AdamWConfig::new().in_one_pass();
    let adamw = adamw.accumulating(MICRO_BATCHES, MomentDecay::EachStep);
    let adamw = adamw.unwrap();
    let (mut expected, mut plain) = (model(), adamw.clone().init());
    let (mut found, mut release) = (model(), adamw.init().with_gradient_release());
    let start = bits(&expected);
    for step in 0..3 * MICRO_BATCHES {
        expected = plain_step(expected, &mut plain, |model| loss(model, step));
        found = release_step(found, &mut release, |model| loss(model, step));
        assert_eq!(bits(&found), bits(&expected), "micro-batch {step}");
        assert_eq!(bits(&expected) == start, step < MICRO_BATCHES - 1);
    }
}

#[test]
fn micro_batches_go_on_from_a_record_without_them() {
    let adamw = || AdamWConfig::new().in_one_pass();
    let mut noise = Noise(35);
    let mut plain = Run::new(adamw(), noise.numbers([4, 5]));
    plain.step(0.01, noise.numbers([4, 5]));
    let accumulating = adamw().accumulating(1, MomentDecay::EachStep);
    let mut resumed = plain.resumed(accumulating.unwrap());
    let grad = noise.numbers([4, 5]);
    plain.step(0.01, grad.clone());
    resumed.step(0.01, grad);
    assert_eq!(resumed.bits(), plain.bits());
}

/// As Burn does with what is missing, the state begins anew; nothing panics.
#[test]
fn what_is_cut_short_is_not_a_state() {
    let adamw = AdamWConfig::new().in_one_pass();
    let mut noise = Noise(33);
    let mut run = Run::new(
        adamw.with_8_bit_moments(&model_with_embedding()),
        noise.numbers([70, 61]),
    );
    run.step(0.01, noise.numbers([70, 61]));
    let whole = run.saved();
    let load = |saved: &Saved| saved.load::<AdamWState<2>>(&device());
    assert!(load(&whole).is_some());
    assert!(whole.load::<AdamWState<3>>(&device()).is_none());

    let scales = "p.momentum.moment_1.scales";
    let mut missing = whole.clone();
    missing.tensors.remove(scales).expect("it was there");
    assert!(load(&missing).is_none());
    let mut short = whole.clone();
    let (_, shape, bytes) = short.tensors.get_mut(scales).unwrap();
    shape[0] -= 1;
    bytes.truncate(4 * shape[0]);
    assert!(load(&short).is_none());
    let mut ints = whole.clone();
    ints.tensors.get_mut(scales).unwrap().0 = DType::I32;
    assert!(load(&ints).is_none());
    let mut flat = whole;
    flat.tensors.get_mut("p.momentum.moment_2").unwrap().1 = vec![70 * 61];
    assert!(load(&flat).is_none());
}
