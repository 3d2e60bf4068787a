//! Moments in 8 bits on the device: the weights of the processor up to rounding, and its codes but
//! for a few.

use burn::nn::Embedding;
use burn::record::{BinBytesRecorder, FullPrecisionSettings, Recorder};
use burn_gradient_release_optim::{EightBitMoments, InOnePass, LionConfig, StableAdamWConfig};

use super::Inner;
use super::one_pass::{PER_STEP, gradient, keeps_what_is_shared, numbers};
use crate::harness::prelude::*;

const STEPS: u64 = 6;

fn saved<O: SimpleOptimizer<B>, B: Backend, const D: usize>(state: &O::State<D>) -> Vec<u8> {
    BinBytesRecorder::<FullPrecisionSettings>::default()
        .record(state.clone(), ())
        .expect("plain data")
}

/// Steps on the device and on the processor, each time from the processor's weights and states.
fn as_on_the_processor<const D: usize>(
    name: &str,
    shape: [usize; D],
    device: impl SimpleOptimizer<Inner>,
    processor: impl SimpleOptimizer<Flex>,
) {
    /// A state of either, from the record of one.
    fn load<O: SimpleOptimizer<B>, B: Backend, const D: usize>(record: &[u8]) -> O::State<D> {
        BinBytesRecorder::<FullPrecisionSettings>::default()
            .load(record.to_vec(), &Default::default())
            .expect("the record of the other backend")
    }

    fn step<O: SimpleOptimizer<B>, B: Backend, const D: usize>(
        optimizer: &O,
        step: u64,
        weight: &[f32],
        shape: [usize; D],
        record: Option<&[u8]>,
    ) -> (Vec<f32>, Vec<u8>) {
        let weight = Tensor::<B, 1>::from_floats(weight, &Default::default()).reshape(shape);
        let state = record.map(load::<O, B, D>);
        let (weight, state) = optimizer.step(RATE, weight, gradient(step, shape), state);
        let state = state.expect("these have states");
        (numbers(weight), saved::<O, B, D>(&state))
    }

    let mut weight = numbers(noise::<Flex, D>(99, shape, &Default::default()));
    let mut record: Option<Vec<u8>> = None;
    for number in 0..STEPS {
        let context = format!("{name} {shape:?} after step {number}");
        let (found, codes) =
            step::<_, Inner, D>(&device, number, &weight, shape, record.as_deref());
        let (wanted, wanted_codes) =
            step::<_, Flex, D>(&processor, number, &weight, shape, record.as_deref());
        for (found, wanted) in found.iter().zip(&wanted) {
            let difference = (found - wanted).abs() / wanted.abs().max(1.0);
            assert!(difference <= PER_STEP, "{context}: {found}, not {wanted}");
        }
        assert!(found != weight, "{context}");
        // A number in the middle of two codes may get either, and a scale another last bit.
        assert_eq!(codes.len(), wanted_codes.len(), "{context}");
        let others = codes
            .iter()
            .zip(&wanted_codes)
            .filter(|(one, other)| one != other);
        let others = others.count();
        assert!(
            others * 200 <= codes.len(),
            "{context}: {others} bytes of {}",
            codes.len()
        );
        (weight, record) = (wanted, Some(wanted_codes));
    }
}

#[test]
#[cfg_attr(only_software, ignore = "minutes on a driver in software")]
fn weights_and_codes_are_as_on_the_processor() {
    turn::take::<Inner>();
    let none = Vec::<Embedding<Flex>>::new();
    macro_rules! check {
        ($name:literal, $optimizer:expr) => {{
            let optimizer = || $optimizer.with_8_bit_moments(&none);
            // Whole blocks and a ragged one; odd numbers of elements, so that a word is not full.
            as_on_the_processor($name, [64, 64], optimizer(), optimizer());
            as_on_the_processor($name, [4099], optimizer(), optimizer());
            as_on_the_processor($name, [3, 67, 62], optimizer(), optimizer());
        }};
    }
    check!("adam", AdamConfig::new().in_one_pass());
    let amsgrad = AdamWConfig::new().with_amsgrad(true);
    check!("adamw, amsgrad", amsgrad.clone().in_one_pass());
    let clipped = AdamWConfig::new().with_grad_clipping(Some(GradientClippingConfig::Norm(3.0)));
    check!("adamw, clipped by norm", clipped.clone().in_one_pass());
    let sgd = SgdConfig::new().with_momentum(Some(MomentumConfig::new()));
    check!("sgd", sgd.clone().in_one_pass());
    check!("lion", LionConfig::new().build());
    check!("stable adamw", StableAdamWConfig::new().build());
}

#[test]
fn what_is_shared_keeps_its_numbers() {
    let none = Vec::<Embedding<Flex>>::new();
    keeps_what_is_shared(AdamWConfig::new().in_one_pass().with_8_bit_moments(&none));
}

/// A number that is not finite is its weight, and leaves the others of its block as they are.
#[test]
fn what_is_not_finite_takes_one_weight() {
    turn::take::<Inner>();
    let optimizer = AdamConfig::new()
        .in_one_pass()
        .with_8_bit_moments(&Vec::<Embedding<Flex>>::new());
    for bad in [f32::NAN, f32::INFINITY] {
        let mut grad = gradient::<Inner, 1>(1, [4096]).into_data();
        grad.as_mut_slice::<f32>().expect("they are `f32`")[300] = bad;
        let grad = Tensor::from_data(grad, &Default::default());
        let weight = noise::<Inner, 1>(99, [4096], &Default::default());
        let (weight, state) = optimizer.step(RATE, weight, grad, None);
        let (weight, _) = optimizer.step(RATE, weight, gradient(2, [4096]), state);
        let weights = numbers(weight);
        for (place, weight) in weights.iter().enumerate() {
            assert_eq!(weight.is_finite(), place != 300, "{bad}: {place}");
        }
    }
}
