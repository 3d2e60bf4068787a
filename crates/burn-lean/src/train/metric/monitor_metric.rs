use std::marker::PhantomData;

use burn::tensor::TensorReadError;
use burn::train::metric::state::{FormatOptions, NumericMetricState};
use burn::train::metric::{
    Metric, MetricAttributes, MetricMetadata, MetricName, Numeric, NumericAttributes, NumericEntry,
    SerializedEntry,
};

use crate::train::StepMonitor;
use crate::train::monitor::Iteration;

/// A number that a [`MonitorMetric`] reads from an iteration.
pub trait Reading: Clone + Send + Sync + 'static {
    /// The name of the metric.
    const NAME: &str;
    /// The description of the metric.
    const DESCRIPTION: &str;
    /// Its unit, if it has one.
    const UNIT: Option<&str>;
    /// Digits to show.
    const PRECISION: usize;
    /// Whether more of it is better.
    const HIGHER_IS_BETTER: bool;

    /// The number, if the iteration has one.
    fn value(iteration: &Iteration) -> Option<f64>;

    /// A remark on the iteration, shown after the number.
    fn remark(_iteration: &Iteration) -> Option<String> {
        None
    }
}

/// A number of each training iteration, from the monitor that the strategy has.
///
/// An iteration without a number, as while gradients accumulate, is neither shown nor logged: the
/// mean of an epoch is over the iterations that have one.
#[derive(Clone, Debug)]
pub struct MonitorMetric<R> {
    name: MetricName,
    monitor: StepMonitor,
    /// The index of the next iteration in the training.
    place: usize,
    /// The numbers of this epoch.
    state: State,
    reading: PhantomData<fn() -> R>,
}

#[derive(Clone, Default)]
struct State {
    numbers: NumericMetricState,
    /// The number of values.
    count: usize,
    /// Whether the last iteration had one.
    is_current: bool,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State")
            .field("count", &self.count)
            .finish_non_exhaustive()
    }
}

impl<R: Reading> MonitorMetric<R> {
    /// Creates the metric for a strategy that has this monitor.
    pub fn new(monitor: &StepMonitor) -> Self {
        Self {
            name: MetricName::new(R::NAME.to_string()),
            monitor: monitor.clone(),
            place: monitor.count(),
            state: State::default(),
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

    /// The iteration that the metric is updated for.
    fn next(&mut self, metadata: &MetricMetadata) -> Option<Iteration> {
        // Only training has a rate: a metric that is registered for both splits has no number in
        // the other.
        metadata.lr.as_ref()?;
        let place = self.place;
        self.place += 1;
        self.monitor.at(place, metadata.iteration)
    }
}

impl<R: Reading> Metric for MonitorMetric<R> {
    type Input = ();

    fn update(
        &mut self,
        _: &(),
        metadata: &MetricMetadata,
    ) -> Result<SerializedEntry, TensorReadError> {
        let iteration = self.next(metadata);
        let value = iteration.as_ref().and_then(R::value);
        self.state.is_current = value.is_some();
        let Some(value) = value else {
            return Ok(SerializedEntry::not_available(R::UNIT));
        };
        self.state.numbers.update(value, 1);
        self.state.count += 1;
        let mut entry = self.state.numbers.compute_update(self.format());
        if let Some(remark) = iteration.as_ref().and_then(R::remark) {
            entry.formatted = format!("{} ({remark})", entry.formatted);
        }
        Ok(entry)
    }

    fn compute(&mut self) -> Result<SerializedEntry, TensorReadError> {
        Ok(match self.state.count {
            0 => SerializedEntry::not_available(R::UNIT),
            _ => self.state.numbers.compute_final(self.format()),
        })
    }

    fn clear(&mut self) {
        self.state = State::default();
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
    fn value(&self) -> Option<NumericEntry> {
        let state = &self.state;
        state.is_current.then(|| state.numbers.current_value())
    }

    fn running_value(&self) -> Option<NumericEntry> {
        (self.state.count > 0).then(|| self.state.numbers.running_value())
    }

    fn final_value(&self) -> NumericEntry {
        self.state.numbers.final_value()
    }
}
