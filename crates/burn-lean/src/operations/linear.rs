//! A linear layer as two-dimensional products, in the backward pass too.

use burn::tensor::{DType, Tensor};

use crate::backend::is_on_flex;

use super::chunks::{as_rows, chunk_bytes, chunks, shaped};
use super::node::{Gradient, OperandGradients, Operands, Operation, apply};

const INPUT: usize = 0;
const WEIGHT: usize = 1;
const BIAS: usize = 2;

/// A linear transformation, as Burn's [`linear`](burn::tensor::module::linear): `input * weight +
/// bias`.
///
/// Keeps its input and weight, as Burn's does. Its backward pass takes all axes but the last for
/// one, where Burn's makes a gradient of the weight for each element of the batch; and it writes
/// the gradient of the input over the input, where nobody else holds that.
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

/// The backend's own; of nothing, nothing: some backends read memory that is not there. On Flex in
/// parts, since it makes the output of each product twice.
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
    if input.shape().num_elements() > 0 && !is_on_flex(&input) {
        return burn::tensor::module::linear(input, weight, bias);
    }
    let input = as_rows(input);
    let output = filled([input.dims()[0], d_output], input.dtype(), &input);
    let output = product_over(output, &input, &weight);
    dims[D - 1] = d_output;
    shaped(
        match bias {
            Some(bias) => output + bias.unsqueeze(),
            None => output,
        },
        dims,
    )
}

/// A product of matrices, where one may be empty.
pub(super) fn matmul(lhs: Tensor<2>, rhs: Tensor<2>) -> Tensor<2> {
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
        let mut input = self.input.map(as_rows);
        if let Some(input) = &input {
            operands.give(WEIGHT, product_of_columns(input, &grad));
        }
        if operands.wants(BIAS) {
            let sum = grad.clone().sum_dim(0);
            operands.give(BIAS, sum.squeeze_dim::<1>(0));
        }
        if let Some(weight) = self.weight {
            let weight = weight.transpose();
            let grad = match input.take() {
                // Of the same shape, and not needed any more.
                Some(input) => product_over(input, &grad, &weight),
                None => matmul(grad, weight),
            };
            operands.give(INPUT, shaped(grad, self.dims));
        }
    }
}

/// How large a part of a product is on a processor: smaller ones are slower.
const PART_BYTES: usize = 512 << 10;

fn part_bytes(like: &Tensor<2>) -> usize {
    chunk_bytes(like).max(PART_BYTES)
}

/// `lhsᵀ * rhs`, in parts of its rows.
pub(super) fn product_of_columns(lhs: &Tensor<2>, rhs: &Tensor<2>) -> Tensor<2> {
    let ([_, rows], [_, columns]) = (lhs.dims(), rhs.dims());
    let parts: Vec<_> = chunks(rows, 4 * columns, part_bytes(lhs)).collect();
    if parts.len() < 2 {
        return matmul(lhs.clone().transpose(), rhs.clone());
    }
    let mut output = filled([rows, columns], lhs.dtype(), lhs);
    for part in parts {
        let columns = lhs.clone().narrow(1, part.start, part.len());
        let product = matmul(columns.transpose(), rhs.clone());
        output = output.slice_assign([part], product);
    }
    output
}

/// `sum + lhsᵀ * rhs`, in parts of its rows and in the type of the sum.
pub(super) fn add_product_of_columns(
    mut sum: Tensor<2>,
    lhs: &Tensor<2>,
    rhs: &Tensor<2>,
) -> Tensor<2> {
    let [rows, columns] = sum.dims();
    for part in chunks(rows, 4 * columns, part_bytes(lhs)) {
        let columns = lhs.clone().narrow(1, part.start, part.len());
        let product = matmul(columns.transpose(), rhs.clone()).cast(sum.dtype());
        let product = product + sum.clone().slice([part.clone()]);
        sum = sum.slice_assign([part], product);
    }
    sum
}

/// `lhs * rhs`, written over a tensor of that shape in parts of its rows.
fn product_over(mut output: Tensor<2>, lhs: &Tensor<2>, rhs: &Tensor<2>) -> Tensor<2> {
    let [rows, columns] = output.dims();
    for part in chunks(rows, 4 * columns, part_bytes(lhs)) {
        let product = matmul(lhs.clone().slice([part.clone()]), rhs.clone());
        output = output.slice_assign([part], product);
    }
    output
}

/// A tensor of zeros that is written over. Not `empty` and not `zeros`, which Flex makes twice.
pub(super) fn filled(dims: [usize; 2], dtype: DType, like: &Tensor<2>) -> Tensor<2> {
    Tensor::full(dims, 0.0, (&like.device(), dtype))
}
