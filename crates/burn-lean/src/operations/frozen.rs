//! A weight that is not trained.

use std::ops::Range;

use burn::module::Param;
use burn::tensor::{DType, Tensor};

use super::chunks::chunks;
use super::linear::{assert_fits, product};
use super::nf4::{Nf4Weight, Packed};
use super::product::{Before, filled, matmul, onto_bias, product_into, product_over};
use crate::backend::{is_on_flex, plain};
use crate::wide::{is_half, wide, widened};

/// How much of a weight is unpacked or cast at once, in f32.
const PART_BYTES: usize = 4 << 20;

/// A weight `[d_input, d_output]` that is not trained, without autodiff. It is packed, quantized, or of a
/// type that need not be that of what it is multiplied with.
#[derive(Clone)]
#[expect(
    clippy::large_enum_variant,
    reason = "a layer has one, beside which its tensors are large"
)]
pub(super) enum Frozen {
    Tensor(Tensor<2>),
    Packed(Packed),
}

impl Frozen {
    /// The base of a parameter, whose adapter it leaves out; `None` if it is trained.
    ///
    /// # Panics
    ///
    /// If it is packed and is to be trained.
    pub(super) fn of(weight: &Param<Tensor<2>>) -> Option<Self> {
        if let Some(packed) = Nf4Weight::of(weight) {
            return Some(Self::Packed(packed.frozen(&weight.base())));
        }
        let base = || Tensor::from_dispatch(plain(weight.base().into_dispatch()));
        (!weight.is_require_grad()).then(|| Self::Tensor(base()))
    }

    pub(super) fn dims(&self) -> [usize; 2] {
        match self {
            Self::Tensor(weight) => weight.dims(),
            Self::Packed(packed) => packed.dims(),
        }
    }

    /// `input * weight + bias`, of the type of the input.
    pub(super) fn product(&self, input: Tensor<2>, bias: Option<Tensor<1>>) -> Tensor<2> {
        assert_fits(input.dims()[1], self.dims(), bias.as_ref());
        let dtype = input.dtype();
        let bias = bias.map(|bias| bias.cast(dtype));
        let weight = match self {
            Self::Tensor(weight) if is_quantized(weight) && !is_on_flex(&input) => {
                // Backends multiply by it without a dense copy.
                return burn::tensor::module::linear(input, weight.clone(), bias);
            }
            _ => self.whole(),
        };
        if let Some(weight) = weight.clone().filter(|weight| weight.dtype() == dtype) {
            return product(input, weight, bias);
        }
        let ([rows, _], [_, d_output]) = (input.dims(), self.dims());
        if is_half(dtype) {
            // Rounded once.
            let (input, bias) = (widened(input), bias.map(widened));
            let output = filled([rows, d_output], dtype, &input);
            let mut part = None;
            return self.parts().fold(output, |output, columns| {
                let at = [0..rows, columns.clone()];
                let bias = bias.clone().map(|bias| bias.slice([columns.clone()]));
                let weights = self.columns(weight.as_ref(), columns, wide(dtype), &mut part);
                let product = product(input.clone(), weights, bias).cast(dtype);
                output.slice_assign(at, product)
            });
        }
        let (output, before) = onto_bias(bias, [rows, d_output], &input);
        let mut part = None;
        self.parts().fold(output, |output, columns| {
            let at = [0..rows, columns.clone()];
            let weights = self.columns(weight.as_ref(), columns, dtype, &mut part);
            product_into(output, at, before, input.clone(), weights)
        })
    }

    /// `grad * weight^T`, of the type of `grad`; written over `over`, which has the shape and the type of
    /// the result.
    pub(super) fn product_transposed(&self, grad: Tensor<2>, over: Option<Tensor<2>>) -> Tensor<2> {
        let dtype = grad.dtype();
        let ([rows, _], [d_input, _]) = (grad.dims(), self.dims());
        let weight = self.whole();
        // In f32, if the result is rounded.
        let over = over.filter(|over| over.dtype() == wide(dtype));
        if let Some(weight) = weight.clone().filter(|weight| weight.dtype() == dtype) {
            let weight = weight.transpose();
            return match over {
                Some(over) => product_over(over, grad, weight),
                None => matmul(grad, weight),
            };
        }
        let output = over.unwrap_or_else(|| filled([rows, d_input], wide(dtype), &grad));
        let all = [0..rows, 0..d_input];
        let (mut before, mut part) = (Before::Anything, None);
        let sum = self.parts().fold(output, |output, columns| {
            let grad = grad
                .clone()
                .slice([0..rows, columns.clone()])
                .cast(wide(dtype));
            let weights = self.columns(weight.as_ref(), columns, wide(dtype), &mut part);
            let sum = product_into(output, all.clone(), before, grad, weights.transpose());
            before = Before::Sum;
            sum
        });
        sum.cast(dtype)
    }

    /// The weight, if it is not packed by columns.
    fn whole(&self) -> Option<Tensor<2>> {
        match self {
            Self::Tensor(weight) if is_quantized(weight) => Some(weight.clone().dequantize()),
            Self::Tensor(weight) => Some(weight.clone()),
            Self::Packed(packed) => (!packed.is_transposed()).then(|| packed.unpacked()),
        }
    }

    /// Columns of the weight, which is `whole` if there is one. `part` has those of before, and gets these.
    fn columns(
        &self,
        whole: Option<&Tensor<2>>,
        columns: Range<usize>,
        dtype: DType,
        part: &mut Option<Tensor<2>>,
    ) -> Tensor<2> {
        let weights = match (self, whole) {
            (_, Some(whole)) => whole.clone().slice_dim(1, columns),
            (Self::Packed(packed), None) => {
                let rows = packed.rows(columns, part.take());
                part.insert(rows).clone().transpose()
            }
            (Self::Tensor(_), None) => unreachable!("only what is packed has no whole"),
        };
        weights.cast(dtype)
    }

    /// Columns that are unpacked or cast at once.
    fn parts(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let [d_input, d_output] = self.dims();
        chunks(d_output, 4 * d_input, PART_BYTES)
    }
}

fn is_quantized(weight: &Tensor<2>) -> bool {
    matches!(weight.dtype(), DType::QFloat(_))
}
