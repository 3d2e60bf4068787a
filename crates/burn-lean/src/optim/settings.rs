//! Settings that all optimizers have.

use std::fmt;
use std::sync::Arc;

use burn::grad_clipping::{GradientClipping, GradientClippingConfig};
use burn::tensor::{DType, Shape, Tensor};
use lean_arithmetic::optim::{
    Clip, Kind, MicroBatch, Moments, MomentsAlone, Noise, Rule, Storage, assert_shape,
    expect_threshold,
};

use super::moment::{Format, Moment};
use super::operands::{Operands, States};
use super::step::step;
use crate::gradients::{is_only_asked, takes_f32_gradients};
use crate::wide::wide;

/// Settings that all optimizers of this module have.
#[derive(Clone, Default)]
pub struct Settings {
    pub(super) clipping: Option<GradientClipping>,
    pub(super) moments: Moments,
    /// Shapes of parameters whose moments have 32 bits: those of embeddings.
    pub(super) embeddings: Arc<[Shape]>,
    pub(super) micro_batch: MicroBatch,
    /// Whether steps are an optimizer of Burn's to the last bit, in every type.
    pub(super) is_burns: bool,
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("moments", &self.moments)
            .finish_non_exhaustive()
    }
}

impl Settings {
    pub(super) fn clipping(config: Option<GradientClippingConfig>) -> Self {
        Self {
            clipping: checked_clipping(config).map(|config| config.init()),
            ..Self::default()
        }
    }

    /// [`clipping`](Self::clipping) of an optimizer that Burn has as well.
    pub(super) fn as_burn(config: Option<GradientClippingConfig>) -> Self {
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

    /// Called first in a step. Returns whether the optimizer was only asked whether it takes the
    /// parameter.
    ///
    /// # Panics
    ///
    /// If this is a step, and the moments are in a type that the device does not have.
    pub(super) fn is_only_asked<const D: usize>(
        &self,
        weight: &Tensor<D>,
        has_moments: bool,
    ) -> bool {
        if self.dtype(weight.dtype()) != weight.dtype() {
            takes_f32_gradients();
        }
        let lacks_bf16 = has_moments
            && self.moments == Moments::Bf16
            && !weight.device().supports_dtype(DType::BF16);
        is_only_asked(match lacks_bf16 {
            true => Err(
                "its moments are to be in bf16, and the device has no bf16 (WGSL and NdArray have \
                 none): keep them in 32 or 8 bits"
                    .into(),
            ),
            false => Ok(()),
        })
    }

    /// The format of a state of a parameter.
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
    pub(super) fn step<R: Rule<N>, const N: usize, const D: usize>(
        &self,
        rule: &R,
        kinds: [Kind; N],
        noise: Option<Noise>,
        weight: Tensor<D>,
        grad: Tensor<D>,
        states: Option<[Moment<D>; N]>,
    ) -> (Tensor<D>, [Moment<D>; N]) {
        let dtype = weight.dtype();
        let operands = self.operands(kinds, noise, weight, grad, states);
        let (weight, states) = self.apply(rule, operands);
        (weight.cast(dtype), states)
    }

    /// Steps in place, or with whole tensors where there is no pass. The weight stays unless this
    /// micro-batch moves it.
    pub(super) fn apply<R: Rule<N>, const N: usize, const D: usize>(
        &self,
        rule: &R,
        operands: Operands<N, D>,
    ) -> (Tensor<D>, [Moment<D>; N]) {
        match self.micro_batch.moves {
            true => step(rule, operands),
            false => step(&MomentsAlone(*rule), operands),
        }
    }

    /// The operands of a step, in the type that it computes in, with the states in the formats of
    /// these settings.
    ///
    /// # Panics
    ///
    /// If a state is not of the parameter's shape.
    pub(super) fn operands<const N: usize, const D: usize>(
        &self,
        kinds: [Kind; N],
        noise: Option<Noise>,
        mut weight: Tensor<D>,
        mut grad: Tensor<D>,
        states: Option<[Moment<D>; N]>,
    ) -> Operands<N, D> {
        let dtype = self.dtype(weight.dtype());
        (weight, grad) = (weight.cast(dtype), grad.cast(dtype));
        let shape = weight.shape();
        let of_states = states.iter().flatten().map(Moment::shape);
        for other in [grad.shape()].into_iter().chain(of_states) {
            assert_shape(&other, &shape);
        }
        let formats = kinds.map(|kind| self.format(kind, &shape, dtype));
        let states = match states {
            None => States::New(formats),
            Some(states) => {
                let mut formats = formats.into_iter();
                States::Old(states.map(|state| {
                    state.into_format(formats.next().expect("a format for each state"))
                }))
            }
        };
        let (grad, clip) = match &self.clipping {
            None => (grad, Clip::None),
            Some(GradientClipping::Value(threshold)) => (grad, Clip::Value(*threshold)),
            Some(by_norm) => (by_norm.clip_gradient(grad), Clip::None),
        };
        Operands {
            weight,
            grad,
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
pub(super) fn checked_clipping(
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
