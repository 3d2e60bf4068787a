use super::{MonitorMetric, Reading};
use crate::train::monitor::Iteration;

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
