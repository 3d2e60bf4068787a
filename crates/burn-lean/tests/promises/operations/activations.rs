//! Activations.

use burn::tensor::activation;
use burn_lean::operations::{
    geglu, geglu_approximate, gelu, gelu_approximate, log_softmax, quiet_softmax, silu, softmax,
    swiglu,
};

use super::harness::{Case, coarse, noise, shaped, spread};
use crate::harness::prelude::*;

type Function = fn(Tensor<1>) -> Tensor<1>;

/// Functions of each element: by their definitions, and ours.
const FUNCTIONS: [(&str, Function, Function); 3] = [
    ("gelu", gelu_of_definition, gelu),
    (
        "gelu_approximate",
        activation::gelu_approximate,
        gelu_approximate,
    ),
    ("silu", silu_of_definition, silu),
];

// Not Burn's `gelu`, which has the gradient of an approximation.
pub(crate) fn gelu_of_definition<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    x.clone() * 0.5 * ((x * std::f64::consts::FRAC_1_SQRT_2).erf() + 1.0)
}

// Nor its sigmoid, which has the precision of `f32`. By `tanh`, whose gradient is finite far out.
pub(super) fn silu_of_definition<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    x.clone() * 0.5 * ((x * 0.5).tanh() + 1.0)
}

pub(crate) fn function(name: &str, numbers: Vec<f64>) -> Case {
    let mut functions = FUNCTIONS.into_iter();
    let (name, definition, ours) = functions.find(|(other, ..)| *other == name).unwrap();
    Case::new(
        name,
        vec![numbers],
        move |leaves| definition(leaves[0].clone()),
        move |leaves| ours(leaves[0].clone()),
    )
}

type Gated = fn(Tensor<1>, Tensor<1>) -> Tensor<1>;

/// Gated units: by the definitions of the functions of their gates, and ours.
const GATED: [(&str, Function, Gated); 3] = [
    ("swiglu", silu_of_definition, swiglu),
    ("geglu", gelu_of_definition, geglu),
    (
        "geglu_approximate",
        activation::gelu_approximate,
        geglu_approximate,
    ),
];

pub(crate) fn gated_cases(gate: Vec<f64>, up: Vec<f64>) -> [Case; 3] {
    GATED.map(|(name, definition, ours)| {
        Case::new(
            name,
            vec![gate.clone(), up.clone()],
            move |leaves| definition(leaves[0].clone()) * leaves[1].clone(),
            move |leaves| ours(leaves[0].clone(), leaves[1].clone()),
        )
    })
}

#[test]
fn gated_units_are_those_of_their_definitions() {
    for gate in [spread(0.0, 6.0, 1001, 5), noise(1, 1), vec![]] {
        let up = noise(gate.len(), 2);
        let [_, geglu, approximate] = gated_cases(gate, up);
        geglu.assert_equal(8.0);
        approximate.assert_equal(16.0);
    }
}

#[test]
fn functions_of_each_element_are_those_of_their_definitions() {
    for numbers in [spread(0.0, 6.0, 1001, 5), noise(1, 1), vec![]] {
        function("gelu", numbers.clone()).assert_equal(8.0);
        function("gelu_approximate", numbers.clone()).assert_equal(16.0);
        assert_silu(&function("silu", numbers));
    }
    // Several chunks: a row is as long as the last axis.
    const LARGE: [usize; 2] = [601, 515];
    let large = Case::new(
        "gelu in chunks",
        vec![noise(LARGE[0] * LARGE[1], 2)],
        |leaves| gelu_of_definition(leaves[0].clone()),
        |leaves| gelu(shaped(&leaves[0], LARGE)).flatten(0, 1),
    );
    large.assert_equal(8.0);
}

/// The value of `silu` is Burn's, which is one of `f32` in `f64` too; the gradient is not.
fn assert_silu(case: &Case) {
    let expected = case.expected();
    for device in devices() {
        for (dtype, epsilon) in [(DType::F64, 1e-15), (DType::F32, 1e-6)] {
            let found = case.found(&device, dtype);
            for (found, expected) in found.grads[0].iter().zip(&expected.grads[0]) {
                assert!((found - expected).abs() <= epsilon, "{found} {expected}");
            }
            for (found, expected) in found.value.iter().zip(&expected.value) {
                assert!((found - expected).abs() <= 5e-6, "{found} {expected}");
            }
        }
    }
}

