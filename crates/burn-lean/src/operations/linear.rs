//! A linear layer as two-dimensional products, in the backward pass too.

use burn::tensor::{DType, Tensor};

use super::chunks::{as_rows, shaped};
use super::node::{Gradient, OperandGradients, Operands, Operation, apply};
use super::product::{filled, matmul, onto_bias, product_in_f32, product_into, product_over};
use crate::backend::is_on_flex;
use crate::wide::is_half;

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
/// If the last axis of `input` is not `d_input`, or the bias has not `d_output` elements.
pub fn linear<const D: usize>(
    input: Tensor<D>,
    weight: Tensor<2>,
    bias: Option<Tensor<1>>,
) -> Tensor<D> {
    if let DType::QFloat(_) = weight.dtype() {
        // Backends multiply by it without a dense copy.
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

/// The backend's own product, if the input is not empty: some backends read out of bounds then.
pub(super) fn product<const D: usize>(
    input: Tensor<D>,
    weight: Tensor<2>,
    bias: Option<Tensor<1>>,
) -> Tensor<D> {
    let mut dims = input.dims();
    let [_, d_output] = weight.dims();
    assert_fits(dims[D - 1], weight.dims(), bias.as_ref());
    if input.shape().num_elements() > 0 && !is_on_flex(&input) {
        return burn::tensor::module::linear(input, weight, bias);
    }
    let input = as_rows(input);
    dims[D - 1] = d_output;
    let [rows, _] = input.dims();
    let output = match is_half(input.dtype()) {
        true => {
            let output = filled([rows, d_output], input.dtype(), &input);
            product_in_f32(output, &input, &weight, bias)
        }
        false => {
            let (output, before) = onto_bias(bias, [rows, d_output], &input);
            product_into(output, [0..rows, 0..d_output], before, input, weight)
        }
    };
    shaped(output, dims)
}

/// # Panics
///
/// If the last axis of an input has another length than the weight has rows, or the bias another than it has
/// columns.
pub(super) fn assert_fits(last: usize, [d_input, d_output]: [usize; 2], bias: Option<&Tensor<1>>) {
    assert_eq!(
        last, d_input,
        "linear: the last axis of the input is `d_input` of the weight"
    );
    if let Some(bias) = bias {
        assert_eq!(
            bias.dims(),
            [d_output],
            "linear: the bias has `d_output` elements"
        );
    }
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
            operands.give(WEIGHT, matmul(input.clone().transpose(), grad.clone()));
        }
        if operands.wants(BIAS) {
            let sum = grad.clone().sum_dim(0);
            operands.give(BIAS, sum.squeeze_dim::<1>(0));
        }
        if let Some(weight) = self.weight {
            let weight = weight.transpose();
            let grad = match input.take() {
                // It has the same shape, and is no longer needed.
                Some(input) => product_over(input, grad, weight),
                None => matmul(grad, weight),
            };
            operands.give(INPUT, shaped(grad, self.dims));
        }
    }
}
