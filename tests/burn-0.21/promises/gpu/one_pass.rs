//! The optimizers of `burn-gradient-release-optim` in one pass on the device: Burn's weights up to rounding,
//! and nobody's buffer but their own.

use burn::optim::{AdaGradConfig, AdanConfig, RmsPropConfig};
use burn::tensor::DType;
use burn_gradient_release_optim::{
    AccumulateInMoments, Format, InOnePass, Kind, LeanBackend, LionConfig, MomentDecay,
    RAdamConfig, StableAdamWConfig, Types,
};

use super::Inner;
use crate::harness::prelude::*;

pub(super) const STEPS: u64 = 20;

/// By how much a weight may differ after a step, for each step so far; relative for weights above
/// one. A step moves a weight by a hundredth. A driver may fuse a product and a sum, and need not
/// round roots and quotients correctly.
pub(super) const PER_STEP: f32 = 1e-6;

/// A parameter, and the state of its optimizer.
#[derive(Clone)]
struct Run<O: SimpleOptimizer<B>, B: Backend, const D: usize> {
    optimizer: O,
    weight: Option<Tensor<B, D>>,
    state: Option<O::State<D>>,
}

impl<O: SimpleOptimizer<B>, B: Backend, const D: usize> Run<O, B, D> {
    fn new(optimizer: O, shape: [usize; D]) -> Self {
        Self {
            optimizer,
            weight: Some(noise(99, shape, &Default::default())),
            state: None,
        }
    }

    fn step(&mut self, step: u64, grad: Tensor<B, D>) {
        let weight = self.weight.take().expect("put back after each step");
        let rate = RATE / (1.0 + step as f64 / 7.0);
        let (weight, state) = self.optimizer.step(rate, weight, grad, self.state.take());
        (self.weight, self.state) = (Some(weight), state);
    }

    fn weights(&self) -> Vec<f32> {
        numbers(self.weight.clone().expect("put back after each step"))
    }
}

pub(super) fn numbers<B: Backend, const D: usize>(tensor: Tensor<B, D>) -> Vec<f32> {
    tensor.into_data().to_vec().expect("they are `f32`")
}

/// Numbers of many magnitudes, here and there zero.
pub(super) fn gradient<B: Backend, const D: usize>(step: u64, shape: [usize; D]) -> Tensor<B, D> {
    let mut data = noise::<Flex, D>(step, shape, &Default::default()).into_data();
    let numbers = data.as_mut_slice::<f32>().expect("they are `f32`");
    for (place, number) in numbers.iter_mut().enumerate() {
        *number *= match place % 7 {
            0 if place > 0 => 0.0,
            1 => 20.0,
            _ => *number,
        };
    }
    Tensor::from_data(data, &Default::default())
}

#[track_caller]
fn assert_near(given: &[f32], expected: &[f32], step: u64, context: &str) {
    let tolerance = PER_STEP * (step + 1) as f32;
    assert_eq!(given.len(), expected.len());
    for (given, expected) in given.iter().zip(expected) {
        let difference = (given - expected).abs() / expected.abs().max(1.0);
        assert!(
            difference <= tolerance,
            "{context}: {given} is not {expected}"
        );
    }
}

/// Steps the optimizer in one pass beside another, with the gradient as `change` makes it.
fn near<B: Backend, const D: usize>(
    name: &str,
    shape: [usize; D],
    other: impl SimpleOptimizer<B>,
    lean: impl SimpleOptimizer<Inner>,
    change: fn(Tensor<Inner, D>) -> Tensor<Inner, D>,
) {
    let mut other = Run::<_, B, D>::new(other, shape);
    let mut lean = Run::<_, Inner, D>::new(lean, shape);
    let first = lean.weights();
    for step in 0..STEPS {
        other.step(step, gradient(step, shape));
        lean.step(step, change(gradient(step, shape)));
        let context = format!("{name} {shape:?} after step {step}");
        assert_near(&lean.weights(), &other.weights(), step, &context);
    }
    assert!(first.is_empty() || lean.weights() != first, "{name}");
}

