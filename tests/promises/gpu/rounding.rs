//! Rounding to bf16 by chance on the device.

use burn::backend::Flex;
use burn::tensor::{DType, Tensor, TensorPrimitive};
use burn_lean_optim::{Noise, RoundStochastically};

use super::Inner;
use super::one_pass::{gradient, numbers};
use crate::harness::turn;

fn rounded<B: RoundStochastically, const D: usize>(shape: [usize; D], noise: Noise) -> Vec<f32> {
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
    let TensorPrimitive::Float(tensor) = tensor.into_primitive() else {
        unreachable!("it is of floats");
    };
    let rounded = B::round_stochastically(tensor, noise);
    let mut rounded =
        numbers(Tensor::<B, D>::from_primitive(TensorPrimitive::Float(rounded)).cast(DType::F32));
    if let Some(number) = rounded.get_mut(8) {
        assert!(number.is_nan());
        *number = 0.0;
    }
    rounded
}

#[test]
fn numbers_are_those_of_the_processor() {
    turn::take::<Inner>();
    for key in [0, 1, 7 << 32 | 3] {
        let noise = Noise::new(key);
        assert!(rounded::<Inner, 1>([257], noise) == rounded::<Flex, 1>([257], noise));
        assert!(rounded::<Inner, 2>([129, 300], noise) == rounded::<Flex, 2>([129, 300], noise));
        assert!(rounded::<Inner, 2>([0, 3], noise).is_empty());
    }
    let [one, other] = [1, 2].map(|key| rounded::<Inner, 1>([257], Noise::new(key)));
    assert!(one != other);
}
