//! A weight, as products read it.

use std::ops::Range;

use burn::backend::DispatchTensor;
use burn::module::{LoraAdapter, Param};
use burn::tensor::{DType, Tensor};
use lean_arithmetic::nf4::BLOCK;

use super::chunks::{chunks, chunks_of};
use super::linear::{assert_fits, product};
use super::nf4::{Nf4Weight, PART_BYTES, Packed};
use super::product::{filled, matmul, product_over};
use super::threads::{in_parallel, threads};
use crate::backend::{is_on_flex, plain};
use crate::wide::{wide, widened};

/// The weight of a linear layer, as operations take it: a tensor, or a parameter. That may be
/// [packed](super::Nf4) or quantized, or have an [adapter](LoraAdapter), whose sum with it is not made.
///
/// ```
/// use burn::module::{Lora, Module};
/// use burn::nn::LinearConfig;
/// use burn::tensor::{Device, Tensor};
/// use burn_lean::operations::swiglu_linear;
///
/// let device = Device::flex().autodiff();
/// let down = LinearConfig::new(6, 4).init(&device).apply_lora(Lora::new(2, 4.0));
/// let [gate, up] = [1.0, 2.0].map(|number| Tensor::<2>::full([3, 6], number, &device));
/// let bias = down.bias.as_ref().map(|bias| bias.val());
/// assert_eq!(swiglu_linear(gate, up, &down.weight, bias).dims(), [3, 4]);
/// ```
#[derive(Clone, Debug)]
pub struct LinearWeight {
    /// An operand, which may be trained.
    pub(super) value: Option<Tensor<2>>,
    /// In place of that, one that is not trained.
    pub(super) frozen: Option<Weight>,
    /// The factors of an adapter, and its scale.
    pub(super) factors: Option<([Tensor<2>; 2], f64)>,
}

impl LinearWeight {
    /// The value and the factors as operands, the weight that is none, and the scale of the factors.
    pub(super) fn into_operands(
        self,
    ) -> ([Option<DispatchTensor>; 3], Option<Weight>, Option<f64>) {
        let (factors, scale) = self.factors.unzip();
        let [a, b] = factors.map_or([None, None], |factors| factors.map(Some));
        let operands = [self.value, a, b].map(|operand| operand.map(Tensor::into_dispatch));
        (operands, self.frozen, scale)
    }

    pub(super) fn dims(&self) -> [usize; 2] {
        match (&self.value, &self.frozen) {
            (Some(value), _) => value.dims(),
            (None, Some(frozen)) => frozen.dims(),
            (None, None) => unreachable!("there is one of them"),
        }
    }
}

impl From<Tensor<2>> for LinearWeight {
    fn from(value: Tensor<2>) -> Self {
        // What is quantized has no gradient.
        let (value, frozen) = match is_quantized(&value) {
            true => (None, Some(Weight::constant(value))),
            false => (Some(value), None),
        };
        Self {
            value,
            frozen,
            factors: None,
        }
    }
}

impl From<&Param<Tensor<2>>> for LinearWeight {
    /// # Panics
    ///
    /// If the parameter is packed and is to be trained.
    fn from(param: &Param<Tensor<2>>) -> Self {
        let frozen = is_adapted(param).then(|| Weight::frozen(param));
        match frozen.flatten() {
            Some(frozen) => Self {
                value: None,
                frozen: Some(frozen),
                factors: adapter_of(param)
                    .map(|adapter| ([adapter.a.val(), adapter.b.val()], adapter.scale)),
            },
            None => param.val().into(),
        }
    }
}

/// Whether the value of a parameter is not one tensor.
pub(super) fn is_adapted(weight: &Param<Tensor<2>>) -> bool {
    Nf4Weight::of(weight).is_some() || weight.adapter().is_some()
}

/// The adapter of a parameter, packed or not.
pub(super) fn adapter_of(weight: &Param<Tensor<2>>) -> Option<&LoraAdapter> {
    match Nf4Weight::of(weight) {
        Some(packed) => packed.lora.as_ref(),
        None => weight.adapter(),
    }
}

/// A weight `[d_input, d_output]` without autodiff. It is packed, quantized, or of a type that need not be
/// that of what it is multiplied with.
#[derive(Clone, Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "a layer has one, beside which its tensors are large"
)]
pub(super) enum Weight {
    Tensor(Tensor<2>),
    Packed(Packed),
}

impl Weight {
    /// The base of a parameter, whose adapter it leaves out; `None` if it is trained.
    ///
    /// # Panics
    ///
    /// If it is packed and is to be trained.
    pub(super) fn frozen(weight: &Param<Tensor<2>>) -> Option<Self> {
        if let Some(packed) = Nf4Weight::of(weight) {
            return Some(Self::Packed(packed.frozen(&weight.base())));
        }
        (!weight.is_require_grad()).then(|| Self::constant(weight.base()))
    }

