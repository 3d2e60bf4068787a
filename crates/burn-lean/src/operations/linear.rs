//! A linear layer as two-dimensional products, in the backward pass too.

use burn::tensor::{DType, Tensor};

use super::chunks::{as_rows, shaped};
use super::node::{Gradient, OperandGradients, Operands, Operation, apply};

const INPUT: usize = 0;
const WEIGHT: usize = 1;
const BIAS: usize = 2;

/// A linear transformation, as Burn's [`linear`](burn::tensor::module::linear): `input * weight +
/// bias`.
///
/// Keeps its input and weight, as Burn's does. Its backward pass makes the gradients alone: it takes
/// all axes but the last for one, where Burn's may go through the batch.
///
/// # Shapes
///
/// - `input`: `[..., d_input]`
/// - `weight`: `[d_input, d_output]`
/// - `bias`: `[d_output]`
/// - output: `[..., d_output]`
///
/// # Panics
///
/// If the last axis of `input` is not `d_input`.
pub fn linear<const D: usize>(
    input: Tensor<D>,
    weight: Tensor<2>,
    bias: Option<Tensor<1>>,
) -> Tensor<D> {
    if let DType::QFloat(_) = weight.dtype() {
        // For inference alone.
        return burn::tensor::module::linear(input, weight, bias);
    }
    let operands = [
        Some(input.into_dispatch()),
        Some(weight.into_dispatch()),
        bias.map(Tensor::into_dispatch),
    ];
    apply(operands, |mut operands: Operands<3>| {
        let wants_weight = operands.wants(WEIGHT);
        let wants_input = operands.wants(INPUT);
        let input = operands.take::<D>(INPUT);
        let weight = operands.take::<2>(WEIGHT);
        let bias = operands.take_optional::<1>(BIAS);
        let kept = Linear {
            dims: input.dims(),
            input: wants_weight.then(|| input.clone()),
            weight: wants_input.then(|| weight.clone()),
        };
        (product(input, weight, bias), kept)
    })
}

/// The backend's own; of nothing, nothing: some backends read memory that is not there.
fn product<const D: usize>(
    input: Tensor<D>,
    weight: Tensor<2>,
    bias: Option<Tensor<1>>,
) -> Tensor<D> {
    let mut dims = input.dims();
    let [d_input, d_output] = weight.dims();
    assert_eq!(
        dims[D - 1],
        d_input,
        "linear: the last axis of the input is `d_input` of the weight"
    );
    if input.shape().num_elements() > 0 {
        return burn::tensor::module::linear(input, weight, bias);
    }
    dims[D - 1] = d_output;
    let zeros = Tensor::zeros(dims, (&input.device(), input.dtype()));
    match bias {
        Some(bias) => zeros + bias.unsqueeze(),
        None => zeros,
    }
}

/// A product of matrices, where one may be empty.
fn matmul(lhs: Tensor<2>, rhs: Tensor<2>) -> Tensor<2> {
    if lhs.shape().num_elements() > 0 && rhs.shape().num_elements() > 0 {
        return lhs.matmul(rhs);
    }
    let dims = [lhs.dims()[0], rhs.dims()[1]];
    Tensor::zeros(dims, (&lhs.device(), lhs.dtype()))
}

#[derive(Clone)]
struct Linear<const D: usize> {
    dims: [usize; D],
    /// For the gradient of the weight.
    input: Option<Tensor<D>>,
    /// For the gradient of the input.
    weight: Option<Tensor<2>>,
}

impl<const D: usize> Operation<3> for Linear<D> {
    const NAME: &'static str = "linear";

    fn backward(self, grad: Gradient, operands: &mut OperandGradients<'_, 3>) {
        let grad = as_rows(grad.tensor::<D>());
        if let Some(input) = self.input {
            let input = as_rows(input);
            operands.give(WEIGHT, matmul(input.transpose(), grad.clone()));
        }
        if operands.wants(BIAS) {
            let sum = grad.clone().sum_dim(0);
            operands.give(BIAS, sum.squeeze_dim::<1>(0));
        }
        if let Some(weight) = self.weight {
            let grad = matmul(grad, weight.transpose());
            operands.give(INPUT, shaped(grad, self.dims));
        }
    }
}
