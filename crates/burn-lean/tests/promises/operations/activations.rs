//! Activations.

use burn::tensor::{DType, Tensor, activation};
use burn_lean::operations::{gelu, gelu_approximate, log_softmax, quiet_softmax, silu, softmax};

use super::harness::{
    Flat, assert_as_plain, assert_equal, coarse, noise, reference_device, run, shaped,
};
use crate::harness::flex;

/// The definitions: Burn's `gelu` has the gradient of an approximation, its sigmoid the precision
/// of `f32`, and its division by a number a gradient of that precision.
fn gelu_of_definition(x: Tensor<1>) -> Tensor<1> {
    x.clone() * 0.5 * ((x * std::f64::consts::FRAC_1_SQRT_2).erf() + 1.0)
}

fn silu_of_definition(x: Tensor<1>) -> Tensor<1> {
    x.clone() / (x.neg().exp() + 1.0)
}

fn numbers() -> Vec<Vec<f64>> {
    let wide = noise(1001, 5).iter().map(|x| 6.0 * x).collect();
    vec![wide, noise(1, 1), vec![]]
}

/// Several chunks: a row is as long as the last axis.
const LARGE: [usize; 2] = [601, 515];

#[test]
fn elementwise_functions_are_those_of_their_definitions() {
    for numbers in numbers() {
        let inputs = [numbers];
        let plain = |leaves: &[Tensor<1>]| gelu_of_definition(leaves[0].clone());
        assert_equal("gelu", &inputs, 8.0, &plain, &|leaves| {
            gelu(leaves[0].clone())
        });
        let plain = |leaves: &[Tensor<1>]| activation::gelu_approximate(leaves[0].clone());
        assert_equal("gelu_approximate", &inputs, 16.0, &plain, &|leaves| {
            gelu_approximate(leaves[0].clone())
        });
        let plain = |leaves: &[Tensor<1>]| silu_of_definition(leaves[0].clone());
        assert_silu(&inputs, &plain, &|leaves| silu(leaves[0].clone()));
    }
    let inputs = [noise(LARGE[0] * LARGE[1], 2)];
    let plain = |leaves: &[Tensor<1>]| gelu_of_definition(leaves[0].clone());
    let ours = |leaves: &[Tensor<1>]| gelu(shaped(&leaves[0], LARGE)).flatten(0, 1);
    assert_equal("gelu in chunks", &inputs, 8.0, &plain, &ours);
}

