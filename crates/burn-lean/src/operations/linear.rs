//! A linear layer as two-dimensional products, in the backward pass too.

use std::ops::Range;

use burn::tensor::{DType, Tensor};

use crate::backend::is_on_flex;

use super::chunks::{as_rows, chunks, shaped};
use super::node::{Gradient, OperandGradients, Operands, Operation, apply};
use super::threads::in_pool;
use crate::wide::{is_half, widened};

const INPUT: usize = 0;
const WEIGHT: usize = 1;
const BIAS: usize = 2;

/// A linear transformation, as Burn's [`linear`](burn::tensor::module::linear): `input * weight +
/// bias`.
///
/// Keeps its input and weight, as Burn's does. Its backward pass takes all axes but the last for
/// one, where Burn's makes a gradient of the weight for each element of the batch; and it writes
/// the gradient of the input over the input, if nothing else holds that.
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

/// The backend's own product, if the input is not empty: some backends read out of bounds then. On
/// Flex in parts, since it makes the output of each product twice, and in f32.
fn product<const D: usize>(
    input: Tensor<D>,
    weight: Tensor<2>,
    bias: Option<Tensor<1>>,
) -> Tensor<D> {
    let mut dims = input.dims();
    let [_, d_output] = weight.dims();
    assert_fits(dims[D - 1], &weight);
    if input.shape().num_elements() > 0 && !is_on_flex(&input) {
        return burn::tensor::module::linear(input, weight, bias);
    }
    let input = as_rows(input);
    let output = filled([input.dims()[0], d_output], input.dtype(), &input);
    dims[D - 1] = d_output;
    if is_half(input.dtype()) {
        return shaped(product_in_f32(output, &input, &weight, bias), dims);
    }
    let output = product_over(output, &input, &weight);
    shaped(
        match bias {
            Some(bias) => output + bias.unsqueeze(),
            None => output,
        },
        dims,
    )
}

/// # Panics
///
/// If the last axis of an input has another length than `weight` has rows.
pub(super) fn assert_fits(last: usize, weight: &Tensor<2>) {
    let [d_input, _] = weight.dims();
    assert_eq!(
        last, d_input,
        "linear: the last axis of the input is `d_input` of the weight"
    );
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
                // It has the same shape, and is no longer needed.
                Some(input) => product_over(input, &grad, &weight),
                None => matmul(grad, weight),
            };
            operands.give(INPUT, shaped(grad, self.dims));
        }
    }
}

/// How large a part of a product is on Flex: smaller ones are slower.
const PART_BYTES: usize = 1 << 20;

/// Fewest rows or columns of a part.
const SHORTEST: usize = 128;

/// A part of a product `[rows, columns]`.
struct Part {
    rows: Range<usize>,
    columns: Range<usize>,
}

/// The parts that a product is made in on Flex, which makes the output of each product twice. Their
/// longer axis is cut: a product reads all of the other factor for each part.
fn parts([rows, columns]: [usize; 2]) -> impl Iterator<Item = Part> + Send {
    let cuts_rows = rows >= columns;
    let (length, other) = match cuts_rows {
        true => (rows, columns),
        false => (columns, rows),
    };
    let line = 4 * other;
    let bytes = PART_BYTES.max(SHORTEST * line);
    chunks(length, line, bytes).map(move |part| match cuts_rows {
        true => Part {
            rows: part,
            columns: 0..columns,
        },
        false => Part {
            rows: 0..rows,
            columns: part,
        },
    })
}

/// `lhsᵀ * rhs`
pub(super) fn product_of_columns(lhs: &Tensor<2>, rhs: &Tensor<2>) -> Tensor<2> {
    let dims = [lhs.dims()[1], rhs.dims()[1]];
    let lhs = lhs.clone().transpose();
    if !is_on_flex(&lhs) || (parts(dims).count() < 2 && !is_half(rhs.dtype())) {
        return matmul(lhs, rhs.clone());
    }
    product_over(filled(dims, rhs.dtype(), rhs), &lhs, rhs)
}

/// `lhs * rhs`, on Flex written over a tensor of that shape in [`parts`].
fn product_over(mut output: Tensor<2>, lhs: &Tensor<2>, rhs: &Tensor<2>) -> Tensor<2> {
    if !is_on_flex(lhs) {
        drop(output);
        return matmul(lhs.clone(), rhs.clone());
    }
    if is_half(lhs.dtype()) {
        return product_in_f32(output, lhs, rhs, None);
    }
    let ([rows, inner], [_, columns]) = (lhs.dims(), rhs.dims());
    let mut parts = parts([rows, columns]).peekable();
    let write = |output: Tensor<2>, Part { rows, columns }| {
        let lhs = lhs.clone().slice([rows.clone(), 0..inner]);
        let rhs = rhs.clone().slice([0..inner, columns.clone()]);
        output.slice_assign([rows, columns], matmul(lhs, rhs))
    };
    if let Some(first) = parts.next() {
        output = match parts.peek() {
            None => write(output, first),
            Some(_) => in_pool(|| parts.fold(write(output, first), write)),
        };
    }
    output
}

/// `lhs * rhs + bias` in half precision, computed in 32 bits and rounded once. Of the factor that all
/// parts read, there is one copy in 32 bits; Flex would make it anew for each part.
fn product_in_f32(
    mut output: Tensor<2>,
    lhs: &Tensor<2>,
    rhs: &Tensor<2>,
    bias: Option<Tensor<1>>,
) -> Tensor<2> {
    let dtype = output.dtype();
    let ([rows, inner], [_, columns]) = (lhs.dims(), rhs.dims());
    let [mut lhs, mut rhs] = [lhs.clone(), rhs.clone()];
    match rows >= columns {
        true => rhs = widened(rhs),
        false => lhs = widened(lhs),
    }
    let bias = bias.map(|bias| widened(bias).unsqueeze::<2>());
    for Part { rows, columns } in parts([rows, columns]) {
        let lhs = widened(lhs.clone().slice([rows.clone(), 0..inner]));
        let rhs = widened(rhs.clone().slice([0..inner, columns.clone()]));
        let mut part = matmul(lhs, rhs);
        if let Some(bias) = &bias {
            part = part + bias.clone().slice([0..1, columns.clone()]);
        }
        output = output.slice_assign([rows, columns], part.cast(dtype));
    }
    output
}

/// A tensor of zeros that is written over. Not `empty` and not `zeros`, which Flex makes twice.
pub(super) fn filled(dims: [usize; 2], dtype: DType, like: &Tensor<2>) -> Tensor<2> {
    Tensor::full(dims, 0.0, (&like.device(), dtype))
}