    fn constant(weight: Tensor<2>) -> Self {
        Self::Tensor(Tensor::from_dispatch(plain(weight.into_dispatch())))
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
        if let Self::Tensor(weight) = self
            && is_quantized(weight)
            && !is_on_flex(&input)
        {
            // Backends multiply by it without a dense copy.
            return burn::tensor::module::linear(input, weight.clone(), bias);
        }
        let weight = match self.in_parts() {
            Self::Tensor(weight) if weight.dtype() == dtype => {
                return product(input, weight, bias);
            }
            weight => weight,
        };
        let ([rows, _], [_, d_output]) = (input.dims(), self.dims());
        // Rounded once.
        let (input, bias) = (widened(input), bias.map(widened));
        let output = filled([rows, d_output], dtype, &input);
        by_parts(output, &weight.parts(1, &input), |columns| {
            let bias = bias.clone().map(|bias| bias.slice([columns.clone()]));
            product(input.clone(), weight.columns(columns, wide(dtype)), bias)
        })
    }

    /// `grad * weight^T`, of the type of `grad`; written over `over`, which has the shape and the type of
    /// the result.
    pub(super) fn product_transposed(&self, grad: Tensor<2>, over: Option<Tensor<2>>) -> Tensor<2> {
        let dtype = grad.dtype();
        let ([rows, _], [d_input, _]) = (grad.dims(), self.dims());
        let weight = match self.in_parts() {
            Self::Tensor(weight) if weight.dtype() == dtype => {
                let weight = weight.transpose();
                return match over {
                    Some(over) => product_over(over, grad, weight),
                    None => matmul(grad, weight),
                };
            }
            weight => weight,
        };
        let grad = widened(grad);
        let output = over.unwrap_or_else(|| filled([rows, d_input], dtype, &grad));
        by_parts(output, &weight.parts(0, &grad), |part| {
            matmul(grad.clone(), weight.rows(part, wide(dtype)).transpose())
        })
    }

    /// Whether a tensor of a type is multiplied by the weight as it is: nothing is unpacked or cast.
    pub(super) fn is_ready(&self, dtype: DType) -> bool {
        matches!(self, Self::Tensor(weight) if weight.dtype() == dtype)
    }

    /// The weight, dense if it was quantized.
    pub(super) fn dequantized(self) -> Self {
        match self {
            Self::Tensor(weight) if is_quantized(&weight) => Self::Tensor(weight.dequantize()),
            weight => weight,
        }
    }

    /// Rows of a weight that is not quantized: those that some columns of an input are multiplied by.
    pub(super) fn rows(&self, rows: Range<usize>, dtype: DType) -> Tensor<2> {
        match self {
            Self::Tensor(weight) => weight.clone().slice_dim(0, rows),
            Self::Packed(packed) => packed.unpacked_rows(rows),
        }
        .cast(dtype)
    }

    /// Columns of a weight that is not quantized.
    fn columns(&self, columns: Range<usize>, dtype: DType) -> Tensor<2> {
        match self {
            Self::Tensor(weight) => weight.clone().slice_dim(1, columns),
            Self::Packed(packed) => packed.unpacked_columns(columns),
        }
        .cast(dtype)
    }

    /// The weight as its parts are read: whole, if it is quantized or not packed by columns.
    fn in_parts(&self) -> Self {
        match self {
            Self::Packed(packed) if !packed.is_transposed() => Self::Tensor(packed.unpacked()),
            weight => weight.clone().dequantized(),
        }
    }

    /// Parts of an axis that are unpacked or cast at once, of which each thread has one.
    fn parts(&self, axis: usize, input: &Tensor<2>) -> Vec<Range<usize>> {
        let dims = self.dims();
        let (length, bytes) = (dims[axis], 4 * dims[1 - axis]);
        if !is_on_flex(input) {
            return chunks(length, bytes, 2 * PART_BYTES).collect();
        }
        let multiple = match self {
            // Parts of blocks are slower.
            Self::Packed(_) => BLOCK,
            // Products of fewer are slower.
            Self::Tensor(_) => 16,
        };
        let at_once = (PART_BYTES / bytes.max(1)).max(1);
        chunks_of(length, at_once.next_multiple_of(multiple)).collect()
    }
}

/// Writes columns of a product into `output`, some of them at once; they are rounded to its type.
fn by_parts(
    output: Tensor<2>,
    parts: &[Range<usize>],
    product: impl Fn(Range<usize>) -> Tensor<2> + Sync,
) -> Tensor<2> {
    let ([rows, _], dtype) = (output.dims(), output.dtype());
    let at_once = threads(&output);
    parts.chunks(at_once).fold(output, |output, parts| {
        let products = in_parallel(parts, |part| product(part.clone()).cast(dtype));
        let parts = parts.iter().zip(products);
        parts.fold(output, |output, (columns, product)| {
            output.slice_assign([0..rows, columns.clone()], product)
        })
    })
}

fn is_quantized(weight: &Tensor<2>) -> bool {
    matches!(weight.dtype(), DType::QFloat(_))
}
