//! The channel from the strategy to its metrics.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};

use crate::StepReport;
use crate::lock::lock;

/// Carries the report of each training iteration from the strategy to the metrics made with it.
///
/// Clones share the reports.
///
/// ```
/// use burn::tensor::Device;
/// use burn_lean::train::{GradientReleaseStrategy, StepMonitor, metric::ReleasedMetric};
///
/// let monitor = StepMonitor::new();
/// let released = ReleasedMetric::new(&monitor); // for `.metric_train_numeric(released)`
/// let strategy = GradientReleaseStrategy::new(Device::flex()).with_monitor(monitor);
/// # let _ = (released, strategy);
/// ```
#[derive(Clone, Debug, Default)]
pub struct StepMonitor {
    iterations: Arc<Mutex<Iterations>>,
}

#[derive(Debug, Default)]
struct Iterations {
    last: VecDeque<Iteration>,
    /// Number of iterations before those.
    forgotten: usize,
}

/// The report of one iteration.
#[derive(Clone, Debug)]
pub struct Iteration {
    iteration: usize,
    /// The rate and the report of the step; `None` while gradients accumulate.
    pub(super) step: Option<(StepReport, f64)>,
}

/// Burn's metrics run on a thread of their own, at most a few iterations behind.
const KEPT: usize = 16;

impl StepMonitor {
    /// Watches the steps of a training.
    pub fn new() -> Self {
        Self::default()
    }

    pub(super) fn end(&self, iteration: usize, step: Option<(StepReport, f64)>) {
        let mut iterations = self.iterations();
        if iterations.last.len() == KEPT {
            iterations.last.pop_front();
            iterations.forgotten += 1;
        }
        iterations.last.push_back(Iteration { iteration, step });
    }

    /// Number of iterations so far.
    pub(super) fn count(&self) -> usize {
        let iterations = self.iterations();
        iterations.forgotten + iterations.last.len()
    }

    /// The iteration at this index in the training, if it has this number in its epoch.
    pub(super) fn at(&self, place: usize, iteration: Option<usize>) -> Option<Iteration> {
        let iterations = self.iterations();
        let place = place.checked_sub(iterations.forgotten)?;
        let found = iterations.last.get(place);
        found
            .filter(|found| Some(found.iteration) == iteration)
            .cloned()
    }

    fn iterations(&self) -> MutexGuard<'_, Iterations> {
        lock(&self.iterations)
    }
}
