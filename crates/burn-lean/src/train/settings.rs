//! The settings of a training.

use burn::tensor::Device;

use super::StepMonitor;
use super::processes::Processes;
use crate::FirstPass;

/// A [`GradientReleaseStrategy`](super::GradientReleaseStrategy) as burn-train sees it: one type for
/// any number of passes.
pub(super) struct Settings<Batch> {
    pub(super) device: Device,
    pub(super) monitor: StepMonitor,
    pub(super) first_pass: Option<FirstPass>,
    pub(super) processes: Processes,
    pub(super) has_two_passes: bool,
    /// The batch for the second pass, if there is one.
    pub(super) again: fn(&Batch) -> Option<Batch>,
}
