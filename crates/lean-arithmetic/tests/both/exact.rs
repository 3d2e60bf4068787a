//! In one pass, weights and states are Burn's bit for bit. So they are where there is no pass.

use burn::grad_clipping::GradientClippingConfig;
use burn::optim::decay::WeightDecayConfig;
use burn::optim::momentum::MomentumConfig;
use burn::optim::{AdamConfig, AdamWConfig, SgdConfig};
use burn::tensor::DType;

use super::noise::Noise;
use super::run::{Run, copy};
use super::side::{self, InOnePass, Optimizer, Tensor, device, places};

const STEPS: usize = 24;

/// Steps two optimizers side by side, and compares after each step. Each goes on from the record
/// of the other in the middle.
fn assert_equal<P: Optimizer, L: Optimizer, const D: usize>(
    name: &str,
    weight: Tensor<D>,
    (plain, lean): (P, L),
    mut grad: impl FnMut() -> Tensor<D>,
) {
    let what = format!("{name} {:?} {:?}", weight.dims(), weight.device());
    let is_wide = weight.dtype() == DType::F32;
    // Of its own: a shared buffer is another case.
    let mut lean = Run::new(lean, copy(&weight));
    let mut plain = Run::new(plain, weight);
    for step in 0..STEPS {
        let lr = 0.03 / (1.0 + step as f64 / 7.0);
        let grad = grad();
        plain.step(lr, grad.clone());
        lean.step(lr, grad);
        let is_equal = plain.bits() == lean.bits();
        assert!(is_equal, "{what}: weights differ after step {step}");
        let (of_plain, of_lean) = (plain.saved(), lean.saved());
        let is_equal = of_plain == of_lean;
        assert!(is_equal, "{what}: states differ after step {step}");
        // Burn loads states as 32 bits, whatever they were.
        if step == STEPS / 2 && is_wide {
            plain.load(&of_lean);
            lean.load(&of_plain);
        }
    }
    let weights = plain.weights();
    assert!(weights.is_empty() || weights.iter().any(|weight| weight.is_finite()));
}

/// Checks every optimizer of Burn that there is in one pass, with its options: with its name, Burn's
/// optimizer and the one in one pass.
macro_rules! each_optimizer {
    ($check:ident) => {{
        macro_rules! check {
            ($name:expr, $config:expr) => {{
                let config = $config;
                $check($name, (config.build(), config.in_one_pass()))
            }};
        }
        let decay = || Some(WeightDecayConfig::new(0.01));
        check!("adam", AdamConfig::new());
        let decayed = AdamConfig::new().with_weight_decay(decay());
        check!("adam, decay", decayed.with_beta_1(0.8));
        let amsgrad = AdamConfig::new().with_amsgrad(true);
        check!("adam, amsgrad", amsgrad.with_epsilon(1e-8));
        check!("adamw", AdamWConfig::new());
        check!("adamw, no decay", AdamWConfig::new().with_weight_decay(0.0));
        let amsgrad = AdamWConfig::new().with_amsgrad(true);
        check!("adamw, amsgrad", amsgrad.with_weight_decay(0.1));
        let cautious = || AdamWConfig::new().with_cautious_weight_decay(true);
        check!("adamw, cautious", cautious().with_weight_decay(0.1));
        check!("adamw, no caution", cautious().with_weight_decay(0.0));
        check!("sgd", SgdConfig::new().with_weight_decay(decay()));
        let momentum = Some(MomentumConfig::new());
        check!("sgd, momentum", SgdConfig::new().with_momentum(momentum));
        let nesterov = MomentumConfig::new()
            .with_nesterov(true)
            .with_dampening(0.3)
            .with_momentum(0.7);
        let nesterov = SgdConfig::new().with_momentum(Some(nesterov));
        check!("sgd, nesterov", nesterov.with_weight_decay(decay()));
        side::optimizers_of_this_burn!(check);
    }};
}

