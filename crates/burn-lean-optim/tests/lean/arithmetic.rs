//! A million random updates of each rule against scalar arithmetic in 64 bits, written out from the
//! papers.

use burn::{
    backend::Flex,
    optim::{
        AdaGradConfig, AdamConfig, AdamWConfig, AdanConfig, RmsPropConfig, SgdConfig,
        SimpleOptimizer, momentum::MomentumConfig,
    },
    tensor::Tensor,
};
use burn_lean_optim::{InOnePass, LionConfig, RAdamConfig};

use crate::harness::{Noise, Run};

const SIDE: usize = 512;
const STEPS: usize = 4;
const LR: f64 = 0.01;

/// A million numbers, each with up to four states of its own.
fn assert_near(
    name: &str,
    optimizer: impl SimpleOptimizer<Flex>,
    mut step: impl FnMut(usize, &mut f64, f64, &mut [f64; 4]),
) {
    let mut noise = Noise(61);
    let weight: Tensor<Flex, 2> = noise.tensor([SIDE, SIDE], Noise::number);
    let mut run = Run::new(optimizer, weight);
    let mut exact: Vec<(f64, [f64; 4])> = run
        .weights()
        .into_iter()
        .map(|weight| (weight.into(), [0.0; 4]))
        .collect();
    for time in 1..=STEPS {
        // Away from zero, where the sign of a sum and the quotient of two small numbers hang on
        // their last bit.
        let grad: Tensor<Flex, 2> = noise.tensor([SIDE, SIDE], |noise| {
            let number = noise.number();
            number + 0.01f32.copysign(number)
        });
        let grads: Vec<f32> = grad.to_data().to_vec().unwrap();
        run.step(LR, grad);
        for ((weight, states), grad) in exact.iter_mut().zip(&grads) {
            step(time, weight, f64::from(*grad), states);
        }
        for (place, (weight, (exact, _))) in run.weights().iter().zip(&exact).enumerate() {
            // An update is of the rate's size, and 32 bits lose some 1e-6 of it: `1 - 0.999^t`
            // alone 3e-5 of itself, half of which is left under the root.
            let error = (f64::from(*weight) - exact).abs();
            let limit = 5e-5 * LR + 2e-7 * exact.abs();
            assert!(
                error < limit,
                "{name}, step {time}, number {place}: {weight} is not {exact}"
            );
        }
    }
}

fn mix(old: &mut f64, new: f64, keep: f64) {
    *old = keep * *old + (1.0 - keep) * new;
}

#[test]
fn adam_and_adamw() {
    let adam = AdamConfig::new().with_epsilon(1e-8).in_one_pass();
    assert_near("adam", adam, |time, weight, grad, [m, v, ..]| {
        mix(m, grad, 0.9);
        mix(v, grad * grad, 0.999);
        let (m, v) = (
            *m / (1.0 - 0.9f64.powi(time as i32)),
            *v / (1.0 - 0.999f64.powi(time as i32)),
        );
        *weight -= LR * m / (v.sqrt() + 1e-8);
    });
    let adamw = AdamWConfig::new()
        .with_epsilon(1e-8)
        .with_weight_decay(0.1)
        .in_one_pass();
    assert_near("adamw", adamw, |time, weight, grad, [m, v, ..]| {
        mix(m, grad, 0.9);
        mix(v, grad * grad, 0.999);
        let (m, v) = (
            *m / (1.0 - 0.9f64.powi(time as i32)),
            *v / (1.0 - 0.999f64.powi(time as i32)),
        );
        *weight -= LR * 0.1 * *weight + LR * m / (v.sqrt() + 1e-8);
    });
}

#[test]
fn radam() {
    let radam = RAdamConfig::new().with_beta_2(0.6).build();
    assert_near("radam", radam, |time, weight, grad, [m, v, ..]| {
        mix(m, grad, 0.9);
        mix(v, grad * grad, 0.6);
        let power = 0.6f64.powi(time as i32);
        let longest = 2.0 / 0.4 - 1.0;
        let length = longest - 2.0 * time as f64 * power / (1.0 - power);
        // With so short a memory the length stays below five: no step is rectified.
        assert!(length < 5.0);
        *weight -= LR * *m / (1.0 - 0.9f64.powi(time as i32));
    });
}

#[test]
fn sgd_and_lion() {
    let momentum = MomentumConfig::new()
        .with_dampening(0.0)
        .with_nesterov(true);
    let sgd = SgdConfig::new().with_momentum(Some(momentum)).in_one_pass();
    assert_near("sgd", sgd, |_, weight, grad, [velocity, ..]| {
        *velocity = 0.9 * *velocity + grad;
        *weight -= LR * (grad + 0.9 * *velocity);
    });
    // Without the momentum's part, whose sum with the gradient may be as good as zero.
    let lion = LionConfig::new()
        .with_weight_decay(0.1)
        .with_beta_1(0.0)
        .build();
    assert_near("lion", lion, |_, weight, grad, _| {
        *weight -= LR * (0.1 * *weight + grad.signum());
    });
}

#[test]
fn adagrad_rmsprop_and_adan() {
    let adagrad = AdaGradConfig::new().in_one_pass();
    assert_near("adagrad", adagrad, |_, weight, grad, [sum, ..]| {
        *sum += grad * grad;
        *weight -= LR * grad / (sum.sqrt() + 1e-5);
    });
    let rmsprop = RmsPropConfig::new().in_one_pass();
    assert_near("rmsprop", rmsprop, |_, weight, grad, [square, buf, ..]| {
        mix(square, grad * grad, 0.99);
        *buf = 0.9 * *buf + grad / (square.sqrt() + 1e-5);
        *weight -= LR * *buf;
    });
    let adan = AdanConfig::new().with_weight_decay(0.02).in_one_pass();
    assert_near("adan", adan, |time, weight, grad, [m, v, n, last]| {
        let change = if time == 1 { 0.0 } else { grad - *last };
        mix(m, grad, 0.98);
        mix(v, change, 0.92);
        mix(n, (grad + 0.92 * change).powi(2), 0.99);
        *last = grad;
        let correction = |beta: f64| 1.0 - beta.powi(time as i32);
        let root = (*n / correction(0.99)).sqrt() + 1e-8;
        let update = (*m / correction(0.98) + 0.92 * *v / correction(0.92)) / root;
        *weight = (*weight - LR * update) / (1.0 + LR * 0.02);
    });
}
