//! The operands of a step.

#[cfg(any(feature = "cube", feature = "flex"))]
use burn::backend::DispatchDevice;
#[cfg(any(feature = "cube", feature = "flex"))]
use burn::tensor::DType;
use burn::tensor::Tensor;
use lean_arithmetic::optim::{Clip, Noise};

use super::moment::{Format, Moment};

pub(super) struct Operands<const N: usize, const D: usize> {
    pub(super) weight: Tensor<D>,
    /// Its gradient, of the same shape.
    pub(super) grad: Tensor<D>,
    /// The clipping of the gradient before the step.
    pub(super) clip: Clip,
    pub(super) states: States<N, D>,
    /// The noise that states in 8 bits are rounded with. Without, it is that of their scales.
    pub(super) noise: Option<Noise>,
}

/// The states before a step.
pub(super) enum States<const N: usize, const D: usize> {
    /// There are no states yet. Those of the first step will have these formats.
    New([Format; N]),
    /// The states after the last step.
    Old([Moment<D>; N]),
}

#[cfg(any(feature = "cube", feature = "flex"))]
impl<const N: usize, const D: usize> Operands<N, D> {
    /// Whether the parameter is on Flex, and of types that it has a pass for: weights in 32 bits,
    /// and states in 32 bits, bf16 or 8 bits. Weights in half precision come widened, unless the
    /// optimizer has Burn's bits: those are stepped by Burn's operations.
    #[cfg(feature = "flex")]
    pub(super) fn has_flex_pass(&self) -> bool {
        let is_narrow = |format: &Format| match format {
            Format::Float(dtype) => matches!(dtype, DType::F32 | DType::BF16),
            Format::EightBit(_) => true,
        };
        self.is_in_32_bits()
            && matches!(self.weight.device().as_dispatch(), DispatchDevice::Flex(_))
            && self.formats().iter().all(is_narrow)
    }

    /// Whether the parameter is on the Cube backend, and of types that it has a pass for: weights
    /// in 32 bits, and states all in 32 bits or all in 8.
    #[cfg(feature = "cube")]
    pub(super) fn has_cube_pass(&self) -> bool {
        let all = |is_so: fn(&Format) -> bool| self.formats().iter().all(is_so);
        self.is_in_32_bits()
            && self.weight.shape().num_elements() > 0
            && matches!(self.weight.device().as_dispatch(), DispatchDevice::Cube(_))
            && (all(|format| *format == Format::Float(DType::F32))
                || all(|format| matches!(format, Format::EightBit(_))))
    }

    fn is_in_32_bits(&self) -> bool {
        self.weight.dtype() == DType::F32 && self.grad.dtype() == DType::F32
    }

    fn formats(&self) -> [Format; N] {
        match &self.states {
            States::New(formats) => *formats,
            States::Old(states) => states.each_ref().map(Moment::format),
        }
    }
}
