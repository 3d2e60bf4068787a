//! What is remembered of gradients from step to step.

use burn_lean_arithmetic::clipping::{AutoClip, ZClip};
use burn_lean_arithmetic::scaling::LossScale;
use serde::{Deserialize, Serialize};

/// What the rules of clipping remember.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Averages {
    pub(super) zclip: ZClip,
    pub(super) auto_clip: AutoClip,
}

/// What an optimizer remembers of gradients from step to step: the norms that
/// [`NormClipping`](crate::NormClipping) judges by, and the scale of a
/// [`LossScaler`](crate::LossScaler).
///
/// The record of the optimizer is Burn's and has no room for it: save this one beside it, in any
/// format of serde. Floats are saved as their bits, so that JSON brings back the same ones.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GradientRecord {
    pub(super) averages: Averages,
    pub(super) loss_scale: Option<LossScale>,
}
