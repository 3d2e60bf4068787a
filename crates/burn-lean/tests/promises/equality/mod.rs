//! The weights of plain Burn, bit for bit, for many kinds of model, on all devices, with both
//! optimizers and both first passes.

mod fan_out;
mod unreported;

use std::slice::from_ref;

use burn::nn::transformer::TransformerEncoder;
use burn::nn::{RmsNorm, SwiGlu, SwiGluConfig};

use crate::harness::prelude::*;
use crate::harness::{FIRST_PASSES, Named, distance};

const STEPS: usize = 12;

fn assert_equal<M: Module>(
    make: impl Fn(&Device) -> M,
    loss: impl Fn(&M, usize, &Device) -> Tensor<1>,
) {
    for device in devices() {
        assert_equal_on(&device, BOTH, FIRST_PASSES, &make, &loss);
    }
}

/// In each step every parameter is stepped inside backward, and has the bits of plain Burn.
fn assert_equal_on<M: Module>(
    device: &Device,
    optims: &[Named],
    first_passes: &[FirstPass],
    make: impl Fn(&Device) -> M,
    loss: impl Fn(&M, usize, &Device) -> Tensor<1>,
) {
    let make = || seeded(device, &make);
    let loss = |model: &M, step| loss(model, step, device);
    for run in both_ways(optims, first_passes, STEPS, make, loss) {
        run.assert_released();
    }
}

fn linear(inputs: usize, outputs: usize, device: &Device) -> Linear {
    LinearConfig::new(inputs, outputs).init(device)
}

fn cross_entropy(logits: Tensor<2>, step: usize) -> Tensor<1> {
    let ([rows, classes], device) = (logits.dims(), logits.device());
    let targets = ids([rows], step, classes, &device);
    CrossEntropyLossConfig::new()
        .init(&device)
        .forward(logits, targets)
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

#[derive(Module, Debug)]
struct Former {
    embedding: Embedding,
    body: TransformerEncoder,
    head: Linear,
}

impl Former {
    fn new(device: &Device) -> Self {
        let body = TransformerEncoderConfig::new(8, 16, 2, 2).with_dropout(0.0);
        Self {
            embedding: EmbeddingConfig::new(20, 8).init(device),
            body: body.with_norm_first(true).init(device),
            head: linear(8, 20, device),
        }
    }

    fn loss(&self, step: usize, device: &Device) -> Tensor<1> {
        let x = self.embedding.forward(ids([2, 5], step, 20, device));
        let x = self.body.forward(TransformerEncoderInput::new(x));
        cross_entropy(self.head.forward(x).reshape([10, 20]), step + 1)
    }
}

#[test]
fn transformer() {
    assert_equal(Former::new, Former::loss);
}

#[test]
fn tied_embedding() {
    let make = |device: &Device| -> (Embedding, Linear) {
        let embedding = EmbeddingConfig::new(20, 8).init(device);
        (embedding, linear(8, 8, device))
    };
    assert_equal(make, |(embedding, middle), step, device| {
        let x = embedding.forward(ids([3, 4], step, 20, device));
        let x = gelu(middle.forward(x)).reshape([12, 8]);
        cross_entropy(x.matmul(embedding.weight.val().transpose()), step + 1)
    });
}

#[test]
fn rnn_that_reads_its_weight_once_or_each_time() {
    for once in [true, false] {
        let make = |device: &Device| {
            let hidden = Param::from_tensor(numbers::<2>([6, 6], 0, device));
            (hidden, linear(4, 6, device))
        };
        assert_equal(make, |(hidden, input), step, device| {
            let weight = hidden.val();
            let mut x = Tensor::zeros([2, 6], device);
            for time in 0..5 {
                let weight = if once { weight.clone() } else { hidden.val() };
                let input = input.forward(numbers([2, 4], step * 5 + time, device));
                x = (x.matmul(weight) + input).tanh();
            }
            x.square().mean()
        });
    }
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
        assert_equal_on(&device, BOTH, FIRST_PASSES, gated, gated_loss);
        assert_equal_on(&device, BOTH, FIRST_PASSES, residual, residual_loss);
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
        let models = || (seeded(&device, make(4)), seeded(&device, make(5)));
        let gradients = |first: &Pair, second: &Pair, step| {
            let x: Tensor<2> = numbers([3, 4], step, &device);
            let loss = forward(second, forward(first, x)).square().mean();
            let mut grads = loss.backward();
            let of_first = GradientsParams::from_module(&mut grads, first);
            (of_first, GradientsParams::from_module(&mut grads, second))
        };
        for (name, optim) in BOTH {
            let (mut first, mut second) = models();
            let (mut first_optim, mut second_optim) = (optim(), momentum());
            let mut expected = Vec::new();
            for step in 0..STEPS {
                let grads = gradients(&first, &second, step);
                first = first_optim.step(LR, first, grads.0);
                second = second_optim.step(LR / 2.0, second, grads.1);
                expected.push((bits(&first), bits(&second)));
            }

            let (mut first, mut second) = models();
            let mut first_optim = optim().with_gradient_release();
            let mut second_optim = momentum().with_gradient_release();
            for (step, expected) in expected.iter().enumerate() {
                first = first_optim.arm(LR, first);
                second = second_optim.arm(LR / 2.0, second);
                let grads = gradients(&first, &second, step);
                first = first_optim.step(LR, first, grads.0);
                second = second_optim.step(LR / 2.0, second, grads.1);
                let what = format!("{name}, {device:?}, after step {step}");
                assert_bits(&bits(&first), &expected.0, &format!("first, {what}"));
                assert_bits(&bits(&second), &expected.1, &format!("second, {what}"));
                for optim in [&first_optim, &second_optim] {
                    let report = optim.last_step().unwrap();
                    assert!(report.is_plain(), "{what}: {report:?}");
                    assert_eq!(report.count(Outcome::Ordinary), 0, "{what}: {report:?}");
                }
            }
        }
    }
}
