//! Rounding to bf16 on the device: by chance, and with the other half of the bits beside it.

use burn::backend::Flex;
use burn::tensor::ops::FloatTensor;
use burn::tensor::{DType, Int, Tensor, TensorPrimitive};
use burn_gradient_release_optim::{Noise, RoundToBf16};

use super::Inner;
use super::one_pass::{gradient, numbers};
use crate::harness::turn;

/// Numbers of many magnitudes, some of which bf16 cannot tell apart.
fn exact<B: RoundToBf16, const D: usize>(shape: [usize; D]) -> FloatTensor<B> {
    let mut data = gradient::<B, D>(1, shape).into_data();
    let exact = data.as_mut_slice::<f32>().expect("they are `f32`");
    for (number, place) in exact.iter_mut().zip(0..) {
        match place {
            5 => *number = f32::INFINITY,
            6 => *number = f32::MAX,
            7 => *number = -0.0,
            // One more would be a zero.
            8 => *number = f32::from_bits(0x7fff_ffff),
            _ => {}
        }
    }
    let tensor = Tensor::<B, D>::from_data(data, &Default::default());
    tensor.into_primitive().tensor()
}

/// The numbers as bits; every NaN counts as one.
fn bits<B: RoundToBf16, const D: usize>(tensor: FloatTensor<B>) -> Vec<u32> {
    let tensor = Tensor::<B, D>::from_primitive(TensorPrimitive::Float(tensor));
    let mut bits: Vec<_> = numbers(tensor.cast(DType::F32))
        .into_iter()
        .map(f32::to_bits)
        .collect();
    if let Some(bits) = bits.get_mut(8) {
        assert!(f32::from_bits(*bits).is_nan());
        *bits = 0;
    }
    bits
}

fn rounded<B: RoundToBf16, const D: usize>(shape: [usize; D], noise: Noise) -> Vec<u32> {
    bits::<B, D>(B::round_stochastically(exact::<B, D>(shape), noise))
}

/// Both halves, and what is made of them again.
fn halves<B: RoundToBf16, const D: usize>(shape: [usize; D]) -> (Vec<u32>, Vec<i32>, Vec<u32>) {
    let (nearest, low) = B::split(exact::<B, D>(shape));
    let words = Tensor::<B, 1, Int>::from_primitive(low.clone()).into_data();
    let upper = bits::<B, D>(nearest.clone());
    let joined = bits::<B, D>(B::rejoin(nearest, low));
    (upper, words.to_vec().expect("they are words"), joined)
}

#[test]
fn numbers_are_those_of_the_processor() {
    turn::take::<Inner>();
    for key in [0, 1, 7 << 32 | 3] {
        let noise = Noise::of_step(7, key);
        assert!(rounded::<Inner, 1>([257], noise) == rounded::<Flex, 1>([257], noise));
        assert!(rounded::<Inner, 2>([129, 300], noise) == rounded::<Flex, 2>([129, 300], noise));
        assert!(rounded::<Inner, 2>([0, 3], noise).is_empty());
    }
    let [one, other] = [1, 2].map(|key| rounded::<Inner, 1>([257], Noise::of_step(7, key)));
    assert!(one != other);
}

#[test]
fn halves_are_those_of_the_processor() {
    fn check<const D: usize>(shape: [usize; D]) {
        let (nearest, low, joined) = halves::<Inner, D>(shape);
        assert_eq!(nearest, halves::<Flex, D>(shape).0);
        assert_eq!(low, halves::<Flex, D>(shape).1);
        assert_eq!(joined, bits::<Flex, D>(exact::<Flex, D>(shape)));
        assert!(nearest.iter().all(|bits| bits & 0xffff == 0));
        assert!(shape.contains(&0) || nearest != joined);
    }
    turn::take::<Inner>();
    check([257]);
    check([129, 300]);
    check([64, 64]);
    check([0, 3]);
}
