//! One pass on the Cube backend, through wgpu on whatever Vulkan finds: Burn's weights up to
//! rounding, and nobody's buffer but their own.

mod eight_bit;
mod in_place;
mod one_pass;

use crate::harness::prelude::*;

use super::noise::Noise;

fn wgpu() -> Device {
    Device::wgpu(Default::default())
}

/// By how much a weight may differ after a step, for each step so far; relative for weights above
/// one. A step moves a weight by a hundredth. A driver may fuse a product and a sum, and need not
/// round roots and quotients correctly.
const PER_STEP: f32 = 1e-6;

const RATE: f64 = 1e-2;

fn weight<const D: usize>(shape: [usize; D], device: &Device) -> Tensor<D> {
    Noise(99).tensor(shape, device, Noise::number)
}

/// Of many magnitudes, and here and there zero. Some are larger than all before them: what
/// StableAdamW goes slower for.
fn gradient<const D: usize>(step: u64, shape: [usize; D], device: &Device) -> Tensor<D> {
    let mut noise = Noise(step);
    let number = |place: usize| {
        let number = noise.number() * if step % 4 == 2 { 10.0 } else { 1.0 };
        match place % 7 {
            0 if place > 0 => 0.0,
            1 => 20.0 * number,
            _ => number * number.abs(),
        }
    };
    let numbers: Vec<f32> = (0..shape.iter().product()).map(number).collect();
    Tensor::from_data(TensorData::new(numbers, shape), device)
}

fn numbers<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.try_into_vec_as().expect("they are floats")
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
