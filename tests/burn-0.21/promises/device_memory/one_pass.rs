//! In one pass a step needs nothing but the gradient.

use burn::nn::Embedding;
use burn::optim::RmsPropConfig;
use burn::tensor::activation::relu;
use burn_gradient_release_device_memory::DeviceMemory;
use burn_gradient_release_optim::{EightBitMoments, InOnePass, StableAdamWConfig};

use super::training::{Scales, measure};
use super::{Metered, R, memory};
use crate::harness::prelude::*;

/// Numbers in a kernel's arguments, sums, the loss: everything that is no tensor of weight size.
const SLACK: u64 = 1024 * 1024 / 10;

const WIDTH: usize = 512;
const LARGEST: u64 = (WIDTH * WIDTH * size_of::<f32>()) as u64;

#[derive(Module, Debug)]
struct DeepModel<B: Backend> {
    layers: Vec<Linear<B>>,
}

struct Deep;

impl Scenario for Deep {
    type Model<B: AutodiffBackend> = DeepModel<B>;

    fn init<B: AutodiffBackend>(_: Size, device: &B::Device) -> DeepModel<B> {
        let layers = (0..20).map(|_| LinearConfig::new(WIDTH, WIDTH).init(device));
        DeepModel {
            layers: layers.collect(),
        }
    }

    fn loss<B: AutodiffBackend>(model: &DeepModel<B>, _: Size, step: u64) -> Tensor<B, 1> {
        let mut x = noise::<B, 2>(step, [4, WIDTH], &B::Device::default());
        for layer in &model.layers {
            x = relu(layer.forward(x));
        }
        x.square().mean()
    }
}

/// Bytes that a step of a training with release needs above what its forward pass leaves.
fn above_forward<S: Scenario>(
    memory: &DeviceMemory,
    start: &Start,
    optimizer: impl SimpleOptimizer<Metered> + 'static,
) -> u64 {
    let optim: OptimizerAdaptor<_, S::Model<R>, R> = OptimizerAdaptor::from(optimizer);
    let optim = optim.with_gradient_release();
    let measured = measure::<S, R, _>(memory, start, optim, |optim, model| optim.arm(RATE, model));
    println!("the peak is {}", measured.peak());
    measured.above_forward()
}

#[test]
#[cfg_attr(only_software, ignore = "minutes on a driver in software")]
fn a_training_step_needs_the_largest_gradient() {
    let memory = memory();
    let start = Start::new::<Deep>(Size::Large);
    let adamw = AdamWConfig::new();
    let value = GradientClippingConfig::Value(0.01);
    let value = adamw.clone().with_grad_clipping(Some(value));
    let burn = above_forward::<Deep>(&memory, &start, adamw.build());
    println!("Burn's AdamW {burn}");
    let eight_bit = || {
        adamw
            .in_one_pass()
            .with_8_bit_moments(&Vec::<Embedding<Metered>>::new())
    };
    for (name, optimizer) in [
        ("moments in 8 bits", eight_bit()),
        ("adamw", adamw.in_one_pass()),
        ("clipping by value", value.in_one_pass()),
    ] {
        let above = above_forward::<Deep>(&memory, &start, optimizer);
        println!("{name} {above}");
        assert!(above <= LARGEST + SLACK, "{name}: {above}");
    }
    assert!(
        burn > LARGEST + SLACK,
        "Burn's AdamW has got a temporary less"
    );
}

/// The gradient, and the one that flows on. Element-wise operations make one kernel with their
/// neighbours, but none across a step in one pass: no other gradient waits in it.
#[test]
fn a_fused_kernel_holds_few_gradients() {
    let memory = memory();
    let start = Start::new::<Scales>(Size::Large);
    let above = above_forward::<Scales>(&memory, &start, AdamWConfig::new().in_one_pass());
    println!("{above}");
    assert!(above <= 2 * LARGEST + SLACK, "{above}");
}

/// Bytes that the last of three steps needs beyond weight, gradient and states.
fn temporaries(memory: &DeviceMemory, optimizer: impl SimpleOptimizer<Metered>) -> u64 {
    let device = Default::default();
    let mut weight: Tensor<Metered, 2> = noise(1, [WIDTH, WIDTH], &device);
    let mut state = None;
    let mut needed = 0;
    for step in 0..3 {
        let grad: Tensor<Metered, 2> = noise(2 + step, [WIDTH, WIDTH], &device);
        let before = memory.usage().in_use;
        memory.reset_peak();
        (weight, state) = optimizer.step(RATE, weight, grad, state);
        memory.usage();
        needed = memory.peak().in_use - before;
    }
    needed
}

fn needs_none(memory: &DeviceMemory, name: &str, optimizer: impl SimpleOptimizer<Metered>) {
    let needed = temporaries(memory, optimizer);
    println!("{name} {needed}");
    assert!(needed < LARGEST / 32, "{name}: {needed}");
}

#[test]
fn a_step_needs_no_temporary() {
    let memory = memory();
    let burn = temporaries(&memory, AdamWConfig::new().build());
    assert!(
        burn >= LARGEST,
        "{burn}: Burn's AdamW has got a temporary less"
    );
    let centered = RmsPropConfig::new().with_centered(true);
    let none = Vec::<Embedding<Metered>>::new();
    let eight_bit = AdamWConfig::new().in_one_pass().with_8_bit_moments(&none);
    needs_none(&memory, "adamw", AdamWConfig::new().in_one_pass());
    needs_none(&memory, "adamw, moments in 8 bits", eight_bit);
    needs_none(&memory, "rmsprop", RmsPropConfig::new().in_one_pass());
    needs_none(&memory, "rmsprop, centered", centered.in_one_pass());
    needs_none(&memory, "stable adamw", StableAdamWConfig::new().build());
}