/// Odd shapes: one chunk and several, blocks that are not full, one element, none.
#[test]
fn weights_and_states_are_burns() {
    fn check(name: &str, pair: (impl Optimizer, impl Optimizer)) {
        for device in places() {
            macro_rules! shapes {
                ($($shape:expr),*) => {$(
                    let mut noise = Noise($shape.iter().product::<usize>() as u64);
                    let weight = noise.tensor($shape, &device, Noise::wild);
                    assert_equal(name, weight, pair.clone(), || {
                        noise.tensor($shape, &device, Noise::wild)
                    });
                )*};
            }
            shapes!([1], [255], [256], [257], [0], [3, 5, 7], [65, 257], [2, 0]);
        }
    }
    each_optimizer!(check);
}

#[test]
fn gradients_may_be_views() {
    /// A tensor with the same elements that shares a larger buffer, from its middle on.
    fn part(tensor: Tensor<2>) -> Tensor<2> {
        let rows = tensor.dims()[0];
        Tensor::cat(vec![tensor.clone(), tensor], 0).narrow(0, rows, rows)
    }
    fn check(name: &str, pair: (impl Optimizer, impl Optimizer)) {
        let mut noise = Noise(17);
        let mut wild = |shape| noise.tensor::<2>(shape, &device(), Noise::wild);
        let weight = wild([30, 70]);
        assert_equal(name, copy(&weight), pair.clone(), || {
            wild([70, 30]).transpose()
        });
        assert_equal(name, weight, pair, || part(wild([30, 70])));
    }
    each_optimizer!(check);
}

#[test]
fn gradients_may_be_anything_but_finite() {
    fn check(name: &str, (plain, lean): (impl Optimizer, impl Optimizer)) {
        let mut noise = Noise(3);
        let weight = noise.numbers([1000]);
        let mut lean = Run::new(lean, copy(&weight));
        let mut plain = Run::new(plain, weight);
        for step in 0..STEPS {
            let grad = noise.tensor([1000], &device(), |noise| match noise.bits() % 300 {
                0 => f32::NAN,
                1 => f32::INFINITY,
                2 => f32::NEG_INFINITY,
                3 => f32::MAX,
                _ => noise.wild(),
            });
            plain.step(0.01, grad.clone());
            lean.step(0.01, grad);
            for (wanted, found) in plain.weights().iter().zip(lean.weights()) {
                // Which of two NaN an operation hands on is up to the compiler.
                let is_equal = wanted.to_bits() == found.to_bits();
                assert!(
                    is_equal || (wanted.is_nan() && found.is_nan()),
                    "{name}, step {step}: {wanted} is {found}"
                );
            }
        }
        let weights = plain.weights();
        // The sign of NaN is zero.
        let has_nan = !name.starts_with("lion");
        assert_eq!(weights.iter().any(|weight| weight.is_nan()), has_nan);
        assert!(weights.iter().any(|weight| weight.is_finite()));
    }
    each_optimizer!(check);
}

#[test]
fn clipping_is_burns() {
    for clipping in [
        GradientClippingConfig::Value(0.4),
        GradientClippingConfig::Norm(3.0),
    ] {
        let config = AdamWConfig::new().with_grad_clipping(Some(clipping.clone()));
        let mut noise = Noise(5);
        let weight = noise.numbers([90, 300]);
        let mut lean = Run::new(config.in_one_pass(), copy(&weight));
        let mut unclipped = Run::new(AdamWConfig::new().in_one_pass(), copy(&weight));
        let mut plain = Run::new(config.build(), weight);
        for _ in 0..STEPS {
            let grad = noise.numbers([90, 300]);
            plain.step(0.01, clipping.init().clip_gradient(grad.clone()));
            lean.step(0.01, grad.clone());
            unclipped.step(0.01, grad);
            assert_eq!(plain.weights(), lean.weights());
            assert!(plain.saved() == lean.saved());
        }
        assert_ne!(lean.weights(), unclipped.weights());
    }
}

#[test]
fn weights_of_other_types_are_stepped_as_burn_does() {
    for dtype in [DType::F64, DType::F16, DType::BF16] {
        let mut noise = Noise(7);
        let weight = noise.numbers([300]).cast(dtype);
        let pair = (AdamWConfig::new().build(), AdamWConfig::new().in_one_pass());
        assert_equal("adamw", weight, pair, || noise.numbers([300]).cast(dtype));
    }
}