/// The value of `silu` is Burn's, which is one of `f32` in `f64` too; the gradient is not.
fn assert_silu(
    inputs: &[Vec<f64>],
    plain: &dyn Fn(&[Tensor<1>]) -> Tensor<1>,
    ours: &dyn Fn(&[Tensor<1>]) -> Tensor<1>,
) {
    let expected = run(&reference_device(), DType::F64, inputs, plain);
    for device in crate::harness::devices() {
        for (dtype, epsilon) in [(DType::F64, 1e-15), (DType::F32, 1e-6)] {
            let found = run(&device, dtype, inputs, ours);
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
    let inputs = [numbers().remove(0)];
    let truth = run(&reference_device(), DType::F64, &inputs, &|leaves| {
        gelu_of_definition(leaves[0].clone())
    });
    let error = |op: &dyn Fn(&[Tensor<1>]) -> Tensor<1>| {
        let found = run(&reference_device(), DType::F32, &inputs, op);
        let pairs = found.grads[0].iter().zip(&truth.grads[0]);
        pairs.fold(0.0_f64, |max, (a, b)| max.max((a - b).abs()))
    };
    let ours = error(&|leaves| gelu(leaves[0].clone()));
    let plain = error(&|leaves| activation::gelu(leaves[0].clone()));
    println!("errors of the gradient of gelu on NdArray: ours {ours:e}, Burn's {plain:e}");
    assert!(ours < 1e-6 && 100.0 * ours < plain, "{ours:e} {plain:e}");
}

#[test]
fn numbers_far_out_have_the_slope_of_the_line() {
    for far in [1e4, 1e20, 3e38] {
        let inputs = [vec![far, -far, 0.0]];
        let ops: [Flat<'_>; 3] = [
            &|leaves| gelu(leaves[0].clone()),
            &|leaves| gelu_approximate(leaves[0].clone()),
            &|leaves| silu(leaves[0].clone()),
        ];
        for op in ops {
            let found = run(&flex(), DType::F32, &inputs, op).grads.remove(0);
            let weights = coarse(3);
            let expected = [weights[0], 0.0, 0.5 * weights[2]];
            for (found, expected) in found.iter().zip(expected) {
                assert!(
                    (found - expected).abs() < 1e-6,
                    "{far:e}: {found} {expected}"
                );
            }
        }
    }
}

#[test]
fn burns_approximation_of_gelu_has_no_gradient_far_out() {
    let found = run(&flex(), DType::F32, &[vec![1e20]], &|leaves| {
        activation::gelu_approximate(leaves[0].clone())
    });
    assert!(found.grads[0][0].is_nan(), "the page says so");
}

#[test]
fn a_nan_stays_one() {
    let inputs = [vec![1.0, f64::NAN, -1.0]];
    let ops: [Flat<'_>; 3] = [
        &|leaves| gelu(leaves[0].clone()),
        &|leaves| gelu_approximate(leaves[0].clone()),
        &|leaves| silu(leaves[0].clone()),
    ];
    for op in ops {
        for device in crate::harness::devices() {
            let found = run(&device, DType::F32, &inputs, op);
            let is_nan = |numbers: &[f64]| numbers.iter().map(|x| x.is_nan()).collect::<Vec<_>>();
            assert_eq!(is_nan(&found.value), [false, true, false]);
            assert_eq!(is_nan(&found.grads[0]), [false, true, false]);
        }
    }
}

type AlongAxis = fn(Tensor<3>, usize) -> Tensor<3>;

const ALONG_AXIS: [(&str, AlongAxis, AlongAxis); 3] = [
    ("softmax", activation::softmax::<3>, softmax::<3>),
    (
        "quiet_softmax",
        activation::quiet_softmax::<3>,
        quiet_softmax::<3>,
    ),
    (
        "log_softmax",
        activation::log_softmax::<3>,
        log_softmax::<3>,
    ),
];

#[test]
fn softmax_is_that_of_burn_along_every_axis() {
    for dims in [[2, 3, 5], [1, 1, 1], [4, 7, 1], [37, 91, 97]] {
        for (name, plain, ours) in ALONG_AXIS {
            for axis in 0..3 {
                let numbers = noise(dims.iter().product(), 3);
                let inputs = [numbers.iter().map(|x| 5.0 * x).collect()];
                let flat = |op: AlongAxis| {
                    move |leaves: &[Tensor<1>]| op(shaped(&leaves[0], dims), axis).flatten(0, 2)
                };
                let what = format!("{name} of {dims:?} along {axis}");
                assert_equal(&what, &inputs, 64.0, &flat(plain), &flat(ours));
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
        for (name, plain, ours) in ALONG_AXIS {
            let flat = |op: AlongAxis| {
                move |leaves: &[Tensor<1>]| op(shaped(&leaves[0], [1, 1, 4]), 2).flatten(0, 2)
            };
            let what = format!("{name} of {row:?}");
            assert_as_plain(
                &what,
                std::slice::from_ref(&row),
                64.0,
                &flat(plain),
                &flat(ours),
            );
        }
    }
}

#[test]
fn softmax_of_nothing_is_nothing() {
    for (_, _, ours) in ALONG_AXIS {
        let inputs = [vec![]];
        let found = run(&flex(), DType::F32, &inputs, &|leaves| {
            ours(shaped(&leaves[0], [0, 3, 4]), 2).flatten(0, 2)
        });
        assert!(found.grads[0].is_empty());
    }
}
