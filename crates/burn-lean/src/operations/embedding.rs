//! An embedding whose gradient adds up in f32.

use burn::tensor::{IndexingUpdateOp, Int, Tensor};

use super::chunks::as_rows;
use super::node::{Gradient, OperandGradients, Operands, Operation, apply};
use super::product::filled;
use crate::wide::widened;

/// The rows of `weight` at the indices, as Burn's [`embedding`](burn::tensor::module::embedding).
///
/// Keeps the indices. The gradients of a token add up in f32 at least, and the sum is rounded once:
/// in bf16, a sum of ones would get no further than 256.
///
/// # Shapes
///
/// - `weight`: `[n_embedding, d_model]`
/// - `indices`: `[batch, time]`
/// - output: `[batch, time, d_model]`
pub fn embedding(weight: Tensor<2>, indices: Tensor<2, Int>) -> Tensor<3> {
    let indices = indices.inner();
    apply(
        [Some(weight.into_dispatch())],
        |mut operands: Operands<1>| {
            let weight = operands.take::<2>(0);
            let kept = Embedding {
                dims: weight.dims(),
                indices: indices.clone(),
            };
            (burn::tensor::module::embedding(weight, indices), kept)
        },
    )
}

#[derive(Clone)]
struct Embedding {
    /// Those of the weight.
    dims: [usize; 2],
    indices: Tensor<2, Int>,
}

impl Operation<1> for Embedding {
    const NAME: &'static str = "embedding";

    fn backward(self, grad: Gradient, operands: &mut OperandGradients<'_, 1>) {
        let grad = widened(as_rows(grad.tensor::<3>()));
        let sum = filled(self.dims, grad.dtype(), &grad);
        let indices = self.indices.flatten::<1>(0, 1);
        let sum = sum.select_assign(0, indices, grad, IndexingUpdateOp::Add);
        operands.give(0, sum);
    }
}
