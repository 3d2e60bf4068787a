use burn::train::metric::{
    Metric, MetricAttributes, MetricMetadata, MetricName, Numeric, NumericAttributes, NumericEntry,
    SerializedEntry, state::FormatOptions,
};
use burn_gradient_release::Outcome;

use super::gauge::{self, Gauge};
use crate::StepMonitor;

/// How many of the parameters that were stepped were stepped the moment their gradient was complete,
/// in percent.
///
/// Anything below 100 is a finding: the entry then says how many came late (at the end of backward)
/// and how many were not armed at all (an ordinary step).
#[derive(Clone)]
pub struct ReleasedMetric {
    name: MetricName,
    monitor: StepMonitor,
    gauge: Gauge,
}

impl ReleasedMetric {
    /// Creates the metric for a strategy that has this monitor.
    pub fn new(monitor: &StepMonitor) -> Self {
        Self {
            name: gauge::name("Released"),
            monitor: monitor.clone(),
            gauge: Gauge::default(),
        }
    }
}

impl Metric for ReleasedMetric {
    type Input = ();

    fn update(&mut self, _item: &(), metadata: &MetricMetadata) -> SerializedEntry {
        let report = self
            .monitor
            .iteration(metadata)
            .and_then(|done| done.report);
        let format = FormatOptions::new(self.name()).unit("%").precision(1);
        let Some(report) = report else {
            return self.gauge.update(None, format);
        };
        let [released, late, ordinary] =
            [Outcome::Released, Outcome::ReleasedLate, Outcome::Ordinary]
                .map(|outcome| report.count(outcome));
        let stepped = released + late + ordinary;
        let percent = (stepped > 0).then(|| 100.0 * released as f64 / stepped as f64);
        let mut entry = self.gauge.update(percent, format);
        entry.formatted = format!("{} ({released} of {stepped} parameters", entry.formatted);
        for (count, what) in [(late, "late"), (ordinary, "not armed")] {
            if count > 0 {
                entry.formatted += &format!(", {count} {what}");
            }
        }
        entry.formatted += ")";
        entry
    }

    fn clear(&mut self) {
        self.gauge.clear();
    }

    fn name(&self) -> MetricName {
        self.name.clone()
    }

    fn description(&self) -> Option<String> {
        Some("Parameters stepped the moment their gradient was complete.".into())
    }

    fn attributes(&self) -> MetricAttributes {
        NumericAttributes {
            unit: Some("%".into()),
            higher_is_better: true,
        }
        .into()
    }
}

impl Numeric for ReleasedMetric {
    fn value(&self) -> NumericEntry {
        self.gauge.value()
    }

    fn running_value(&self) -> NumericEntry {
        self.gauge.running_value()
    }
}

impl std::fmt::Debug for ReleasedMetric {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReleasedMetric")
            .field("monitor", &self.monitor)
            .finish_non_exhaustive()
    }
}
