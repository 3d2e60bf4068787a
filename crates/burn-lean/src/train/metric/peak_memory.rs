use super::{MonitorMetric, Reading};
use crate::train::monitor::Iteration;

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
