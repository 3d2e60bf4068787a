//! What the metrics have in common: a number that not every iteration has.

use burn::train::metric::{
    MetricName, NumericEntry, SerializedEntry,
    state::{FormatOptions, NumericMetricState},
};

/// The last number, and the mean over the epoch.
#[derive(Clone, Default)]
pub(super) struct Gauge {
    state: NumericMetricState,
    last: Option<f64>,
}

impl Gauge {
    /// Takes a new number, or repeats the last one where the iteration has none.
    pub(super) fn update(&mut self, value: Option<f64>, format: FormatOptions) -> SerializedEntry {
        self.last = value.or(self.last);
        match self.last {
            Some(value) => self.state.update(value, 1, format),
            None => SerializedEntry::new("none yet".into(), f64::NAN.to_string()),
        }
    }

    pub(super) fn clear(&mut self) {
        self.state.reset();
    }

    pub(super) fn value(&self) -> NumericEntry {
        self.state.current_value()
    }

    pub(super) fn running_value(&self) -> NumericEntry {
        self.state.running_value()
    }
}

pub(super) fn name(name: &str) -> MetricName {
    MetricName::new(name.to_string())
}
