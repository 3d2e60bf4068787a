//! Settings that all optimizers have.

use std::{fmt, sync::Arc};

use burn::{
    grad_clipping::{GradientClipping, GradientClippingConfig},
    tensor::{DType, Shape, Tensor},
};
use lean_arithmetic::optim::{
    Clip, Kind, MicroBatch, Moments, MomentsAlone, Noise, Rule, Storage, assert_shape,
    expect_threshold,
};

use crate::{
    LeanBackend,
    backend::{Operands, States, Stepped},
    moment::{Format, Moment, from_float, wide},
    step::step,
};

/// Settings that all optimizers of this crate have.
#[derive(Clone, Default)]
pub struct Settings {
    pub(crate) clipping: Option<GradientClipping>,
    pub(crate) moments: Moments,
    /// Shapes of parameters whose moments have 32 bits: those of embeddings.
    pub(crate) embeddings: Arc<[Shape]>,
    pub(crate) micro_batch: MicroBatch,
    /// Whether steps are an optimizer of Burn's to the last bit, in every type.
    pub(crate) is_burns: bool,
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
            clipping: checked_clipping(config).map(|config| config.init()),
            ..Self::default()
        }
    }

    /// [`clipping`](Self::clipping) of an optimizer that Burn has as well.
    pub(crate) fn as_burn(config: Option<GradientClippingConfig>) -> Self {
        Self {
            is_burns: true,
            ..Self::clipping(config)
        }
    }

    /// The type that a parameter is stepped in, and that its states are in if not in fewer bits. In
    /// half precision the second moment is infinite, zero or stands still.
    fn dtype(&self, weight: DType) -> DType {
        match self.is_burns && self.moments == Moments::Full {
            true => weight,
            false => wide(weight),
        }
    }

    /// The format of a state of a parameter of this shape.
    fn format(&self, kind: Kind, shape: &Shape, dtype: DType) -> Format {
        let is_embedding = self.embeddings.contains(shape);
        let storage = self
            .moments
            .storage(kind, shape.num_elements(), is_embedding);
        match storage {
            Storage::AsParameter => Format::Float(dtype),
            Storage::F32 => Format::Float(DType::F32),
            Storage::Bf16 => Format::Float(DType::BF16),
            Storage::EightBit(kind) => Format::EightBit(kind),
        }
    }

    /// Steps a parameter by a rule, and rounds it once. States in 8 bits are rounded with the noise,
    /// or with that of their scales.
    pub(crate) fn step<B: LeanBackend, R: Rule<N>, const N: usize, const D: usize>(
        &self,
        rule: &R,
        kinds: [Kind; N],
        noise: Option<Noise>,
        weight: Tensor<B, D>,
        grad: Tensor<B, D>,
        states: Option<[Moment<B>; N]>,
    ) -> (Tensor<B, D>, [Moment<B>; N]) {
        let dtype = weight.dtype();
        let operands = self.operands(kinds, noise, weight, grad, states);
        let stepped = self.apply::<_, _, _, D>(rule, operands);
        let weight: Tensor<B, D> = from_float(stepped.weight);
        (weight.cast(dtype), stepped.states)
    }

    /// Steps in place, or with whole tensors where the backend declines. The weight stays unless
    /// this micro-batch moves it.
    pub(crate) fn apply<B: LeanBackend, R: Rule<N>, const N: usize, const D: usize>(
        &self,
        rule: &R,
        operands: Operands<B, N>,
    ) -> Stepped<B, N> {
        match self.micro_batch.moves {
            true => step::<_, _, _, D>(rule, operands),
            false => step::<_, _, _, D>(&MomentsAlone(*rule), operands),
        }
    }

    /// The operands of a step, in the type that it computes in, with the states in the formats of
    /// these settings.
    ///
    /// # Panics
    ///
    /// If a gradient or a state is not of the parameter's shape.
    pub(crate) fn operands<B: LeanBackend, const N: usize, const D: usize>(
        &self,
        kinds: [Kind; N],
        noise: Option<Noise>,
        mut weight: Tensor<B, D>,
        mut grad: Tensor<B, D>,
        states: Option<[Moment<B>; N]>,
    ) -> Operands<B, N> {
        let dtype = self.dtype(weight.dtype());
        if dtype != weight.dtype() {
            (weight, grad) = (weight.cast(dtype), grad.cast(dtype));
        }
        let shape = weight.shape();
        for other in [grad.shape()]
            .into_iter()
            .chain(states.iter().flatten().map(Moment::shape))
        {
            assert_shape(&other, &shape);
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
        let (grad, clip) = match &self.clipping {
            None => (grad, Clip::None),
            Some(GradientClipping::Value(threshold)) => (grad, Clip::Value(*threshold)),
            // As on Burn 0.22: squares of a gradient in half precision would overflow.
            Some(by_norm) => {
                let clipped = by_norm.clip_gradient(grad.cast(wide(dtype)));
                (clipped.cast(dtype), Clip::None)
            }
        };
        Operands {
            weight: weight.into_primitive().tensor(),
            grad: grad.into_primitive().tensor(),
            clip,
            states,
            noise,
        }
    }
}

/// Returns the configuration if its threshold is in range.
///
/// # Panics
///
/// If it is not. The message names its value.
pub(crate) fn checked_clipping(
    config: Option<GradientClippingConfig>,
) -> Option<GradientClippingConfig> {
    if let Some(
        GradientClippingConfig::Value(threshold) | GradientClippingConfig::Norm(threshold),
    ) = config
    {
        expect_threshold(threshold);
    }
    config
}
