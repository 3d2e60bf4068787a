use std::marker::PhantomData;

use burn::train::metric::{
    Metric, MetricAttributes, MetricMetadata, MetricName, Numeric, NumericAttributes, NumericEntry,
    SerializedEntry,
    state::{FormatOptions, NumericMetricState},
};

use crate::{StepMonitor, monitor::Iteration};

/// A number that a [`MonitorMetric`] reads off an iteration.
pub trait Reading: Clone + Send + Sync + 'static {
    /// The name of the metric.
    const NAME: &str;
    /// Description of the metric.
    const DESCRIPTION: &str;
    /// Its unit, if it has one.
    const UNIT: Option<&str>;
    /// Digits to show.
    const PRECISION: usize;
    /// Whether more of it is better.
    const HIGHER_IS_BETTER: bool;

    /// The number, if the iteration has one.
    fn value(iteration: &Iteration) -> Option<f64>;

    /// Additional text for the iteration.
    fn remark(_iteration: &Iteration) -> Option<String> {
        None
    }
}

/// A number of each training iteration, from the monitor that the strategy has.
///
/// Where an iteration has none, as while gradients accumulate, the last one is shown again and
/// counts for nothing: the mean of an epoch is over the iterations that have a number. An epoch in
/// which no iteration has one has no mean.
#[derive(Clone)]
pub struct MonitorMetric<R> {
    name: MetricName,
    monitor: StepMonitor,
    /// The numbers of this epoch.
    state: NumericMetricState,
    /// The last number, of this epoch or of an earlier one.
    last: Option<f64>,
    /// Whether the last iteration had a number.
    is_current: bool,
    /// Text shown with the last number of this epoch.
    shown: Option<String>,
    reading: PhantomData<fn() -> R>,
}

impl<R: Reading> MonitorMetric<R> {
    /// Creates the metric for a strategy that has this monitor.
    pub fn new(monitor: &StepMonitor) -> Self {
        Self {
            name: MetricName::new(R::NAME.to_string()),
            monitor: monitor.clone(),
            state: NumericMetricState::default(),
            last: None,
            is_current: false,
            shown: None,
            reading: PhantomData,
        }
    }

    fn format(&self) -> FormatOptions {
        let format = FormatOptions::new(self.name()).precision(R::PRECISION);
        match R::UNIT {
            Some(unit) => format.unit(unit),
            None => format,
        }
    }
}

impl<R: Reading> Metric for MonitorMetric<R> {
    type Input = ();

    fn update(&mut self, _item: &(), metadata: &MetricMetadata) -> SerializedEntry {
        let iteration = self.monitor.iteration(metadata);
        let value = iteration.as_ref().and_then(R::value);
        self.is_current = value.is_some();
        let Some(value) = value else {
            let shown = self.shown.clone().unwrap_or_else(|| "none yet".into());
            // Burn's loggers leave out an entry that is empty.
            return SerializedEntry::new(shown, String::new());
        };
        self.last = Some(value);
        let mut entry = self.state.update(value, 1, self.format());
        self.shown = Some(entry.formatted.clone());
        if let Some(remark) = iteration.as_ref().and_then(R::remark) {
            entry.formatted = format!("{} ({remark})", entry.formatted);
        }
        entry
    }

    fn clear(&mut self) {
        self.state.reset();
        self.shown = None;
    }

    fn name(&self) -> MetricName {
        self.name.clone()
    }

    fn description(&self) -> Option<String> {
        Some(R::DESCRIPTION.into())
    }

    fn attributes(&self) -> MetricAttributes {
        NumericAttributes {
            unit: R::UNIT.map(Into::into),
            higher_is_better: R::HIGHER_IS_BETTER,
        }
        .into()
    }
}

impl<R: Reading> Numeric for MonitorMetric<R> {
    fn value(&self) -> NumericEntry {
        if self.is_current {
            self.state.current_value()
        } else {
            uncounted(self.last)
        }
    }

    fn running_value(&self) -> NumericEntry {
        match self.state.running_value() {
            NumericEntry::Aggregated { count: 0, .. } => uncounted(self.last),
            mean => mean,
        }
    }
}

/// A number that counts for nothing. It is finite, as Burn multiplies it by its count and plots it.
fn uncounted(last: Option<f64>) -> NumericEntry {
    NumericEntry::Aggregated {
        aggregated_value: last.unwrap_or(0.0),
        count: 0,
    }
}

impl<R> std::fmt::Debug for MonitorMetric<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MonitorMetric")
            .field("name", &self.name)
            .field("monitor", &self.monitor)
            .finish_non_exhaustive()
    }
}
