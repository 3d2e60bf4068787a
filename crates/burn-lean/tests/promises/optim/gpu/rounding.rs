//! Rounding to bf16 by chance on the device: the numbers of the processor.

use burn::tensor::{DType, Device, Tensor, TensorData};
use burn_lean::optim::{Rounding, Stochastic};

use super::{gradient, numbers, wgpu};

fn rounded<const D: usize>(
    shape: [usize; D],
    (seed, time): (u64, usize),
    device: &Device,
) -> Vec<f32> {
    let mut exact = numbers(gradient(1, shape, device));
    for (place, number) in [
        (5, f32::INFINITY),
        (6, f32::MAX),
        (7, -0.0),
        // One more would be a zero.
        (8, f32::from_bits(0x7fff_ffff)),
    ] {
        exact[place] = number;
    }
    let exact: Tensor<D> = Tensor::from_data(TensorData::new(exact, shape), device);
    let (rounded, kept) = Stochastic { seed }.round(exact, time);
    assert!(kept.is_none());
    assert_eq!(rounded.dtype(), DType::BF16);
    let mut rounded = numbers(rounded.cast(DType::F32));
    assert!(rounded[8].is_nan());
    rounded[8] = 0.0;
    rounded
}

#[test]
fn numbers_are_those_of_the_processor() {
    let (wgpu, flex) = (wgpu(), Device::flex());
    for of in [(0, 1), (1, 1), (7, 3 << 33)] {
        assert!(rounded([257], of, &wgpu) == rounded([257], of, &flex));
        assert!(rounded([129, 300], of, &wgpu) == rounded([129, 300], of, &flex));
    }
    assert!(rounded([257], (0, 1), &wgpu) != rounded([257], (0, 2), &wgpu));
}
