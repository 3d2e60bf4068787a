//! The weights of plain Burn, bit for bit, for many kinds of model, on all devices.

use burn::nn::{RmsNorm, SwiGlu, SwiGluConfig};
use burn::tensor::module::{avg_pool2d, conv2d};
use burn::tensor::ops::{AvgPoolOptions, ConvOptions};

use crate::harness::prelude::*;

const STEPS: usize = 8;

/// In each step every parameter is stepped inside backward, and has the bits of plain Burn: on each
/// backend, and with Burn's own recomputation of what is cheap.
fn assert_equal<M: Module>(
    make: impl Fn(&Device) -> M,
    loss: impl Fn(&M, usize, &Device) -> Tensor<1>,
) {
    let checkpointing = devices().into_iter().map(Device::gradient_checkpointing);
    for device in devices().into_iter().chain(checkpointing) {
        let make = || seeded(&device, &make);
        let loss = |model: &M, step| loss(model, step, &device);
        both_ways(BOTH, STEPS, make, loss);
        let mut optim = momentum().with_gradient_release();
        let model = release_step(make(), &mut optim, |model| loss(model, 0));
        assert!(model.devices() == [device], "its strategy stays");
    }
}

fn linear(inputs: usize, outputs: usize, device: &Device) -> Linear {
    LinearConfig::new(inputs, outputs).init(device)
}

#[test]
fn gated_blocks_with_residuals() {
    let make = |device: &Device| -> Vec<(RmsNorm, SwiGlu, Linear)> {
        let block = |_| {
            let norm = RmsNormConfig::new(8).init(device);
            let gate = SwiGluConfig::new(8, 12).init(device);
            (norm, gate, linear(12, 8, device))
        };
        (0..3).map(block).collect()
    };
    assert_equal(make, |blocks, step, device| {
        let mut x: Tensor<2> = numbers([4, 8], step, device);
        for (norm, gate, down) in blocks {
            x = x.clone() + down.forward(gate.forward(norm.forward(x)));
        }
        x.square().mean()
    });
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

/// An activation with five uses: the sum of its gradients has an order.
#[test]
fn fan_out_summed_forward_and_in_reverse() {
    let make =
        |device: &Device| -> Vec<Linear> { (0..6).map(|_| linear(12, 12, device)).collect() };
    for reversed in [false, true] {
        assert_equal(make, |layers, step, device| {
            let x = layers[0]
                .forward(numbers::<2>([8, 12], step, device))
                .tanh();
            let outs = layers[1..].iter().map(|branch| branch.forward(x.clone()));
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
