//! A step of a parameter, in place where the backend can, and by Burn's operations elsewhere.

#[cfg(any(feature = "cube", feature = "flex"))]
use burn::backend::DispatchDevice;
use burn::tensor::{DType, Tensor};
use burn_lean_arithmetic::optim::{Clip, Measure, Rule};

#[cfg(feature = "cube")]
use super::cube;
#[cfg(feature = "flex")]
use super::flex;
use super::moment::{Format, Moment};

burn_lean_arithmetic::whole_tensor! {
    /// All elements of a tensor at once, as a rule without a pass computes with them.
    Whole<D>([const D: usize] Tensor<D>), greater_equal_scalar
}

/// What a step is made of.
pub(super) struct Operands<const N: usize, const D: usize> {
    pub(super) weight: Tensor<D>,
    /// Its gradient, of the same shape.
    pub(super) grad: Tensor<D>,
    /// What is done to the gradient first.
    pub(super) clip: Clip,
    pub(super) states: States<N, D>,
}

/// The states before a step.
pub(super) enum States<const N: usize, const D: usize> {
    /// There are none yet, and those of the first step are to be in these formats.
    New([Format; N]),
    /// Those of the last step.
    Old([Moment<D>; N]),
}

#[cfg(any(feature = "cube", feature = "flex"))]
impl<const N: usize, const D: usize> Operands<N, D> {
    /// Whether the parameter is on Flex, and of types that it has a pass for: weights in 32 bits,
    /// and states in 32 bits, bf16 or 8 bits. Weights of other types are stepped as Burn does,
    /// which rounds after each operation.
    #[cfg(feature = "flex")]
    fn has_flex_pass(&self) -> bool {
        let is_narrow = |format: &Format| match format {
            Format::Float(dtype) => matches!(dtype, DType::F32 | DType::BF16),
            Format::EightBit(_) => true,
        };
        self.is_in_32_bits()
            && matches!(self.weight.device().as_dispatch(), DispatchDevice::Flex(_))
            && self.formats().iter().all(is_narrow)
    }

    /// Whether the parameter is on the Cube backend, and of types that it has a pass for: weights in
    /// 32 bits, and states all in 32 bits or all in 8.
    #[cfg(feature = "cube")]
    fn has_cube_pass(&self) -> bool {
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

/// The weight and the states after a step.
pub(super) fn step<R: Rule<N>, const N: usize, const D: usize>(
    rule: &R,
    operands: Operands<N, D>,
) -> (Tensor<D>, [Moment<D>; N]) {
    #[cfg(feature = "flex")]
    if operands.has_flex_pass() {
        return flex::step(rule, operands);
    }
    #[cfg(feature = "cube")]
    if operands.has_cube_pass() {
        return cube::step(rule, operands);
    }
    step_tensors(rule, operands)
}

/// The mean of a measure, for which the host waits for the device.
pub(super) fn mean<M: Measure<N>, const N: usize, const D: usize>(
    measure: &M,
    operands: &Operands<N, D>,
) -> f32 {
    #[cfg(feature = "flex")]
    if operands.has_flex_pass() {
        return flex::mean(measure, operands);
    }
    #[cfg(feature = "cube")]
    if operands.has_cube_pass() {
        return cube::mean(measure, operands);
    }
    let grad = operands.clip.clip(Whole(operands.grad.clone()));
    let Whole(measured) = match &operands.states {
        States::New(_) => measure.first(grad),
        States::Old(states) => {
            let dtype = grad.0.dtype();
            measure.next(grad, states.clone().map(|state| floats(state, dtype)))
        }
    };
    measured.mean().into_scalar()
}

/// The step with Burn's operations.
fn step_tensors<R: Rule<N>, const N: usize, const D: usize>(
    rule: &R,
    operands: Operands<N, D>,
) -> (Tensor<D>, [Moment<D>; N]) {
    let Operands {
        weight,
        grad,
        clip,
        states,
    } = operands;
    let dtype = weight.dtype();
    let (weight, grad) = (Whole(weight), clip.clip(Whole(grad)));
    let (formats, (Whole(weight), states)) = match states {
        States::New(formats) => (formats, rule.first(weight, grad)),
        States::Old(states) => {
            let formats = states.each_ref().map(Moment::format);
            // Handed over, not cloned: Burn's operations write in place what nobody else holds.
            let states = states.map(|state| floats(state, dtype));
            (formats, rule.next(weight, grad, states))
        }
    };
    let mut formats = formats.into_iter();
    let states = states.map(|Whole(state)| {
        Moment::from_tensor(state, formats.next().expect("a format for each state"))
    });
    (weight, states)
}

fn floats<const D: usize>(state: Moment<D>, dtype: DType) -> Whole<D> {
    let floats = match state {
        Moment::Float(floats) => floats,
        blocks @ Moment::EightBit(_) => blocks.to_tensor(),
    };
    Whole(floats.cast(dtype))
}
