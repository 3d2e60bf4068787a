//! Facts of an iteration that the strategy hands to the metrics.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use burn::train::metric::MetricMetadata;
use burn_gradient_release::StepReport;

/// Where bytes are counted: an allocator on the CPU, the memory manager of a device.
///
/// Asked on the thread that trains. With the feature `device-memory`,
/// `burn_gradient_release_device_memory::DeviceMemory` is one.
pub trait PeakMemory: Send + Sync {
    /// Forgets the peak until now.
    fn reset_peak(&self);

    /// The most bytes that lived at once since the last reset.
    fn peak_bytes(&self) -> u64;
}

/// The bytes that tensors had in use on a device.
#[cfg(feature = "device-memory")]
impl PeakMemory for burn_gradient_release_device_memory::DeviceMemory {
    fn reset_peak(&self) {
        Self::reset_peak(self);
    }

    fn peak_bytes(&self) -> u64 {
        self.peak().in_use
    }
}

/// Carries what each training iteration did from the strategy to the metrics made with it.
///
/// Clones share what they carry.
///
/// ```
/// use burn::{backend::{Autodiff, Flex}, tensor::Device};
/// use burn_gradient_release::GradientRelease;
/// use burn_gradient_release_train::{GradientReleaseStrategy, StepMonitor, metric::ReleasedMetric};
///
/// type B = GradientRelease<Autodiff<Flex>>;
///
/// let monitor = StepMonitor::new();
/// let released = ReleasedMetric::new(&monitor); // for `.metric_train_numeric(released)`
/// let strategy = GradientReleaseStrategy::<B>::new(Device::<B>::default()).with_monitor(monitor);
/// # let _ = (released, strategy);
/// ```
#[derive(Clone, Default)]
pub struct StepMonitor {
    memory: Option<Arc<dyn PeakMemory>>,
    iterations: Arc<Mutex<VecDeque<Iteration>>>,
}

/// Report of one iteration.
#[derive(Clone, Debug)]
pub struct Iteration {
    epoch: usize,
    iteration: usize,
    /// None while gradients accumulate.
    pub(crate) report: Option<StepReport>,
    pub(crate) peak_bytes: Option<u64>,
}

/// Burn's metrics run on a thread of their own, at most a few iterations behind.
const KEPT: usize = 16;

impl StepMonitor {
    /// Watches the steps; memory only [with a source](Self::with_memory) of numbers.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the peak of every training iteration from here. The peak is reset before each.
    pub fn with_memory(mut self, memory: impl PeakMemory + 'static) -> Self {
        self.memory = Some(Arc::new(memory));
        self
    }

    pub(crate) fn begin(&self) {
        if let Some(memory) = &self.memory {
            memory.reset_peak();
        }
    }

    pub(crate) fn end(&self, epoch: usize, iteration: usize, report: Option<StepReport>) {
        let peak_bytes = self.memory.as_ref().map(|memory| memory.peak_bytes());
        let mut iterations = self.iterations();
        if iterations.len() == KEPT {
            iterations.pop_front();
        }
        iterations.push_back(Iteration {
            epoch,
            iteration,
            report,
            peak_bytes,
        });
    }

    /// Report of the iteration that a metric belongs to.
    pub(crate) fn iteration(&self, metadata: &MetricMetadata) -> Option<Iteration> {
        // Only training has a rate: a metric that is registered for both splits has no number here.
        metadata.lr?;
        let epoch = metadata.global_progress.items_processed;
        self.iterations()
            .iter()
            .rev()
            .find(|found| found.epoch == epoch && Some(found.iteration) == metadata.iteration)
            .cloned()
    }

    fn iterations(&self) -> MutexGuard<'_, VecDeque<Iteration>> {
        self.iterations
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for StepMonitor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StepMonitor")
            .field("memory", &self.memory.is_some())
            .finish_non_exhaustive()
    }
}
