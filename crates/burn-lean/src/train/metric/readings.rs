//! What the metrics read of an iteration.

use super::{MonitorMetric, Reading};
use crate::Outcome;
use crate::train::monitor::Iteration;

/// Share of the stepped parameters that were stepped the moment their gradient was complete, in
/// percent.
///
/// Below 100 the entry shows the number of those that were stepped when backward had ended.
pub type ReleasedMetric = MonitorMetric<Released>;

/// The reading of [`ReleasedMetric`].
#[derive(Clone, Copy, Debug)]
pub struct Released;

impl Reading for Released {
    const NAME: &str = "Released";
    const DESCRIPTION: &str = "Parameters stepped the moment their gradient was complete.";
    const UNIT: Option<&str> = Some("%");
    const PRECISION: usize = 1;
    const HIGHER_IS_BETTER: bool = true;

    fn value(iteration: &Iteration) -> Option<f64> {
        let [released, at_end] = counts(iteration)?;
        let stepped = released + at_end;
        (stepped > 0).then(|| 100.0 * released as f64 / stepped as f64)
    }

    fn remark(iteration: &Iteration) -> Option<String> {
        let [released, at_end] = counts(iteration)?;
        let remark = format!("{released} of {} parameters", released + at_end);
        Some(match at_end {
            0 => remark,
            _ => format!("{remark}, {at_end} after backward"),
        })
    }
}

/// The numbers of parameters that were stepped inside backward, and after it.
fn counts(iteration: &Iteration) -> Option<[usize; 2]> {
    let (report, _) = iteration.step.as_ref()?;
    Some([Outcome::Released, Outcome::AtEnd].map(|outcome| report.count(outcome)))
}

/// The learning rate that the weights were stepped with. With groups, the rate of parameters in no
/// group.
///
/// Burn's own `LearningRateMetric` shows the rate of the scheduler. The two are the same, or
/// training stops with an error.
pub type AppliedLearningRateMetric = MonitorMetric<AppliedLearningRate>;

/// The reading of [`AppliedLearningRateMetric`].
#[derive(Clone, Copy, Debug)]
pub struct AppliedLearningRate;

impl Reading for AppliedLearningRate {
    const NAME: &str = "Applied Learning Rate";
    const DESCRIPTION: &str = "The learning rate the weights were stepped with.";
    const UNIT: Option<&str> = None;
    const PRECISION: usize = 2;
    const HIGHER_IS_BETTER: bool = false;

    fn value(iteration: &Iteration) -> Option<f64> {
        iteration.step.as_ref().map(|(_, lr)| *lr)
    }
}

/// The norm of all gradients of a step together, before clipping.
///
/// The optimizer must measure it: see
/// [`with_grad_norm`](crate::ReleaseOptimizer::with_grad_norm). Clipping by the global norm does so,
/// too.
pub type GradNormMetric = MonitorMetric<GradNorm>;

/// The reading of [`GradNormMetric`].
#[derive(Clone, Copy, Debug)]
pub struct GradNorm;

impl Reading for GradNorm {
    const NAME: &str = "Gradient Norm";
    const DESCRIPTION: &str = "The norm of all gradients together, before clipping.";
    const UNIT: Option<&str> = None;
    const PRECISION: usize = 4;
    const HIGHER_IS_BETTER: bool = false;

    fn value(iteration: &Iteration) -> Option<f64> {
        iteration.step.as_ref()?.0.grad_norm()
    }

    fn remark(iteration: &Iteration) -> Option<String> {
        let coefficient = iteration.step.as_ref()?.0.clip_coefficient()?;
        (coefficient < 1.0).then(|| format!("clipped by {coefficient:.4}"))
    }
}

/// The most memory that a training iteration held at once, in MiB: forward, backward and step.
///
/// The numbers come from the [`PeakMemory`](crate::train::PeakMemory) of the monitor.
pub type PeakMemoryMetric = MonitorMetric<StepPeak>;

/// The reading of [`PeakMemoryMetric`].
#[derive(Clone, Copy, Debug)]
pub struct StepPeak;

impl Reading for StepPeak {
    const NAME: &str = "Peak Memory";
    const DESCRIPTION: &str = "The most memory a training iteration held at once.";
    const UNIT: Option<&str> = Some("MiB");
    const PRECISION: usize = 1;
    const HIGHER_IS_BETTER: bool = false;

    fn value(iteration: &Iteration) -> Option<f64> {
        Some(iteration.peak_bytes? as f64 / (1024.0 * 1024.0))
    }
}
