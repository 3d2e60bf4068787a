//! Moments in 8 bits on the device: the weights of the processor up to rounding, and its codes but
//! for a few.

use crate::harness::prelude::*;
use burn::optim::{LionConfig, Optimizer};
use burn_lean::optim::{EightBitMoments, InOnePass, StableAdamWConfig};

use super::super::run::Run;
use super::super::side::Saved;
use super::{RATE, assert_near, gradient, numbers, weight, wgpu};

const STEPS: u64 = 6;

/// Without embeddings.
fn model() -> impl Module {
    Vec::<Linear>::new()
}

/// The weights and the record after a step from there.
fn stepped<const D: usize>(
    optimizer: &impl Optimizer,
    step: u64,
    (weight, record): (&[f32], Option<&Saved>),
    shape: [usize; D],
    device: &Device,
) -> (Vec<f32>, Saved) {
    let weight = Tensor::from_data(TensorData::new(weight.to_vec(), shape), device);
    let mut run = Run::new(optimizer.clone(), weight);
    record.into_iter().for_each(|record| run.load(record));
    run.step(RATE, gradient(step, shape, device));
    (run.weights(), run.saved())
}

/// Steps on the device and on the processor, each time from the processor's weights and states.
fn as_on_the_processor<const D: usize>(name: &str, shape: [usize; D], optimizer: impl Optimizer) {
    let (wgpu, flex) = (wgpu(), Device::flex());
    let mut weights = numbers(weight(shape, &flex));
    let mut record = None;
    for step in 0..STEPS {
        let context = format!("{name} {shape:?} after step {step}");
        let from = (weights.as_slice(), record.as_ref());
        let (found, codes) = stepped(&optimizer, step, from, shape, &wgpu);
        let (expected, expected_codes) = stepped(&optimizer, step, from, shape, &flex);
        assert_near(&found, &expected, 0, &context);
        assert_ne!(found, weights, "{context}");
        // A number in the middle of two codes may get either, and a scale another last bit.
        assert_eq!(codes.scalars, expected_codes.scalars, "{context}");
        let bytes = |saved: &Saved| {
            let tensors = saved.tensors.values();
            tensors.flat_map(|(_, _, bytes)| bytes.clone()).collect()
        };
        let (found_bytes, expected_bytes): (Vec<u8>, Vec<u8>) =
            (bytes(&codes), bytes(&expected_codes));
        assert_eq!(found_bytes.len(), expected_bytes.len(), "{context}");
        let pairs = found_bytes.iter().zip(&expected_bytes);
        let others = pairs.filter(|(one, other)| one != other).count();
        let count = found_bytes.len();
        assert!(
            others * 200 <= count,
            "{context}: {others} bytes of {count}"
        );
        (weights, record) = (expected, Some(expected_codes));
    }
}

#[test]
fn weights_and_codes_are_as_on_the_processor() {
    macro_rules! check {
        ($name:literal, $optimizer:expr) => {{
            let optimizer = || $optimizer.with_8_bit_moments(&model());
            // Whole blocks and a ragged one; odd numbers of elements, so that a word is not full.
            as_on_the_processor($name, [64, 64], optimizer());
            as_on_the_processor($name, [4099], optimizer());
            as_on_the_processor($name, [3, 67, 62], optimizer());
        }};
    }
    check!("adam", AdamConfig::new().in_one_pass());
    let amsgrad = AdamWConfig::new().with_amsgrad(true);
    check!("adamw, amsgrad", amsgrad.in_one_pass());
    let sgd = SgdConfig::new().with_momentum(Some(MomentumConfig::new()));
    check!("sgd", sgd.in_one_pass());
    check!("lion", LionConfig::new().in_one_pass());
    check!("stable adamw", StableAdamWConfig::new().build());
}

/// A number that is not finite is its weight, and leaves the others of its block as they are.
#[test]
fn what_is_not_finite_takes_one_weight() {
    let (shape, wgpu) = ([4096], wgpu());
    for bad in [f32::NAN, f32::INFINITY] {
        let adam = AdamConfig::new().in_one_pass().with_8_bit_moments(&model());
        let mut run = Run::new(adam, weight(shape, &wgpu));
        let mut grad = numbers(gradient(1, shape, &wgpu));
        grad[300] = bad;
        run.step(RATE, Tensor::from_data(TensorData::new(grad, shape), &wgpu));
        run.step(RATE, gradient(2, shape, &wgpu));
        for (place, weight) in run.weights().iter().enumerate() {
            assert_eq!(weight.is_finite(), place != 300, "{bad}: {place}");
        }
    }
}
