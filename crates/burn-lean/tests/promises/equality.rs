//! The weights of plain Burn, bit for bit, for many kinds of model, on all devices.

use burn::nn::{RmsNorm, SwiGlu, SwiGluConfig};
use burn::tensor::module::{avg_pool2d, conv2d};
use burn::tensor::ops::{AvgPoolOptions, ConvOptions};

use crate::harness::prelude::*;

const STEPS: usize = 8;

fn assert_equal<M: Module>(
    make: impl Fn(&Device) -> M,
    loss: impl Fn(&M, usize, &Device) -> Tensor<1>,
) {
    for device in devices() {
        assert_equal_on(&device, &make, &loss);
    }
}

/// In each step every parameter is stepped inside backward, and has the bits of plain Burn.
fn assert_equal_on<M: Module>(
    device: &Device,
    make: impl Fn(&Device) -> M,
    loss: impl Fn(&M, usize, &Device) -> Tensor<1>,
) {
    let make = || seeded(device, &make);
    both_ways(BOTH, STEPS, make, |model, step| loss(model, step, device));
}

fn linear(inputs: usize, outputs: usize, device: &Device) -> Linear {
    LinearConfig::new(inputs, outputs).init(device)
}

type Residual = Vec<[Linear; 2]>;

fn residual(device: &Device) -> Residual {
    let pair = |_| [linear(8, 16, device), linear(16, 8, device)];
    (0..4).map(pair).collect()
}

fn residual_loss(pairs: &Residual, step: usize, device: &Device) -> Tensor<1> {
    let mut x = numbers([4, 8], step, device);
    for [up, down] in pairs {
        x = x.clone() + down.forward(relu(up.forward(x)));
    }
    x.square().mean()
}

#[test]
fn mlp_with_residuals() {
    assert_equal(residual, residual_loss);
}

type Gated = Vec<(RmsNorm, SwiGlu, Linear)>;

fn gated(device: &Device) -> Gated {
    let block = |_| {
        let norm = RmsNormConfig::new(8).init(device);
        let gate = SwiGluConfig::new(8, 12).init(device);
        (norm, gate, linear(12, 8, device))
    };
    (0..3).map(block).collect()
}

fn gated_loss(blocks: &Gated, step: usize, device: &Device) -> Tensor<1> {
    let mut x: Tensor<2> = numbers([4, 8], step, device);
    for (norm, gate, down) in blocks {
        x = x.clone() + down.forward(gate.forward(norm.forward(x)));
    }
    x.square().mean()
}

#[test]
fn swiglu() {
    assert_equal(gated, gated_loss);
}

#[test]
fn balanced_checkpointing_of_burn() {
    for device in devices() {
        let device = device.gradient_checkpointing();
        assert_equal_on(&device, gated, gated_loss);
        assert_equal_on(&device, residual, residual_loss);
    }
}

#[derive(Module, Debug)]
struct Parts {
    frozen: Linear,
    used: Linear,
    dead: Linear,
    unused: Linear,
    last: Linear,
}

impl Parts {
    fn new(device: &Device) -> Self {
        let layer = || linear(6, 6, device);
        Self {
            frozen: seeded(device, |_| layer()).no_grad(),
            used: layer(),
            dead: layer(),
            unused: layer(),
            last: layer(),
        }
    }

    /// A weight also has uses that the loss does not depend on: before, after and above the one
    /// that counts.
    fn loss(&self, step: usize, device: &Device) -> Tensor<1> {
        let x = self.frozen.forward(numbers([3, 6], step, device));
        let x = self.used.forward(x).tanh();
        let _dead = self.dead.forward(x.clone()).sum();
        let _before = self.last.forward(x.clone());
        let out = self.last.forward(x);
        let _after = self.used.forward(self.last.forward(out.clone()));
        out.square().mean()
    }
}

#[test]
fn frozen_dead_and_unused_parts() {
    assert_equal(Parts::new, Parts::loss);
}

/// A generator and a critic in one loss, each with an optimizer and a rate of its own.
#[test]
fn two_models_in_one_loss() {
    type Pair = [Linear; 2];
    let make = |inputs| move |device: &Device| [linear(inputs, 6, device), linear(6, 5, device)];
    let forward = |[up, down]: &Pair, x| down.forward(gelu(up.forward(x)));
    for device in devices() {
        let loss = |first: &Pair, second: &Pair, step| {
            let x: Tensor<2> = numbers([3, 4], step, &device);
            forward(second, forward(first, x)).square().mean()
        };
        for (name, optim) in BOTH {
            let models = (seeded(&device, make(4)), seeded(&device, make(5)));
            let (mut plain, mut plain_optims) = (models.clone(), (optim(), momentum()));
            let mut models = models;
            let mut first_optim = optim().with_gradient_release();
            let mut second_optim = momentum().with_gradient_release();
            for step in 0..STEPS {
                let mut grads = loss(&plain.0, &plain.1, step).backward();
                let of_first = GradientsParams::from_module(&mut grads, &plain.0);
                let of_second = GradientsParams::from_module(&mut grads, &plain.1);
                plain.0 = plain_optims.0.step(LR, plain.0, of_first);
                plain.1 = plain_optims.1.step(LR / 2.0, plain.1, of_second);

                let loss = loss(&models.0, &models.1, step);
                let parts = (
                    first_optim.stepping(LR, models.0),
                    second_optim.stepping(LR / 2.0, models.1),
                );
                (models, _) = burn_lean::backward(loss, parts);
                let what = format!("{name}, {device:?}, after step {step}");
                assert_bits(&bits(&models), &bits(&plain), &what);
                let reports =
                    [&first_optim, &second_optim].map(|it| it.last_step().unwrap().clone());
                assert_released(&reports, &what);
            }
        }
    }
}

type Fan = (Linear, Vec<Linear>);

fn fan(device: &Device) -> Fan {
    let branch = |_| linear(12, 12, device);
    (linear(12, 12, device), (0..5).map(branch).collect())
}

fn fan_input(fan: &Fan, step: usize, device: &Device) -> Tensor<2> {
    fan.0.forward(numbers([8, 12], step, device)).tanh()
}

/// An activation with five uses: the sum of its gradients has an order.
#[test]
fn fan_out_summed_forward_and_in_reverse() {
    for reversed in [false, true] {
        assert_equal(fan, |fan, step, device| {
            let x = fan_input(fan, step, device);
            let outs = fan.1.iter().map(|branch| branch.forward(x.clone()));
            let mut outs: Vec<_> = outs.collect();
            if reversed {
                outs.reverse();
            }
            let sum = outs.into_iter().reduce(Tensor::add);
            sum.expect("there are five").square().mean()
        });
    }
}

/// The gradient of a parameter with three uses adds up as in plain Burn, in whatever order.
#[test]
fn one_convolution_on_three_scales() {
    let make = |device: &Device| -> Param<Tensor<4>> {
        Param::from_tensor(Tensor::zeros([4, 3, 3, 3], device))
    };
    assert_equal(make, |kernel, step, device| {
        let half = |x: Tensor<4>| avg_pool2d(x, AvgPoolOptions::new([2, 2]));
        let loss = |x: Tensor<4>| {
            let options = ConvOptions::new([1, 1], [1, 1], [1, 1], 1);
            let x = conv2d(x, kernel.val(), None, options);
            x.tanh().square().mean()
        };
        let large = numbers([2, 3, 16, 16], step, device);
        let medium = half(large.clone());
        let small = half(medium.clone());
        loss(medium) + loss(large) + loss(small)
    });
}
