//! Moments in 32 bits: Burn's weights, from Burn's records.

use crate::harness::prelude::*;
use burn::optim::decay::WeightDecayConfig;
use burn::optim::{LionConfig, Optimizer};
use burn_lean::optim::{
    AccumulateInMoments, EightBitMoments, InOnePass, MomentDecay, RAdamConfig, StableAdamWConfig,
};

use super::super::run::Run;
use super::{RATE, assert_near, gradient, numbers, weight, wgpu};

const STEPS: u64 = 12;

/// Steps an optimizer in one pass on wgpu beside another one, with the gradient as `change` makes
/// it. On the way each goes on from a record of its own.
fn near<const D: usize>(
    name: &str,
    shape: [usize; D],
    other: (impl Optimizer, &Device),
    lean: impl Optimizer,
    change: fn(Tensor<D>) -> Tensor<D>,
) {
    let (other, device) = other;
    let mut other = Run::new(other, weight(shape, device));
    let mut lean = Run::new(lean, weight(shape, &wgpu()));
    let first = lean.weights();
    for step in 0..STEPS {
        if step == STEPS / 2 {
            let saved = lean.state.as_ref().map(|_| lean.saved());
            saved.iter().for_each(|saved| lean.load(saved));
        }
        let rate = RATE / (1.0 + step as f64 / 7.0);
        other.step(rate, gradient(step, shape, device));
        lean.step(rate, change(gradient(step, shape, &wgpu())));
        let context = format!("{name} {shape:?} after step {step}");
        assert_near(&lean.weights(), &other.weights(), step, &context);
    }
    assert_ne!(lean.weights(), first, "{name}");
}

/// Odd numbers of elements, one, and enough for several workgroups.
fn near_in_all_shapes(name: &str, other: (impl Optimizer, &Device), lean: impl Optimizer) {
    let (other, device) = other;
    let other = || (other.clone(), device);
    near(name, [1], other(), lean.clone(), |grad| grad);
    near(name, [257], other(), lean.clone(), |grad| grad);
    near(name, [3, 5, 7], other(), lean.clone(), |grad| grad);
    near(name, [129, 300], other(), lean, |grad| grad);
}

#[test]
fn weights_are_burns() {
    let wgpu = wgpu();
    macro_rules! check {
        ($name:expr, $config:expr) => {{
            let config = $config;
            near_in_all_shapes($name, (config.build(), &wgpu), config.in_one_pass())
        }};
    }
    let decay = || Some(WeightDecayConfig::new(0.01));
    check!("adam", AdamConfig::new().with_weight_decay(decay()));
    check!("adam, amsgrad", AdamConfig::new().with_amsgrad(true));
    check!("adamw", AdamWConfig::new().with_weight_decay(0.1));
    let cautious = AdamWConfig::new().with_cautious_weight_decay(true);
    check!("adamw, cautious", cautious.with_weight_decay(0.1));
    check!("sgd", SgdConfig::new().with_weight_decay(decay()));
    let nesterov = MomentumConfig::new()
        .with_nesterov(true)
        .with_dampening(0.3);
    let nesterov = SgdConfig::new().with_momentum(Some(nesterov));
    check!("sgd, nesterov", nesterov.with_weight_decay(decay()));
    check!("lion", LionConfig::new());
}

/// Those that Burn does not have, beside themselves on the processor.
#[test]
fn other_optimizers_are_as_on_the_processor() {
    let flex = Device::flex();
    let radam = RAdamConfig::new().build();
    near_in_all_shapes("radam", (radam.clone(), &flex), radam);
    let stable = StableAdamWConfig::new().build();
    near_in_all_shapes("stable adamw", (stable.clone(), &flex), stable);
    // Most of its steps are of the moments alone.
    let adama = AdamWConfig::new().in_one_pass();
    let adama = adama.accumulating(3, MomentDecay::EachStep);
    let adama = adama.expect("AdamW steps by its moments");
    near_in_all_shapes("adama", (adama.clone(), &flex), adama);
}

