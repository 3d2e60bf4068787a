use super::{MonitorMetric, monitor_metric::Reading};
use crate::monitor::Iteration;

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
