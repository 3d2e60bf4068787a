//! A weight that is not trained.

use std::ops::Range;

use burn::tensor::{DType, Tensor};

use crate::backend::{is_on_flex, plain};

use super::chunks::chunks;
use super::linear::{assert_fits, product};
use super::product::{Before, filled, product_into, product_over};

/// How large the part of a weight is that is cast at once.
const PART_BYTES: usize = 8 << 20;

/// A weight `[d_input, d_output]` that is not trained, without autodiff. It is quantized, or of a type that
/// need not be that of what it is multiplied with.
#[derive(Clone)]
pub(super) struct Frozen(Tensor<2>);

impl Frozen {
    pub(super) fn new(weight: Tensor<2>) -> Self {
        Self(Tensor::from_dispatch(plain(weight.into_dispatch())))
    }

    pub(super) fn dims(&self) -> [usize; 2] {
        self.0.dims()
    }

    /// `input * weight + bias`, of the type of the input.
    pub(super) fn product(&self, input: Tensor<2>, bias: Option<Tensor<1>>) -> Tensor<2> {
        assert_fits(input.dims()[1], &self.0, bias.as_ref());
        let dtype = input.dtype();
        let is_quantized = matches!(self.0.dtype(), DType::QFloat(_));
        if is_quantized && !is_on_flex(&input) {
            // Backends multiply by it without a dense copy.
            return burn::tensor::module::linear(input, self.0.clone(), bias);
        }
        let bias = bias.map(|bias| bias.cast(dtype));
        let weight = self.dense();
        if weight.dtype() == dtype {
            return product(input, weight, bias);
        }
        let ([rows, _], [_, d_output]) = (input.dims(), weight.dims());
        let mut output = filled([rows, d_output], dtype, &input);
        for columns in parts(&weight) {
            let bias = bias.clone().map(|bias| bias.slice([columns.clone()]));
            let part = product(input.clone(), cast(&weight, &columns, dtype), bias);
            output = output.slice_assign([0..rows, columns], part);
        }
        output
    }

    /// `grad * weight^T`, of the type of `grad`; written over `over`, which has the shape and the type of the
    /// result.
    pub(super) fn product_transposed(&self, grad: Tensor<2>, over: Option<Tensor<2>>) -> Tensor<2> {
        let dtype = grad.dtype();
        let weight = self.dense();
        let ([rows, _], [d_input, _]) = (grad.dims(), weight.dims());
        let output = over.unwrap_or_else(|| filled([rows, d_input], dtype, &grad));
        if weight.dtype() == dtype {
            return product_over(output, grad, weight.transpose());
        }
        let all = [0..rows, 0..d_input];
        let mut before = Before::Anything;
        let mut output = output;
        for columns in parts(&weight) {
            let part = cast(&weight, &columns, dtype).transpose();
            let grad = grad.clone().slice([0..rows, columns]);
            output = product_into(output, all.clone(), before, grad, part);
            before = Before::Sum;
        }
        output
    }

    fn dense(&self) -> Tensor<2> {
        match self.0.dtype() {
            DType::QFloat(_) => self.0.clone().dequantize(),
            _ => self.0.clone(),
        }
    }
}

/// Columns that are cast at once.
fn parts(weight: &Tensor<2>) -> impl Iterator<Item = Range<usize>> + use<> {
    let [d_input, d_output] = weight.dims();
    chunks(d_output, 4 * d_input, PART_BYTES)
}

fn cast(weight: &Tensor<2>, columns: &Range<usize>, dtype: DType) -> Tensor<2> {
    let [d_input, _] = weight.dims();
    weight
        .clone()
        .slice([0..d_input, columns.clone()])
        .cast(dtype)
}