#[test]
fn gradients_may_be_views() {
    let wgpu = wgpu();
    let config = AdamWConfig::new().with_weight_decay(0.1);
    let (plain, lean) = (config.build(), config.in_one_pass());
    let transposed = |grad: Tensor<2>| {
        let turned = grad.transpose().into_data();
        Tensor::from_data(turned, &super::wgpu()).transpose()
    };
    let shape = [72, 132];
    let beside = || (plain.clone(), &wgpu);
    near("transposed", shape, beside(), lean.clone(), transposed);
    let part = |grad: Tensor<2>| {
        let other = grad.ones_like();
        Tensor::cat(vec![other, grad], 0).narrow(0, 72, 72)
    };
    near("a part", shape, beside(), lean.clone(), part);
    // One number that stands for all.
    let mut one = Run::new(plain, weight(shape, &wgpu));
    let mut other = Run::new(lean, weight(shape, &wgpu));
    for step in 0..3 {
        let grad = gradient(step, [1, 1], &wgpu);
        one.step(RATE, grad.clone().repeat(&shape));
        other.step(RATE, grad.expand(shape));
        assert_near(&other.weights(), &one.weights(), step, "expanded");
    }
}

#[test]
fn clipping_by_value_is_part_of_the_pass() {
    let (shape, wgpu) = ([129, 301], wgpu());
    for clipping in [
        GradientClippingConfig::Value(0.4),
        GradientClippingConfig::Norm(3.0),
    ] {
        let config = SgdConfig::new().with_momentum(Some(MomentumConfig::new()));
        let lean = config
            .clone()
            .with_gradient_clipping(Some(clipping.clone()));
        let mut plain = Run::new(config.build(), weight(shape, &wgpu));
        let mut lean = Run::new(lean.in_one_pass(), weight(shape, &wgpu));
        for step in 0..STEPS {
            let grad = gradient(step, shape, &wgpu);
            plain.step(RATE, clipping.init().clip_gradient(grad.clone()));
            lean.step(RATE, grad);
            let context = format!("{clipping:?} after step {step}");
            assert_near(&lean.weights(), &plain.weights(), step, &context);
        }
    }
}

/// Each goes on from the record of the other.
#[test]
fn records_pass_between_burns_optimizer_and_the_one_in_one_pass() {
    let (shape, wgpu) = ([60, 131], wgpu());
    let config = AdamWConfig::new().with_weight_decay(0.1);
    let mut plain = Run::new(config.build(), weight(shape, &wgpu));
    let mut lean = Run::new(config.in_one_pass(), weight(shape, &wgpu));
    for step in 0..9 {
        if step > 0 && step % 3 == 0 {
            let (of_plain, of_lean) = (plain.saved(), lean.saved());
            plain.load(&of_lean);
            lean.load(&of_plain);
        }
        plain.step(RATE, gradient(step, shape, &wgpu));
        lean.step(RATE, gradient(step, shape, &wgpu));
        let context = format!("after step {step}");
        assert_near(&lean.weights(), &plain.weights(), step, &context);
    }
}

/// What somebody else holds, as a record or a copy of the model, is copied and keeps its numbers.
#[test]
fn what_is_shared_keeps_its_numbers() {
    let (shape, wgpu) = ([60, 130], wgpu());
    let adamw = || AdamWConfig::new().in_one_pass();
    let in_8_bits = adamw().with_8_bit_moments(&Vec::<Linear>::new());
    for (name, optimizer) in [("32 bits", adamw()), ("8 bits", in_8_bits)] {
        let new = || Run::new(optimizer.clone(), weight(shape, &wgpu));
        let (mut alone, mut run) = (new(), new());
        let mut held = Vec::new();
        for step in 0..4 {
            alone.step(RATE, gradient(step, shape, &wgpu));
            let grad = gradient(step, shape, &wgpu);
            held.push((run.weight.clone(), run.state.clone(), grad.clone()));
            run.step(RATE, grad);
            assert_eq!(run.weights(), alone.weights(), "{name}, step {step}");
        }
        for (step, (weight, state, grad)) in (0..).zip(held) {
            let mut held = Run {
                optimizer: optimizer.clone(),
                weight,
                state,
            };
            let mut again = new();
            (0..step).for_each(|step| again.step(RATE, gradient(step, shape, &wgpu)));
            let is_same = held.weights() == again.weights();
            assert!(is_same, "{name}, before step {step}");
            assert_eq!(numbers(grad.clone()), numbers(gradient(step, shape, &wgpu)));
            // Its states are those of its time as well.
            held.step(RATE, grad);
            again.step(RATE, gradient(step, shape, &wgpu));
            assert_eq!(held.weights(), again.weights(), "{name}, step {step}");
            assert_eq!(held.saved(), again.saved(), "{name}, step {step}");
        }
    }
    // The same tensor as weight and as gradient.
    let twice = weight(shape, &wgpu);
    let (twice, _) = adamw().step(RATE, twice.clone(), twice, None);
    let (once, _) = adamw().step(RATE, weight(shape, &wgpu), weight(shape, &wgpu), None);
    assert_eq!(numbers(twice), numbers(once));
}
