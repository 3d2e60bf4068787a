use burn::train::metric::{
    Metric, MetricAttributes, MetricMetadata, MetricName, Numeric, NumericAttributes, NumericEntry,
    SerializedEntry, state::FormatOptions,
};

use super::gauge::{self, Gauge};
use crate::StepMonitor;

/// The most memory that a training iteration held at once, in MiB: forward, backward and step.
///
/// The numbers come from the [`PeakMemory`](crate::PeakMemory) of the monitor.
#[derive(Clone)]
pub struct PeakMemoryMetric {
    name: MetricName,
    monitor: StepMonitor,
    gauge: Gauge,
}

impl PeakMemoryMetric {
    /// Creates the metric for a strategy that has this monitor.
    pub fn new(monitor: &StepMonitor) -> Self {
        Self {
            name: gauge::name("Peak Memory"),
            monitor: monitor.clone(),
            gauge: Gauge::default(),
        }
    }
}

impl Metric for PeakMemoryMetric {
    type Input = ();

    fn update(&mut self, _item: &(), metadata: &MetricMetadata) -> SerializedEntry {
        let peak_bytes = self
            .monitor
            .iteration(metadata)
            .and_then(|done| done.peak_bytes);
        let value = peak_bytes.map(|bytes| bytes as f64 / (1024.0 * 1024.0));
        let format = FormatOptions::new(self.name()).unit("MiB").precision(1);
        self.gauge.update(value, format)
    }

    fn clear(&mut self) {
        self.gauge.clear();
    }

    fn name(&self) -> MetricName {
        self.name.clone()
    }

    fn description(&self) -> Option<String> {
        Some("The most memory a training iteration held at once.".into())
    }

    fn attributes(&self) -> MetricAttributes {
        NumericAttributes {
            unit: Some("MiB".into()),
            higher_is_better: false,
        }
        .into()
    }
}

impl Numeric for PeakMemoryMetric {
    fn value(&self) -> NumericEntry {
        self.gauge.value()
    }

    fn running_value(&self) -> NumericEntry {
        self.gauge.running_value()
    }
}

impl std::fmt::Debug for PeakMemoryMetric {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PeakMemoryMetric")
            .field("monitor", &self.monitor)
            .finish_non_exhaustive()
    }
}
