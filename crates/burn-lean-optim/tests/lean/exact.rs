//! In one pass, weights and states are Burn's bit for bit.

use burn::{
    backend::{Flex, NdArray},
    grad_clipping::GradientClippingConfig,
    optim::{
        AdaGradConfig, AdamConfig, AdamWConfig, AdanConfig, RmsPropConfig, SgdConfig,
        SimpleOptimizer, decay::WeightDecayConfig, momentum::MomentumConfig,
    },
    tensor::{DType, Tensor, backend::Backend},
};
use burn_lean_optim::InOnePass;

use crate::harness::{Noise, Run, view};

const STEPS: usize = 50;

/// Steps two optimizers side by side, and compares after each step.
fn assert_equal<B: Backend, const D: usize>(
    name: &str,
    shape: [usize; D],
    plain: impl SimpleOptimizer<B>,
    lean: impl SimpleOptimizer<B>,
    mut grad: impl FnMut(&mut Noise) -> Tensor<B, D>,
) {
    let mut noise = Noise(shape.iter().product::<usize>() as u64);
    let weight = noise.tensor::<B, D>(shape, Noise::number);
    // Of its own: a shared buffer is another case.
    let copy = Tensor::from_data(weight.to_data(), &weight.device());
    let (mut plain, mut lean) = (Run::new(plain, weight), Run::new(lean, copy));
    for step in 0..STEPS {
        let lr = 0.03 / (1.0 + step as f64 / 7.0);
        let grad = grad(&mut noise);
        plain.step(lr, grad.clone());
        lean.step(lr, grad);
        let bits = |weights: Vec<f32>| -> Vec<u32> {
            weights.iter().map(|weight| weight.to_bits()).collect()
        };
        let (wanted, got) = (bits(plain.weights()), bits(lean.weights()));
        assert!(
            wanted == got,
            "{name} {shape:?}: weights differ after step {step}"
        );
        assert!(
            plain.saved() == lean.saved(),
            "{name} {shape:?}: states differ after step {step}"
        );
    }
    let weights = plain.weights();
    assert!(weights.is_empty() || weights.iter().any(|weight| weight.is_finite()));
}

/// Odd shapes: one chunk and several, blocks that are not full, one element, none.
fn assert_equal_in_all_shapes<B: Backend>(
    name: &str,
    plain: impl SimpleOptimizer<B>,
    lean: impl SimpleOptimizer<B>,
) {
    macro_rules! shapes {
        ($($shape:expr),*) => {$(
            assert_equal::<B, _>(name, $shape, plain.clone(), lean.clone(), |noise| {
                noise.tensor($shape, Noise::wild)
            });
        )*};
    }
    shapes!(
        [1],
        [255],
        [256],
        [257],
        [0],
        [3, 5, 7],
        [129, 300],
        [2, 0],
        [1, 1, 1, 3]
    );
}

/// Every optimizer of Burn with its options, in one pass and not.
macro_rules! each_optimizer {
    ($check:ident $(::<$backend:ty>)?) => {{
        let decay = || Some(WeightDecayConfig::new(0.01));
        macro_rules! check {
            ($name:expr, $config:expr) => {{
                let config = $config;
                $check $(::<$backend>)? ($name, config.build(), config.in_one_pass())
            }};
        }
        let momentum = MomentumConfig::new;
        check!("adam", AdamConfig::new());
        check!(
            "adam, decay",
            AdamConfig::new()
                .with_weight_decay(decay())
                .with_beta_1(0.8)
        );
        check!(
            "adam, amsgrad",
            AdamConfig::new().with_amsgrad(true).with_epsilon(1e-8)
        );
        check!("adamw", AdamWConfig::new());
        check!("adamw, no decay", AdamWConfig::new().with_weight_decay(0.0));
        check!(
            "adamw, amsgrad",
            AdamWConfig::new().with_amsgrad(true).with_weight_decay(0.1)
        );
        let cautious = AdamWConfig::new().with_cautious_weight_decay(true);
        check!("adamw, cautious", cautious.with_weight_decay(0.1));
        check!("sgd", SgdConfig::new().with_weight_decay(decay()));
        check!(
            "sgd, momentum",
            SgdConfig::new().with_momentum(Some(momentum()))
        );
        let nesterov = momentum()
            .with_nesterov(true)
            .with_dampening(0.3)
            .with_momentum(0.7);
        let nesterov = SgdConfig::new().with_momentum(Some(nesterov));
        check!("sgd, nesterov", nesterov.with_weight_decay(decay()));
        check!(
            "adagrad",
            AdaGradConfig::new()
                .with_lr_decay(0.1)
                .with_weight_decay(decay())
        );
        check!("rmsprop", RmsPropConfig::new().with_weight_decay(decay()));
        check!(
            "rmsprop, no momentum",
            RmsPropConfig::new().with_momentum(0.0)
        );
        check!(
            "rmsprop, centered",
            RmsPropConfig::new().with_centered(true)
        );
        let centered = RmsPropConfig::new().with_centered(true);
        check!(
            "rmsprop, centered, no momentum",
            centered.with_momentum(0.0)
        );
        check!("adan", AdanConfig::new().with_weight_decay(0.02));
        check!(
            "adan, no prox",
            AdanConfig::new().with_weight_decay(0.02).with_no_prox(true)
        );
    }};
}