#[cfg(feature = "ndarray")]
#[test]
fn the_gradient_of_gelu_is_nearer_to_the_truth_than_burns() {
    #[allow(deprecated)] // Burn 0.22 deprecates NdArray.
    let ndarray = Device::ndarray().autodiff();
    let inputs = [spread(0.0, 6.0, 1001, 5)];
    let truth = function("gelu", inputs[0].clone()).expected();
    let error = |function: Function| {
        let op = |leaves: &[Tensor<1>]| function(leaves[0].clone());
        let found = super::harness::run(&ndarray, DType::F32, &inputs, &op);
        let pairs = found.grads[0].iter().zip(&truth.grads[0]);
        pairs.fold(0.0_f64, |max, (a, b)| max.max((a - b).abs()))
    };
    let (ours, plain) = (error(gelu), error(activation::gelu));
    println!("errors of the gradient of gelu on NdArray: ours {ours:e}, Burn's {plain:e}");
    assert!(ours < 1e-6 && 100.0 * ours < plain, "{ours:e} {plain:e}");
}

#[test]
fn numbers_far_out_have_the_slope_of_the_line() {
    for far in [1e4, 1e20, 3e38] {
        for (name, ..) in FUNCTIONS {
            let case = function(name, vec![far, -far, 0.0]);
            let found = case.found(&flex(), DType::F32).grads.remove(0);
            let weights = coarse(3);
            let expected = [weights[0], 0.0, 0.5 * weights[2]];
            for (found, expected) in found.iter().zip(expected) {
                let difference = (found - expected).abs();
                assert!(difference < 1e-6, "{name}, {far:e}: {found} {expected}");
            }
        }
    }
}

#[test]
fn a_nan_stays_one() {
    for (name, ..) in FUNCTIONS {
        for device in devices() {
            let case = function(name, vec![1.0, f64::NAN, -1.0]);
            for tensor in case.found(&device, DType::F32).tensors() {
                let is_nan: Vec<_> = tensor.iter().map(|x| x.is_nan()).collect();
                assert_eq!(is_nan, [false, true, false], "{name} on {device:?}");
            }
        }
    }
}

type AlongAxis = fn(Tensor<3>, usize) -> Tensor<3>;

/// Burn's, and ours.
const ALONG_AXIS: [(&str, AlongAxis, AlongAxis); 3] = [
    ("softmax", activation::softmax, softmax),
    ("quiet_softmax", activation::quiet_softmax, quiet_softmax),
    ("log_softmax", activation::log_softmax, log_softmax),
];

pub(crate) fn along_axes(numbers: Vec<f64>, dims: [usize; 3], axis: usize) -> [Case; 3] {
    ALONG_AXIS.map(|(name, plain, ours)| {
        Case::new(
            format!("{name} along {axis} of {dims:?}"),
            vec![numbers.clone()],
            move |leaves| plain(shaped(&leaves[0], dims), axis).flatten(0, 2),
            move |leaves| ours(shaped(&leaves[0], dims), axis).flatten(0, 2),
        )
    })
}

#[test]
fn softmax_is_that_of_burn_along_every_axis() {
    for dims in [[2, 3, 5], [1, 1, 1], [4, 7, 1], [37, 61, 73]] {
        for axis in 0..3 {
            let numbers = spread(0.0, 5.0, dims.iter().product(), 3);
            for case in along_axes(numbers, dims, axis) {
                case.assert_equal(64.0);
            }
        }
    }
}

#[test]
fn softmax_of_extreme_rows_is_as_with_burn() {
    let infinite = f64::NEG_INFINITY;
    for row in [
        vec![0.0; 4],
        vec![1e20, -1e20, 1e20, 0.0],
        vec![1e4, 1e4, -1e4, 9999.0],
        vec![infinite, 1.0, 2.0, infinite],
        vec![infinite; 4],
        vec![1.0, f64::NAN, 0.0, 2.0],
    ] {
        for case in along_axes(row, [1, 1, 4], 2) {
            case.assert_as_plain(64.0);
        }
    }
}

#[test]
fn softmax_of_nothing_is_nothing() {
    for case in along_axes(vec![], [0, 3, 4], 2) {
        let found = case.found(&flex(), DType::F32);
        assert!(found.grads[0].is_empty(), "{}", case.name());
    }
}
