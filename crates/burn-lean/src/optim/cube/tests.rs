//! Rounding to bf16, as far as wgpu can: it has no tensors of bf16.

use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use lean_arithmetic::optim::{Noise, Split};

use super::super::flex;
use super::{rejoin, round_stochastically, split};

/// Numbers of many magnitudes, some of which differ only in bits that bf16 lacks.
fn exact<const D: usize>(shape: [usize; D], device: &Device) -> Tensor<D> {
    let number = |place: usize| match place {
        5 => f32::INFINITY,
        6 => f32::MAX,
        7 => -0.0,
        // One more would be a zero.
        8 => f32::from_bits(0x7fff_ffff),
        _ => (place as f32 * 0.37).sin() * 10f32.powi(place as i32 % 9 - 4),
    };
    let numbers: Vec<f32> = (0..shape.iter().product()).map(number).collect();
    Tensor::from_data(TensorData::new(numbers, shape), device)
}

fn numbers<const D: usize>(rounded: Tensor<D>) -> Vec<f32> {
    let mut rounded: Vec<f32> = rounded.try_into_vec_as().expect("they are floats");
    assert!(rounded[8].is_nan());
    rounded[8] = 0.0;
    rounded
}

#[test]
fn numbers_are_those_of_the_processor() {
    fn check<const D: usize>(shape: [usize; D]) {
        let (wgpu, flex) = (Device::wgpu(Default::default()), Device::flex());
        for seed in [0, 1, 7 << 32 | 3] {
            let noise = Noise::of_step(seed, 3);
            let found = numbers(round_stochastically(exact(shape, &wgpu), noise));
            let expected = flex::round_stochastically(exact(shape, &flex), noise);
            assert!(found == numbers(expected.cast(DType::F32)), "{seed}");
            let unrounded = numbers(exact(shape, &wgpu));
            assert!(found != unrounded, "{seed}");
        }
    }
    check([257]);
    check([129, 300]);
}

#[test]
fn halves_are_those_of_the_processor() {
    fn check<const D: usize>(kind: Split, shape: [usize; D]) {
        let (wgpu, flex) = (Device::wgpu(Default::default()), Device::flex());
        for noise in [None, Some(Noise::of_step(7, 3))] {
            let (nearest, low) = split(kind, exact(shape, &wgpu), noise);
            let (expected, expected_low) = flex::split(kind, exact(shape, &flex), noise);
            let words = |low: Tensor<1, Int>| low.try_into_vec_as::<i32>().expect("they are words");
            assert_eq!(words(low.clone()), words(expected_low.clone()), "{kind:?}");
            assert!(
                numbers(nearest.clone()) == numbers(expected.clone()),
                "{kind:?}"
            );
            let rejoined = numbers(rejoin(kind, nearest.clone(), low));
            let expected = numbers(flex::rejoin(kind, expected, expected_low));
            assert!(rejoined == expected, "{kind:?}");
            assert!(rejoined != numbers(nearest), "{kind:?}");
            if kind == Split::Bf16In32 {
                assert!(rejoined == numbers(exact(shape, &flex)));
            }
        }
    }
    for kind in [Split::Bf16In32, Split::Bf16In24, Split::F16In24] {
        check(kind, [257]);
        check(kind, [129, 300]);
        check(kind, [64, 64]);
    }
}

#[test]
fn a_matrix_without_rows_is_rounded_and_split() {
    let device = Device::wgpu(Default::default());
    let empty = || -> Tensor<2> { exact([0, 4], &device) };
    let rounded = round_stochastically(empty(), Noise::of_step(1, 1));
    let (nearest, low) = split(Split::Bf16In24, empty(), None);
    let rejoined = rejoin(Split::Bf16In24, nearest, low);
    assert_eq!([rounded.dims(), rejoined.dims()], [[0, 4]; 2]);
}

#[test]
fn rounding_is_in_place() {
    // 16 MiB, of which other tests that run at the same time take a small part.
    let (shape, device) = ([4096, 1024], Device::wgpu(Default::default()));
    let reserved = || {
        device.sync().unwrap();
        let usage = device.memory_pool_usage();
        usage.expect("it is known").bytes_reserved
    };
    let exact = exact(shape, &device);
    device.sync().unwrap();
    device.memory_cleanup();
    let before = reserved();
    let rounded = round_stochastically(exact, Noise::of_step(1, 1));
    assert!(reserved() < before + 8 * 1024 * 1024);
    drop(rounded);
}
