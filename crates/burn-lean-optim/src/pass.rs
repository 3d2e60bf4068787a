//! A step of a parameter, in place where the backend can, and by Burn's operations elsewhere.

use std::{fmt, sync::Arc};

use burn::{
    grad_clipping::{GradientClipping, GradientClippingConfig},
    tensor::{DType, ElementConversion, Shape, Tensor},
};

use burn_lean_arithmetic::optim::{
    Kind, Measure, Moments, MomentsAlone, Number, Part, Rule, Storage,
};

use crate::{
    LeanBackend,
    backend::{Clip, Operands, States, Stepped},
    moment::{Format, Moment, from_float},
    number::Whole,
};

/// What all optimizers of this crate can be told about how they keep and compute.
#[derive(Clone, Default)]
pub struct Settings {
    pub(crate) clipping: Option<GradientClipping>,
    pub(crate) moments: Moments,
    /// Parameters of these shapes keep moments of 32 bits.
    pub(crate) kept: Arc<[Shape]>,
    pub(crate) part: Part,
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("moments", &self.moments)
            .finish_non_exhaustive()
    }
}

impl Settings {
    pub(crate) fn clipping(config: Option<GradientClippingConfig>) -> Self {
        Self {
            clipping: config.map(|config| config.init()),
            ..Self::default()
        }
    }

    /// The format of a state of a parameter of this shape.
    fn format(&self, kind: Kind, shape: &Shape, dtype: DType) -> Format {
        let is_embedding = self.kept.contains(shape);
        let storage = self
            .moments
            .storage(kind, shape.num_elements(), is_embedding);
        match storage {
            Storage::AsParameter => Format::Float(dtype),
            Storage::F32 => Format::Float(DType::F32),
            Storage::Bf16 => Format::Float(DType::BF16),
            Storage::EightBit(map) => Format::EightBit(map),
        }
    }

    /// Steps a parameter by a rule.
    pub(crate) fn step<B: LeanBackend, R: Rule<N>, const N: usize, const D: usize>(
        &self,
        rule: &R,
        kinds: [Kind; N],
        weight: Tensor<B, D>,
        grad: Tensor<B, D>,
        states: Option<[Moment<B>; N]>,
    ) -> (Tensor<B, D>, [Moment<B>; N]) {
        let operands = self.operands(kinds, weight, grad, states);
        let stepped = self.apply::<_, _, _, D>(rule, operands);
        (from_float(stepped.weight), stepped.states)
    }

    /// Steps in place, or with whole tensors where the backend declines; the weight only if this
    /// part of the step moves it.
    pub(crate) fn apply<B: LeanBackend, R: Rule<N>, const N: usize, const D: usize>(
        &self,
        rule: &R,
        operands: Operands<B, N>,
    ) -> Stepped<B, N> {
        match self.part.moves {
            true => apply::<_, _, _, D>(rule, operands),
            false => apply::<_, _, _, D>(&MomentsAlone(*rule), operands),
        }
    }

    /// The operands of a step, with the states in the formats that these settings say.
    pub(crate) fn operands<B: LeanBackend, const N: usize, const D: usize>(
        &self,
        kinds: [Kind; N],
        weight: Tensor<B, D>,
        grad: Tensor<B, D>,
        states: Option<[Moment<B>; N]>,
    ) -> Operands<B, N> {
        let dtype = weight.dtype();
        let shape = weight.shape();
        for other in [grad.shape()]
            .into_iter()
            .chain(states.iter().flatten().map(Moment::shape))
        {
            assert_eq!(
                other, shape,
                "a gradient or a state of the optimizer is not of its parameter's shape: was the record loaded \
                 with another model?"
            );
        }
        let formats = kinds.map(|kind| self.format(kind, &shape, dtype));
        let states = match states {
            None => States::New(formats),
            Some(states) => {
                let mut formats = formats.into_iter();
                States::Old(states.map(|state| {
                    state.into_format::<D>(formats.next().expect("a format for each state"))
                }))
            }
        };
        let clip = match &self.clipping {
            None => Clip::None,
            Some(GradientClipping::Value(threshold)) => Clip::Value(*threshold),
            Some(GradientClipping::Norm(threshold)) => Clip::Factor(
                clip_factor(grad.clone(), *threshold)
                    .into_primitive()
                    .tensor(),
            ),
        };
        Operands {
            weight: weight.into_primitive().tensor(),
            grad: grad.into_primitive().tensor(),
            clip,
            states,
        }
    }
}

