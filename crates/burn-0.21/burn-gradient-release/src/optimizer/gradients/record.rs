//! State that is kept of gradients from step to step.

use burn::{
    record::{PrecisionSettings, Record},
    tensor::backend::Backend,
};
use lean_arithmetic::clipping::{AutoClip, ZClip};
use serde::{Deserialize, Serialize};

use super::scaler::LossScalerRecord;

/// State of the clipping rules.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Averages {
    pub(super) zclip: ZClip,
    pub(super) auto_clip: AutoClip,
}

/// State that an optimizer keeps of gradients from step to step: the averages of
/// [`NormClipping`](super::NormClipping), and the scale of a [`LossScaler`](super::LossScaler).
///
/// The record of the optimizer is Burn's and has no room for it: save this one beside it, with any
/// of Burn's recorders or with serde.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GradientRecord {
    pub(super) averages: Averages,
    pub(super) loss_scaler: Option<LossScalerRecord>,
}

impl<B: Backend> Record<B> for GradientRecord {
    type Item<S: PrecisionSettings> = Self;

    fn into_item<S: PrecisionSettings>(self) -> Self {
        self
    }

    fn from_item<S: PrecisionSettings>(item: Self, _device: &B::Device) -> Self {
        item
    }
}
