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

/// The path of the state in a checkpoint of the Learner, which has it among those of parameters. No
/// parameter has this path.
#[cfg(any(feature = "data-parallel", feature = "train"))]
pub(crate) const PATH_IN_CHECKPOINT: &str = "burn_lean::train";

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