fn apply<B: LeanBackend, R: Rule<N>, const N: usize, const D: usize>(
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
) -> f32 {
    if operands.has_pass() {
        let mean: Tensor<B, 1> = from_float(B::mean_in_place(measure, operands));
        return mean.into_scalar().elem();
    }
    let grad: Tensor<B, D> = clipped(from_float(operands.grad.clone()), operands.clip.clone());
    let Whole(measured) = match &operands.states {
        States::New(_) => measure.first(Whole(grad)),
        States::Old(states) => {
            let dtype = grad.dtype();
            let states = states.clone().map(|state| Whole(floats(state, dtype)));
            measure.next(Whole(grad), states)
        }
    };
    measured.mean().into_scalar().elem()
}

/// The step with Burn's operations.
fn step_tensors<B: LeanBackend, R: Rule<N>, const N: usize, const D: usize>(
    rule: &R,
    operands: Operands<B, N>,
) -> Stepped<B, N> {
    let Operands {
        weight,
        grad,
        clip,
        states,
    } = operands;
    let (weight, grad): (Tensor<B, D>, Tensor<B, D>) = (from_float(weight), from_float(grad));
    let grad = clipped(grad, clip);
    let dtype = weight.dtype();
    let (weight, grad) = (Whole(weight), Whole(grad));
    let (formats, (Whole(weight), states)) = match states {
        States::New(formats) => (formats, rule.first(weight, grad)),
        States::Old(states) => {
            let formats = states.each_ref().map(Moment::format);
            // Handed over, not cloned: Burn's operations write in place what nobody else holds.
            let states = states.map(|state| Whole(floats(state, dtype)));
            (formats, rule.next(weight, grad, states))
        }
    };
    let mut formats = formats.into_iter();
    let states = states.map(|Whole(state)| {
        Moment::from_tensor(state, formats.next().expect("a format for each state"))
    });
    Stepped {
        weight: weight.into_primitive().tensor(),
        states,
    }
}

fn floats<B: LeanBackend, const D: usize>(state: Moment<B>, dtype: DType) -> Tensor<B, D> {
    let floats: Tensor<B, D> = match state {
        Moment::Float(floats) => from_float(floats),
        blocks @ Moment::EightBit(_) => blocks.to_tensor(),
    };
    floats.cast(dtype)
}

/// A gradient after clipping, with Burn's operations.
pub(crate) fn clipped<B: LeanBackend, const D: usize>(
    grad: Tensor<B, D>,
    clip: Clip<B>,
) -> Tensor<B, D> {
    match clip {
        Clip::None => grad,
        Clip::Value(threshold) => Whole(grad).clip_by_value(threshold.into()).0,
        Clip::Factor(factor) => grad.mul(from_float::<B, 1>(factor).unsqueeze()),
    }
}

/// What Burn's `GradientClipping::Norm` multiplies a gradient by, computed as there.
fn clip_factor<B: LeanBackend, const D: usize>(grad: Tensor<B, D>, threshold: f32) -> Tensor<B, 1> {
    let dtype = grad.dtype().finfo();
    let least = dtype
        .unwrap_or(burn::tensor::FloatDType::F32.finfo())
        .min_positive;
    let squares = B::sum_of_squares(grad.into_primitive().tensor());
    let norm = from_float::<B, 1>(squares).sqrt();
    (threshold / norm.add_scalar(least)).clamp_max(1.0)
}