/// Odd numbers of elements, one, none, and enough for several workgroups.
fn near_in_all_shapes<B: Backend>(
    name: &str,
    other: impl SimpleOptimizer<B>,
    lean: impl SimpleOptimizer<Inner>,
) {
    macro_rules! shapes {
        ($($shape:expr),*) => {$(
            near::<B, _>(name, $shape, other.clone(), lean.clone(), |grad| grad);
        )*};
    }
    shapes!([1], [257], [0], [3, 5, 7], [129, 300]);
}

#[test]
fn weights_are_burns() {
    turn::take::<Inner>();
    macro_rules! check {
        ($name:expr, $config:expr) => {{
            let config = $config;
            near_in_all_shapes::<Inner>($name, config.build(), config.in_one_pass())
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
    check!("adagrad", AdaGradConfig::new().with_lr_decay(0.1));
    // The root of a variance that is nearly zero is as inexact as the variance.
    let rmsprop = || RmsPropConfig::new().with_epsilon(1e-3);
    check!("rmsprop", rmsprop().with_weight_decay(decay()));
    check!("rmsprop, no momentum", rmsprop().with_momentum(0.0));
    check!("rmsprop, centered", rmsprop().with_centered(true));
    let centered = rmsprop().with_centered(true);
    check!(
        "rmsprop, centered, no momentum",
        centered.with_momentum(0.0)
    );
    check!("adan", AdanConfig::new().with_weight_decay(0.02));
    let no_prox = AdanConfig::new().with_no_prox(true);
    check!("adan, no prox", no_prox.with_weight_decay(0.02));
}

/// Those that Burn does not have, beside themselves on the processor.
#[test]
fn other_optimizers_are_as_on_the_processor() {
    turn::take::<Inner>();
    let lion = LionConfig::new().build();
    near_in_all_shapes::<Flex>("lion", lion.clone(), lion.clone());
    // Burn's own operations cannot take a matrix without rows on the device.
    near::<Flex, 2>("lion", [0, 3], lion.clone(), lion, |grad| grad);
    let radam = RAdamConfig::new().build();
    near_in_all_shapes::<Flex>("radam", radam.clone(), radam);
    let stable = StableAdamWConfig::new().build();
    near_in_all_shapes::<Flex>("stable adamw", stable.clone(), stable);
    // Most of its steps are of the moments alone.
    let adama = AdamWConfig::new().in_one_pass();
    let adama = adama.accumulating(3, MomentDecay::EachStep);
    let adama = adama.expect("AdamW steps by its moments");
    near_in_all_shapes::<Flex>("adama", adama.clone(), adama);
}

#[test]
fn gradients_may_be_views() {
    turn::take::<Inner>();
    let config = AdamWConfig::new().with_weight_decay(0.1);
    let (plain, lean) = (config.build(), config.in_one_pass());
    let transposed = |grad: Tensor<Inner, 2>| {
        let turned = grad.transpose().into_data();
        Tensor::from_data(turned, &Default::default()).transpose()
    };
    let shape = [72, 132];
    near::<Inner, _>("transposed", shape, plain.clone(), lean.clone(), transposed);
    let part = |grad: Tensor<Inner, 2>| {
        let other = grad.ones_like();
        Tensor::cat(vec![other, grad], 0).narrow(0, 72, 72)
    };
    near::<Inner, _>("a part", shape, plain.clone(), lean.clone(), part);
    // One number that stands for all.
    let mut one = Run::<_, Inner, 2>::new(plain, shape);
    let mut other = Run::<_, Inner, 2>::new(lean, shape);
    for step in 0..3 {
        let grad: Tensor<Inner, 2> = gradient(step, [1, 1]);
        one.step(step, grad.clone().repeat(&shape));
        other.step(step, grad.expand(shape));
        assert_near(&other.weights(), &one.weights(), step, "expanded");
    }
}

#[test]
fn clipping_is_part_of_the_pass() {
    turn::take::<Inner>();
    for clipping in [
        GradientClippingConfig::Value(0.4),
        GradientClippingConfig::Norm(3.0),
    ] {
        for shape in [[129, 301], [5, 1]] {
            let name = format!("{clipping:?} {shape:?}");
            let config = SgdConfig::new().with_momentum(Some(MomentumConfig::new()));
            let lean = config
                .clone()
                .with_gradient_clipping(Some(clipping.clone()));
            let mut plain = Run::<_, Inner, 2>::new(config.build(), shape);
            let mut lean = Run::<_, Inner, 2>::new(lean.in_one_pass(), shape);
            let mut unclipped = Run::<_, Inner, 2>::new(config.build(), shape);
            for step in 0..STEPS {
                let grad: Tensor<Inner, 2> = gradient(step, shape);
                plain.step(step, clipping.init().clip_gradient(grad.clone()));
                lean.step(step, grad.clone());
                unclipped.step(step, grad);
                assert_near(&lean.weights(), &plain.weights(), step, &name);
            }
            assert_ne!(lean.weights(), unclipped.weights(), "{name}");
        }
    }
}

#[test]
fn what_is_shared_keeps_its_numbers() {
    let optimizer = AdamWConfig::new().in_one_pass();
    keeps_what_is_shared(optimizer.clone());
    // The same tensor as weight and as gradient.
    let weight = || noise::<Inner, 2>(99, [60, 130], &Default::default());
    let shared = weight();
    let (twice, _) = optimizer.step(RATE, shared.clone(), shared, None);
    let (once, _) = optimizer.step(RATE, weight(), weight(), None);
    assert_eq!(numbers(twice), numbers(once));
}

/// What somebody else holds, as a record or a copy of the model, is copied and keeps its numbers.
pub(super) fn keeps_what_is_shared(optimizer: impl SimpleOptimizer<Inner>) {
    turn::take::<Inner>();
    let shape = [60, 130];
    let new = || Run::<_, Inner, 2>::new(optimizer.clone(), shape);
    let (mut alone, mut run) = (new(), new());
    let mut held = Vec::new();
    for step in 0..4 {
        alone.step(step, gradient(step, shape));
        let grad: Tensor<Inner, 2> = gradient(step, shape);
        held.push((run.clone(), run.weights(), grad.clone()));
        run.step(step, grad);
        assert_eq!(run.weights(), alone.weights(), "step {step}");
    }
    for (step, (mut held, weights, grad)) in (0..).zip(held) {
        assert_eq!(held.weights(), weights, "step {step}");
        let same: Tensor<Inner, 2> = gradient(step, shape);
        assert_eq!(numbers(grad.clone()), numbers(same));
        // Its states are those of its time as well.
        held.step(step, grad);
        let mut again = new();
        (0..=step).for_each(|step| again.step(step, gradient(step, shape)));
        assert_eq!(held.weights(), again.weights(), "step {step}");
    }
}

/// Types that the pass does not do are stepped by Burn's operations.
#[test]
fn a_pass_is_for_some_types() {
    let float = Format::Float;
    let [signed, unsigned] = [Kind::Signed, Kind::Positive].map(Format::EightBit);
    for (weight, states, has_pass) in [
        (DType::F32, [float(DType::F32), float(DType::F32)], true),
        (DType::F32, [signed, unsigned], true),
        (DType::F16, [float(DType::F32), float(DType::F16)], false),
        (DType::F32, [float(DType::F32), float(DType::BF16)], false),
        // As no optimizer keeps them.
        (DType::F32, [signed, float(DType::F32)], false),
    ] {
        let types = Types {
            weight,
            grad: weight,
            states: &states,
        };
        let found = <Inner as LeanBackend>::has_pass(&types);
        assert_eq!(found, has_pass, "{weight:?} {states:?}");
    }
}
