//! The linear layer.

use burn::tensor::Tensor;
use burn_lean::operations::linear;

use super::harness::{assert_equal, noise, shaped};

#[test]
fn linear_is_that_of_burn() {
    for (dims, output) in [
        ([1, 1, 1], 1),
        ([2, 3, 5], 7),
        ([5, 1, 3], 2),
        ([0, 3, 4], 2),
        ([3, 37, 41], 29),
    ] {
        let width = dims[2];
        let inputs = [
            noise(dims.iter().product(), 1),
            noise(width * output, 2),
            noise(output, 3),
        ];
        let parts = |leaves: &[Tensor<1>]| {
            let x: Tensor<3> = shaped(&leaves[0], dims);
            let weight: Tensor<2> = shaped(&leaves[1], [width, output]);
            (x, weight, leaves.get(2).cloned())
        };
        // The sum of a product, and not Burn's `linear`, which it calls.
        let reference = |leaves: &[Tensor<1>]| {
            let (x, weight, bias) = parts(leaves);
            let y = x.matmul(weight.unsqueeze());
            match bias {
                Some(bias) => y + bias.unsqueeze(),
                None => y,
            }
            .flatten(0, 2)
        };
        let ours = |leaves: &[Tensor<1>]| {
            let (x, weight, bias) = parts(leaves);
            linear(x, weight, bias).flatten(0, 2)
        };
        let what = format!("linear of {dims:?} to {output}");
        assert_equal(&what, &inputs, 32.0, &reference, &ours);
        assert_equal(&what, &inputs[..2], 32.0, &reference, &ours);
    }
}

#[test]
fn a_vector_is_a_row() {
    let inputs = [noise(3, 1), noise(6, 2)];
    let reference = |leaves: &[Tensor<1>]| {
        let weight: Tensor<2> = shaped(&leaves[1], [3, 2]);
        leaves[0]
            .clone()
            .unsqueeze::<2>()
            .matmul(weight)
            .flatten(0, 1)
    };
    let ours = |leaves: &[Tensor<1>]| {
        let weight: Tensor<2> = shaped(&leaves[1], [3, 2]);
        linear(leaves[0].clone(), weight, None)
    };
    assert_equal("linear of a vector", &inputs, 16.0, &reference, &ours);
}
