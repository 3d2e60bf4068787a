//! The state of gradient transforms between steps.

use lean_arithmetic::clipping::{AutoClip, ZClip};
use lean_arithmetic::scaling::LossScale;
use serde::{Deserialize, Serialize};

/// The state of the clipping rules.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Averages {
    pub(super) zclip: ZClip,
    pub(super) auto_clip: AutoClip,
}

/// The state of an optimizer's gradient transforms between steps: the norms of
/// [`NormClipping`](crate::NormClipping) and the scale of a [`LossScaler`](crate::LossScaler).
///
/// The record of the optimizer is Burn's and has no room for it: save this one beside it, in any
/// format of serde. Floats are saved as their bits, so that JSON brings back the same ones.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GradientRecord {
    pub(super) averages: Averages,
    pub(super) loss_scale: Option<LossScale>,
}
