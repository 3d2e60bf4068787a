use std::marker::PhantomData;

use burn::train::metric::{
    Metric, MetricAttributes, MetricMetadata, MetricName, Numeric, NumericAttributes, NumericEntry,
    SerializedEntry,
    state::{FormatOptions, NumericMetricState},
};

use crate::{StepMonitor, monitor::Iteration};

/// What a [`MonitorMetric`] reads off an iteration.
pub trait Reading: Clone + Send + Sync + 'static {
    /// The name of the metric.
    const NAME: &str;
    /// What it says.
    const DESCRIPTION: &str;
    /// Its unit, if it has one.
    const UNIT: Option<&str>;
    /// Digits to show.
    const PRECISION: usize;
    /// Whether more of it is better.
    const HIGHER_IS_BETTER: bool;

    /// The number, if the iteration has one.
    fn value(iteration: &Iteration) -> Option<f64>;

    /// What else there is to say of the iteration.
    fn remark(_iteration: &Iteration) -> Option<String> {
        None
    }
}

/// A number of each training iteration, from the monitor that the strategy has.
///
/// Where an iteration has none, as while gradients accumulate, the last one is repeated.
#[derive(Clone)]
pub struct MonitorMetric<R> {
    name: MetricName,
    monitor: StepMonitor,
    state: NumericMetricState,
    last: Option<f64>,
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
        self.last = iteration.as_ref().and_then(R::value).or(self.last);
        let mut entry = match self.last {
            Some(value) => self.state.update(value, 1, self.format()),
            None => SerializedEntry::new("none yet".into(), f64::NAN.to_string()),
        };
        if let Some(remark) = iteration.as_ref().and_then(R::remark) {
            entry.formatted = format!("{} ({remark})", entry.formatted);
        }
        entry
    }

    fn clear(&mut self) {
        self.state.reset();
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
        self.state.current_value()
    }

    fn running_value(&self) -> NumericEntry {
        self.state.running_value()
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
