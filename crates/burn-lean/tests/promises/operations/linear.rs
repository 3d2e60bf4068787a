//! The linear layer.

use burn_lean::operations::linear;

use super::harness::{Case, noise, shaped};
use crate::harness::prelude::*;

/// From `dims` to so many elements, with a bias.
pub(crate) fn case(dims: [usize; 3], output: usize) -> Case {
    let width = dims[2];
    let parts = move |leaves: &[Tensor<1>]| {
        let x: Tensor<3> = shaped(&leaves[0], dims);
        let weight: Tensor<2> = shaped(&leaves[1], [width, output]);
        (x, weight, leaves.get(2).cloned())
    };
    Case::new(
        format!("linear of {dims:?} to {output}"),
        vec![
            noise(dims.iter().product(), 1),
            noise(width * output, 2),
            noise(output, 3),
        ],
        move |leaves| {
            let (x, weight, bias) = parts(leaves);
            reference(x, weight, bias)
        },
        move |leaves| {
            let (x, weight, bias) = parts(leaves);
            linear(x, weight, bias).flatten(0, 2)
        },
    )
}

/// The sum of a product, and not Burn's `linear`, which ours calls.
pub(crate) fn reference(x: Tensor<3>, weight: Tensor<2>, bias: Option<Tensor<1>>) -> Tensor<1> {
    let y = x.matmul(weight.unsqueeze());
    match bias {
        Some(bias) => y + bias.unsqueeze(),
        None => y,
    }
    .flatten(0, 2)
}

#[test]
fn linear_is_that_of_burn() {
    for (dims, output) in [
        ([1, 1, 1], 1),
        ([2, 3, 5], 7),
        ([5, 1, 3], 2),
        ([3, 37, 41], 29),
    ] {
        case(dims, output).assert_equal(32.0);
        case(dims, output).without_last_input().assert_equal(32.0);
    }
    case([0, 3, 4], 2).assert_empty();
    case([0, 3, 4], 2).without_last_input().assert_empty();
}

#[test]
fn a_vector_is_a_row() {
    let weight = |leaves: &[Tensor<1>]| -> Tensor<2> { shaped(&leaves[1], [3, 2]) };
    let case = Case::new(
        "linear of a vector",
        vec![noise(3, 1), noise(6, 2)],
        move |leaves| {
            let row: Tensor<2> = leaves[0].clone().unsqueeze();
            row.matmul(weight(leaves)).flatten(0, 1)
        },
        move |leaves| linear(leaves[0].clone(), weight(leaves), None),
    );
    case.assert_equal(16.0);
}

#[test]
fn a_bias_of_another_length_is_refused() {
    let ones = |length| Tensor::<1>::ones([length], &flex());
    let run = || {
        linear(
            ones(6).reshape([2, 3]),
            ones(12).reshape([3, 4]),
            Some(ones(1)),
        )
    };
    assert_panics(run, "the bias has `d_output` elements");
}