#[test]
fn on_flex_weights_and_states_are_burns() {
    each_optimizer!(assert_equal_in_all_shapes::<Flex>);
}

#[test]
fn elsewhere_burns_operations_do_the_same() {
    each_optimizer!(assert_equal_in_all_shapes::<NdArray>);
}

#[test]
fn gradients_may_be_views() {
    fn check(name: &str, plain: impl SimpleOptimizer<Flex>, lean: impl SimpleOptimizer<Flex>) {
        let transposed = |noise: &mut Noise| noise.tensor([70, 300], Noise::wild).transpose();
        assert_equal(name, [300, 70], plain.clone(), lean.clone(), transposed);
        let part = |noise: &mut Noise| view(noise.tensor([300, 70], Noise::wild));
        assert_equal(name, [300, 70], plain, lean, part);
    }
    each_optimizer!(check);
}

#[test]
fn gradients_may_be_anything_but_finite() {
    fn check(name: &str, plain: impl SimpleOptimizer<Flex>, lean: impl SimpleOptimizer<Flex>) {
        let mut noise = Noise(3);
        let weight: Tensor<Flex, 1> = noise.tensor([1000], Noise::number);
        let copy = Tensor::from_data(weight.to_data(), &weight.device());
        let (mut plain, mut lean) = (Run::new(plain, weight), Run::new(lean, copy));
        for step in 0..STEPS {
            let grad = noise.tensor([1000], |noise| match noise.bits() % 300 {
                0 => f32::NAN,
                1 => f32::INFINITY,
                2 => f32::NEG_INFINITY,
                3 => f32::MAX,
                _ => noise.wild(),
            });
            plain.step(0.01, grad.clone());
            lean.step(0.01, grad);
            for (wanted, got) in plain.weights().iter().zip(lean.weights()) {
                // Which of two that are not numbers an operation hands on is up to the compiler.
                let equal = wanted.to_bits() == got.to_bits() || (wanted.is_nan() && got.is_nan());
                assert!(equal, "{name}, step {step}: {wanted} is {got}");
            }
        }
        assert!(plain.weights().iter().any(|weight| weight.is_nan()));
        assert!(plain.weights().iter().any(|weight| weight.is_finite()));
    }
    each_optimizer!(check);
}

#[test]
fn clipping_is_part_of_the_pass() {
    let mut noise = Noise(5);
    let weight: Tensor<Flex, 2> = noise.tensor([90, 300], Noise::number);
    for clipping in [
        GradientClippingConfig::Value(0.4),
        GradientClippingConfig::Norm(3.0),
    ] {
        let config = AdamWConfig::new().with_grad_clipping(Some(clipping.clone()));
        let copy = Tensor::from_data(weight.to_data(), &weight.device());
        let mut plain = Run::new(config.build(), weight.clone());
        let mut lean = Run::new(config.in_one_pass(), copy.clone());
        let mut unclipped = Run::new(AdamWConfig::new().in_one_pass(), copy);
        for _ in 0..STEPS {
            let grad: Tensor<Flex, 2> = noise.tensor([90, 300], Noise::number);
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
        let weight: Tensor<Flex, 1> = noise.tensor([300], Noise::number);
        let mut plain = Run::new(AdamWConfig::new().build(), weight.clone().cast(dtype));
        let mut lean = Run::new(AdamWConfig::new().in_one_pass(), weight.cast(dtype));
        for _ in 0..STEPS {
            let grad = noise.tensor([300], Noise::number).cast(dtype);
            plain.step(0.01, grad.clone());
            lean.step(0.01, grad);
            assert_eq!(plain.weights(), lean.weights(), "{dtype:?}");
            assert_eq!(lean.weight.as_ref().unwrap().dtype(), dtype);
        }
    }
}
