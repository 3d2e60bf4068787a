use burn::train::metric::{
    Metric, MetricAttributes, MetricMetadata, MetricName, Numeric, NumericAttributes, NumericEntry,
    SerializedEntry, state::FormatOptions,
};

use super::gauge::{self, Gauge};
use crate::StepMonitor;

/// The learning rate that the weights were really stepped with.
///
/// Burn's own `LearningRateMetric` shows what the scheduler gave. The two are the same, or training
/// stops with an error.
#[derive(Clone)]
pub struct AppliedLearningRateMetric {
    name: MetricName,
    monitor: StepMonitor,
    gauge: Gauge,
}

impl AppliedLearningRateMetric {
    /// Creates the metric for a strategy that has this monitor.
    pub fn new(monitor: &StepMonitor) -> Self {
        Self {
            name: gauge::name("Applied Learning Rate"),
            monitor: monitor.clone(),
            gauge: Gauge::default(),
        }
    }
}

impl Metric for AppliedLearningRateMetric {
    type Input = ();

    fn update(&mut self, _item: &(), metadata: &MetricMetadata) -> SerializedEntry {
        let report = self
            .monitor
            .iteration(metadata)
            .and_then(|done| done.report);
        let value = report.map(|report| report.learning_rate());
        let format = FormatOptions::new(self.name()).precision(2);
        self.gauge.update(value, format)
    }

    fn clear(&mut self) {
        self.gauge.clear();
    }

    fn name(&self) -> MetricName {
        self.name.clone()
    }

    fn description(&self) -> Option<String> {
        Some("The learning rate the weights were stepped with.".into())
    }

    fn attributes(&self) -> MetricAttributes {
        NumericAttributes {
            unit: None,
            higher_is_better: false,
        }
        .into()
    }
}

impl Numeric for AppliedLearningRateMetric {
    fn value(&self) -> NumericEntry {
        self.gauge.value()
    }

    fn running_value(&self) -> NumericEntry {
        self.gauge.running_value()
    }
}

impl std::fmt::Debug for AppliedLearningRateMetric {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AppliedLearningRateMetric")
            .field("monitor", &self.monitor)
            .finish_non_exhaustive()
    }
}
