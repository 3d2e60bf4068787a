//! The peak of the heap, which holds the tensors on the CPU.
//!
//! The allocator of the binary counts the bytes. In a binary without that allocator the peak is 0
//! MiB.

use std::sync::Arc;

use burn::train::metric::{
    Metric, MetricAttributes, MetricMetadata, MetricName, Numeric, NumericAttributes, NumericEntry,
    SerializedEntry,
    state::{FormatOptions, NumericMetricState},
};
use peak_alloc::PeakAlloc;

/// Bytes in a MiB.
pub const MIB: f64 = 1024.0 * 1024.0;

/// The peak of the heap since the previous iteration, in MiB.
///
/// It works with plain Burn and with gradient release. Burn updates metrics on another thread, so
/// the peak of an iteration may appear in the next one.
#[derive(Clone)]
pub struct PeakHeapMetric {
    name: MetricName,
    state: NumericMetricState,
}

impl PeakHeapMetric {
    /// The name of the metric.
    pub const NAME: &str = "Peak Heap";

    /// Creates the metric.
    pub fn new() -> Self {
        Self {
            name: Arc::new(Self::NAME.into()),
            state: NumericMetricState::default(),
        }
    }
}

impl Default for PeakHeapMetric {
    fn default() -> Self {
        Self::new()
    }
}

impl Metric for PeakHeapMetric {
    type Input = ();

    fn update(&mut self, _item: &(), _metadata: &MetricMetadata) -> SerializedEntry {
        let peak = PeakAlloc.peak_usage();
        PeakAlloc.reset_peak_usage();
        let format = FormatOptions::new(self.name()).unit("MiB").precision(1);
        self.state.update(peak as f64 / MIB, 1, format)
    }

    fn clear(&mut self) {
        self.state.reset();
    }

    fn name(&self) -> MetricName {
        self.name.clone()
    }

    fn attributes(&self) -> MetricAttributes {
        NumericAttributes {
            unit: Some("MiB".into()),
            higher_is_better: false,
        }
        .into()
    }
}

impl Numeric for PeakHeapMetric {
    fn value(&self) -> NumericEntry {
        self.state.current_value()
    }

    fn running_value(&self) -> NumericEntry {
        self.state.running_value()
    }
}

impl std::fmt::Debug for PeakHeapMetric {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PeakHeapMetric").finish_non_exhaustive()
    }
}
