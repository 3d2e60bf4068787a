//! A step of a parameter, in place where the backend can, and by Burn's operations elsewhere.

use burn::tensor::{DType, Tensor, backend::Backend};
use lean_arithmetic::optim::{Measure, Rule};

use crate::{
    LeanBackend,
    backend::{Operands, States, Stepped},
    moment::{Format, Moment, from_float},
    number::Whole,
};

/// The weight and the states after a step.
pub(crate) fn step<B: LeanBackend, R: Rule<N>, const N: usize, const D: usize>(
    rule: &R,
    operands: Operands<B, N>,
) -> Stepped<B, N> {
    if operands.has_pass() {
        B::step_in_place(rule, operands)
    } else {
        step_tensors::<_, _, _, D>(rule, operands)
    }
}

/// The mean of a measure, for which the host waits for the device.
pub(crate) fn mean<B: LeanBackend, M: Measure<N>, const N: usize, const D: usize>(
    measure: &M,
    operands: &Operands<B, N>,
) -> f64 {
    if operands.has_pass() {
        return scalar::<B>(from_float(B::mean_in_place(measure, operands)));
    }
    let grad: Tensor<B, D> = from_float(operands.grad.clone());
    let dtype = grad.dtype();
    let grad = operands.clip.clip(Whole(grad));
    let states = match &operands.states {
        States::New(_) => None,
        States::Old(states) => Some(states.clone().map(|state| Whole(floats(state, dtype)))),
    };
    let Whole(measured) = measure.measure(grad, states);
    // As in the pass, where the least of a measure takes its place.
    let is_nan = measured.clone().is_nan();
    scalar(measured.mask_fill(is_nan, 0.0).mean())
}

/// A number in its own type, which that of the backend's elements may not hold.
fn scalar<B: Backend>(tensor: Tensor<B, 1>) -> f64 {
    let scalar = tensor.into_data().iter::<f64>().next();
    scalar.expect("it has one element")
}

/// The step with Burn's operations.
fn step_tensors<B: LeanBackend, R: Rule<N>, const N: usize, const D: usize>(
    rule: &R,
    operands: Operands<B, N>,
) -> Stepped<B, N> {
    let weight: Tensor<B, D> = from_float(operands.weight);
    let dtype = weight.dtype();
    let weight = Whole(weight);
    let grad = operands.clip.clip(Whole(from_float(operands.grad)));
    let (formats, states) = match operands.states {
        States::New(formats) => (formats, None),
        States::Old(states) => {
            let formats = states.each_ref().map(Moment::format);
            // Moved, not cloned: Burn's operations write in place if the tensor has no other owner.
            let states = states.map(|state| Whole(floats(state, dtype)));
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
    Stepped {
        weight: weight.into_primitive().tensor(),
        states,
    }
}

/// A state for a step that computes in this type.
pub(crate) fn floats<B: Backend, const D: usize>(state: Moment<B>, dtype: DType) -> Tensor<B, D> {
    let floats: Tensor<B, D> = match state {
        Moment::Float(floats) => from_float(floats),
        blocks @ Moment::EightBit(_) => blocks.to_tensor(),
    };
    floats.cast(dtype)
}
