//! What the metrics read of an iteration.

use burn_gradient_release::Outcome;

use super::{MonitorMetric, monitor_metric::Reading};
use crate::monitor::Iteration;

/// How many of the parameters that were stepped were stepped the moment their gradient was
/// complete, in percent.
///
/// Anything below 100 is a finding: the entry then says how many came late (at the end of backward)
/// and how many were not armed at all (an ordinary step).
pub type ReleasedMetric = MonitorMetric<Released>;

/// Input of [`ReleasedMetric`].
#[derive(Clone, Copy, Debug)]
pub struct Released;

impl Reading for Released {
    const NAME: &str = "Released";
    const DESCRIPTION: &str = "Parameters stepped the moment their gradient was complete.";
    const UNIT: Option<&str> = Some("%");
    const PRECISION: usize = 1;
    const HIGHER_IS_BETTER: bool = true;

    fn value(iteration: &Iteration) -> Option<f64> {
        let [released, late, ordinary] = counts(iteration)?;
        let stepped = released + late + ordinary;
        (stepped > 0).then(|| 100.0 * released as f64 / stepped as f64)
    }

    fn remark(iteration: &Iteration) -> Option<String> {
        let [released, late, ordinary] = counts(iteration)?;
        let stepped = released + late + ordinary;
        let mut remark = format!("{released} of {stepped} parameters");
        for (count, what) in [(late, "late"), (ordinary, "not armed")] {
            if count > 0 {
                remark += &format!(", {count} {what}");
            }
        }
        Some(remark)
    }
}

/// Numbers of parameters released, released late, and not armed.
fn counts(iteration: &Iteration) -> Option<[usize; 3]> {
    let report = iteration.report.as_ref()?;
    let outcomes = [Outcome::Released, Outcome::ReleasedLate, Outcome::Ordinary];
    Some(outcomes.map(|outcome| report.count(outcome)))
}

/// The learning rate that the weights were really stepped with.
///
/// Burn's own `LearningRateMetric` shows what the scheduler gave. The two are the same, or training
/// stops with an error.
pub type AppliedLearningRateMetric = MonitorMetric<AppliedLearningRate>;

/// Input of [`AppliedLearningRateMetric`].
#[derive(Clone, Copy, Debug)]
pub struct AppliedLearningRate;

impl Reading for AppliedLearningRate {
    const NAME: &str = "Applied Learning Rate";
    const DESCRIPTION: &str = "The learning rate the weights were stepped with.";
    const UNIT: Option<&str> = None;
    const PRECISION: usize = 2;
    const HIGHER_IS_BETTER: bool = false;

    fn value(iteration: &Iteration) -> Option<f64> {
        Some(iteration.report.as_ref()?.learning_rate())
    }
}

/// The norm of all gradients of a step together, before clipping.
///
/// For an optimizer that measures it:
/// [`with_grad_norm`](burn_gradient_release::ReleaseOptimizer::with_grad_norm), or a rule of
/// clipping that needs it.
pub type GradNormMetric = MonitorMetric<GradNorm>;

/// Input of [`GradNormMetric`].
#[derive(Clone, Copy, Debug)]
pub struct GradNorm;

impl Reading for GradNorm {
    const NAME: &str = "Gradient Norm";
    const DESCRIPTION: &str = "The norm of all gradients together, before clipping.";
    const UNIT: Option<&str> = None;
    const PRECISION: usize = 4;
    const HIGHER_IS_BETTER: bool = false;

    fn value(iteration: &Iteration) -> Option<f64> {
        iteration.report.as_ref()?.grad_norm()
    }

    fn remark(iteration: &Iteration) -> Option<String> {
        let coefficient = iteration.report.as_ref()?.clip_coefficient()?;
        (coefficient < 1.0).then(|| format!("clipped by {coefficient:.4}"))
    }
}

/// The most memory that a training iteration held at once, in MiB: forward, backward and step.
///
/// The numbers come from the [`PeakMemory`](crate::PeakMemory) of the monitor.
pub type PeakMemoryMetric = MonitorMetric<StepPeak>;

/// Input of [`PeakMemoryMetric`].
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
