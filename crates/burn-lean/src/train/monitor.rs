//! The channel from the strategy to its metrics.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};

use crate::StepReport;
use crate::lock::lock;

/// A source of peak bytes: an allocator on the CPU, the memory manager of a device.
///
/// It is asked on the thread that trains.
pub trait PeakMemory: Send + Sync {
    /// Forgets the peak until now.
    fn reset_peak(&self);

    /// The most bytes that lived at once since the last reset.
    fn peak_bytes(&self) -> u64;
}

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
#[derive(Clone, Default)]
pub struct StepMonitor {
    memory: Option<Arc<dyn PeakMemory>>,
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
    /// Until the step was taken.
    pub(super) peak_bytes: Option<u64>,
}

/// Burn's metrics run on a thread of their own, at most a few iterations behind.
const KEPT: usize = 16;

impl StepMonitor {
    /// Watches the steps of a training.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the peak of every training iteration from here. The peak is reset before each.
    pub fn with_memory(mut self, memory: impl PeakMemory + 'static) -> Self {
        self.memory = Some(Arc::new(memory));
        self
    }

    pub(super) fn begin(&self) {
        if let Some(memory) = &self.memory {
            memory.reset_peak();
        }
    }

    pub(super) fn end(&self, iteration: usize, step: Option<(StepReport, f64)>) {
        let peak_bytes = self.memory.as_ref().map(|memory| memory.peak_bytes());
        let mut iterations = self.iterations();
        if iterations.last.len() == KEPT {
            iterations.last.pop_front();
            iterations.forgotten += 1;
        }
        iterations.last.push_back(Iteration {
            iteration,
            step,
            peak_bytes,
        });
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

impl std::fmt::Debug for StepMonitor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StepMonitor")
            .field("memory", &self.memory.is_some())
            .finish_non_exhaustive()
    }
}
