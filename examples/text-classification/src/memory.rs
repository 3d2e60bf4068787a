//! What the heap holds, by the counting allocator of the binary.
//!
//! On the CPU, tensors live on the heap. Without that allocator there is nothing to show: 0 MiB.

use std::sync::Arc;

use burn::train::metric::{
    Metric, MetricAttributes, MetricMetadata, MetricName, Numeric, NumericAttributes, NumericEntry,
    SerializedEntry,
    state::{FormatOptions, NumericMetricState},
};
use peak_alloc::PeakAlloc;

/// Bytes in a MiB.
pub const MIB: f64 = 1024.0 * 1024.0;

/// The most memory that lived at once since the iteration before, in MiB.
///
/// For plain Burn and gradient release alike. Burn's metrics run beside the training, so the peak of
/// an iteration may show in the one after it.
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
