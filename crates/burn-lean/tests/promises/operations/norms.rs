//! Normalizations.

use burn::nn::GroupNormConfig;
use burn_lean::operations::{group_norm, layer_norm, rms_norm};

use super::harness::{Case, noise, shaped, spread};
use crate::harness::prelude::*;

const EPSILON: f64 = 1e-5;

/// Shapes: one row, odd sizes, one element, no rows; and one that is cut into chunks.
const SHAPES: [[usize; 3]; 6] = [
    [1, 1, 5],
    [2, 3, 7],
    [3, 5, 1],
    [0, 3, 4],
    [2, 0, 4],
    [3, 301, 513],
];

/// The input, gamma and beta.
fn inputs(dims: [usize; 3]) -> Vec<Vec<f64>> {
    vec![
        spread(0.5, 1.0, dims.iter().product(), 1),
        spread(1.0, 1.0, dims[2], 2),
        noise(dims[2], 3),
    ]
}

/// Of an input, gamma and, if there is one, beta.
pub(crate) fn layer_norm_case(dims: [usize; 3], inputs: Vec<Vec<f64>>) -> Case {
    Case::new(
        format!("layer_norm of {dims:?}"),
        inputs,
        move |leaves| {
            let (gamma, beta) = (leaves[1].clone(), leaves.get(2).cloned());
            let x = shaped(&leaves[0], dims);
            burn::tensor::module::layer_norm(x, gamma, beta, EPSILON).flatten(0, 2)
        },
        move |leaves| {
            let (gamma, beta) = (leaves[1].clone(), leaves.get(2).cloned());
            layer_norm(shaped(&leaves[0], dims), gamma, beta, EPSILON).flatten(0, 2)
        },
    )
}

/// Of an input and gamma.
pub(crate) fn rms_norm_case(dims: [usize; 3], mut inputs: Vec<Vec<f64>>) -> Case {
    inputs.truncate(2);
    Case::new(
        format!("rms_norm of {dims:?}"),
        inputs,
        move |leaves| {
            // Not the module: it computes in `f32`.
            let x: Tensor<3> = shaped(&leaves[0], dims);
            let rms = (x.clone().square().mean_dim(2) + EPSILON).sqrt();
            (x / rms * leaves[1].clone().unsqueeze()).flatten(0, 2)
        },
        move |leaves| rms_norm(shaped(&leaves[0], dims), leaves[1].clone(), EPSILON).flatten(0, 2),
    )
}

/// Of an input `[batch, channels, ..]`, with gamma and beta or without.
pub(crate) fn group_norm_case(dims: [usize; 3], groups: usize, with_affine: bool) -> Case {
    let channels = dims[1];
    let mut inputs = vec![noise(dims.iter().product(), 1)];
    if with_affine {
        inputs.extend([noise(channels, 2), noise(channels, 3)]);
    }
    Case::new(
        format!("group_norm of {dims:?} in {groups}, affine: {with_affine}"),
        inputs,
        move |leaves| {
            let config = GroupNormConfig::new(groups, channels).with_epsilon(EPSILON);
            let mut norm = config.with_affine(with_affine).init(&leaves[0].device());
            norm.gamma = leaves.get(1).cloned().map(Param::from_tensor);
            norm.beta = leaves.get(2).cloned().map(Param::from_tensor);
            norm.forward(shaped(&leaves[0], dims)).flatten(0, 2)
        },
        move |leaves| {
            let (gamma, beta) = (leaves.get(1).cloned(), leaves.get(2).cloned());
            group_norm(shaped(&leaves[0], dims), gamma, beta, groups, EPSILON).flatten(0, 2)
        },
    )
}

#[test]
fn row_norms_are_those_of_burn() {
    for dims in SHAPES {
        layer_norm_case(dims, inputs(dims)).assert_equal(64.0);
        rms_norm_case(dims, inputs(dims)).assert_equal(64.0);
    }
    let without_beta = layer_norm_case([4, 3, 6], inputs([4, 3, 6])).without_last_input();
    without_beta.assert_equal(64.0);
}

#[test]
fn group_norm_is_that_of_burn() {
    for (dims, groups) in [
        ([2, 6, 5], 3),
        ([3, 4, 1], 1),
        ([1, 4, 7], 4),
        ([5, 64, 1031], 8),
    ] {
        group_norm_case(dims, groups, true).assert_equal(64.0);
    }
    group_norm_case([2, 6, 5], 3, false).assert_equal(64.0);
    // Burn's refuses it.
    group_norm_case([0, 4, 3], 2, true).assert_empty();
}

#[test]
fn rows_of_extreme_numbers_are_as_with_burn() {
    let numbers = || noise(6, 4);
    let times = |factor: f64| spread(0.0, factor, 6, 4);
    let mut one_nan = numbers();
    one_nan[2] = f64::NAN;
    let mut one_infinite = numbers();
    one_infinite[2] = f64::INFINITY;
    for row in [
        vec![0.0; 6],
        vec![3.0; 6],
        times(1e4),
        times(1e-10),
        times(1e15),
        one_nan,
        one_infinite,
    ] {
        let inputs = vec![row, noise(6, 2), noise(6, 3)];
        layer_norm_case([1, 1, 6], inputs.clone()).assert_as_plain(64.0);
        rms_norm_case([1, 1, 6], inputs).assert_as_plain(64.0);
    }
}

#[test]
fn affine_parameters_of_another_length_are_refused() {
    let row = |length: usize| Tensor::<1>::ones([length], &flex());
    let x = || Tensor::<2>::ones([3, 4], &flex());
    for length in [1, 5] {
        let run = || layer_norm(x(), row(4), Some(row(length)), EPSILON);
        assert_panics(run, "gamma and beta have one element");
    }
    let norm = burn_lean::operations::nn::GroupNormConfig::new(2, 4);
    let norm = norm.with_affine(false).init(&flex());
    let run = || norm.forward(Tensor::<3>::ones([1, 6, 2], &flex()));
    assert_panics(run, "`[batch, num_channels, ...]`");
}
