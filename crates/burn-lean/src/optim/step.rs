//! A step of a parameter, in place where the backend can, and by Burn's operations elsewhere.

use burn::tensor::{DType, Tensor};
use lean_arithmetic::optim::{Measure, Rule};

#[cfg(feature = "cube")]
use super::cube;
#[cfg(feature = "flex")]
use super::flex;
use super::moment::{Format, Moment};
use super::operands::{Operands, States};

lean_arithmetic::whole_tensor! {
    /// All elements of a tensor at once, as a rule without a pass computes with them.
    Whole<D>([const D: usize] Tensor<D>), greater_equal_scalar
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
) -> f64 {
    #[cfg(feature = "flex")]
    if operands.has_flex_pass() {
        return flex::mean(measure, operands).into();
    }
    #[cfg(feature = "cube")]
    if operands.has_cube_pass() {
        return cube::mean(measure, operands).into();
    }
    let grad = operands.clip.clip(Whole(operands.grad.clone()));
    let states = match &operands.states {
        States::New(_) => None,
        States::Old(states) => {
            let dtype = grad.0.dtype();
            Some(states.clone().map(|state| floats(state, dtype)))
        }
    };
    let Whole(measured) = measure.measure(grad, states);
    // As in the pass, where the least of a measure takes its place.
    let is_nan = measured.clone().is_nan();
    measured.mask_fill(is_nan, 0.0).mean().into_scalar()
}

/// The step with Burn's operations.
fn step_tensors<R: Rule<N>, const N: usize, const D: usize>(
    rule: &R,
    operands: Operands<N, D>,
) -> (Tensor<D>, [Moment<D>; N]) {
    let dtype = operands.weight.dtype();
    let (weight, grad) = (Whole(operands.weight), Whole(operands.grad));
    let grad = operands.clip.clip(grad);
    let (formats, states) = match operands.states {
        States::New(formats) => (formats, None),
        States::Old(states) => {
            let formats = states.each_ref().map(Moment::format);
            // Moved, not cloned: Burn's operations write in place if the tensor has no other owner.
            let states = states.map(|state| floats(state, dtype));
            (formats, Some(states))
        }
    };
    let (Whole(mut weight), states) = rule.step(weight, grad, states);
    let mut formats = formats.into_iter();
    let states = states.map(|Whole(state)| {
        let format = formats.next().expect("a format for each state");
        if let Format::EightBit(_) = format {
            // 8 bits cannot hold what 32 cannot, and it has to show.
            let in_32_bits = state.clone().cast(DType::F32);
            let is_lost = in_32_bits.clone().is_finite().bool_not();
            weight = weight.clone().mask_where(is_lost, in_32_bits.cast(dtype));
        }
        Moment::rounded(state, format, operands.noise)
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
