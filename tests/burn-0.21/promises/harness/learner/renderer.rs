//! A renderer that draws nothing and remembers everything.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use burn::train::LearnerSummary;
use burn::train::metric::{MetricDefinition, MetricId, NumericEntry};
use burn::train::renderer::{
    EvaluationName, EvaluationProgress, MetricState, MetricsRenderer, MetricsRendererEvaluation,
    MetricsRendererTraining, ProgressType, TrainingProgress,
};

/// One metric at one item: the number, how many items it is the mean of, and what a user would
/// read.
#[derive(Clone, Debug)]
pub(crate) struct Shown {
    pub(crate) value: f64,
    pub(crate) count: usize,
    pub(crate) text: String,
}

/// Metrics shown so far.
#[derive(Default)]
struct Memory {
    train: HashMap<MetricId, Vec<Shown>>,
    valid: HashMap<MetricId, Vec<Shown>>,
    /// `(epoch, iteration)` of every training item.
    items: Vec<(usize, usize)>,
    valid_items: usize,
    ends: usize,
    summary: Option<LearnerSummary>,
}

/// Shared between the training, which shows, and the test, which looks.
#[derive(Clone)]
pub(crate) struct Renderer {
    memory: Arc<(Mutex<Memory>, Condvar)>,
    /// How long it takes for an item of validation.
    takes: Duration,
}

impl Renderer {
    pub(crate) fn new(takes: Duration) -> Self {
        Self {
            memory: Arc::default(),
            takes,
        }
    }

    fn with<R>(&self, act: impl FnOnce(&mut Memory) -> R) -> R {
        let (memory, changed) = &*self.memory;
        let result = act(&mut memory.lock().expect("no renderer panicked"));
        changed.notify_all();
        result
    }

    /// Values of a training metric at each item.
    pub(crate) fn train(&self, metric: &str) -> Vec<Shown> {
        let id = MetricId::new(Arc::new(metric.to_string()));
        self.with(|memory| memory.train.get(&id).cloned().unwrap_or_default())
    }

    /// Values of a validation metric at each item.
    pub(crate) fn valid(&self, metric: &str) -> Vec<Shown> {
        let id = MetricId::new(Arc::new(metric.to_string()));
        self.with(|memory| memory.valid.get(&id).cloned().unwrap_or_default())
    }

    /// `(epoch, iteration)` of every training item.
    pub(crate) fn items(&self) -> Vec<(usize, usize)> {
        self.with(|memory| memory.items.clone())
    }

    /// Number of validation items.
    pub(crate) fn valid_items(&self) -> usize {
        self.with(|memory| memory.valid_items)
    }

    /// How often training ended, and the summary it ended with.
    pub(crate) fn end(&self) -> (usize, Option<LearnerSummary>) {
        self.with(|memory| (memory.ends, memory.summary.take()))
    }

    /// Waits until this many validation items were shown, and so are in the event store.
    pub(super) fn wait_for_valid(&self, items: usize) {
        let (memory, changed) = &*self.memory;
        let memory = memory.lock().expect("no renderer panicked");
        let missing = |memory: &mut Memory| memory.valid_items < items;
        let waited = changed.wait_timeout_while(memory, Duration::from_secs(60), missing);
        let timed_out = waited.expect("no renderer panicked").1.timed_out();
        assert!(!timed_out, "validation items are missing");
    }
}

fn note(shown: &mut HashMap<MetricId, Vec<Shown>>, state: MetricState) {
    if let MetricState::Numeric(entry, number) = state {
        shown.entry(entry.metric_id).or_default().push(Shown {
            value: number.current(),
            count: match number {
                NumericEntry::Value(_) => 1,
                NumericEntry::Aggregated { count, .. } => count,
            },
            text: entry.serialized_entry.formatted,
        });
    }
}

impl MetricsRendererTraining for Renderer {
    fn update_train(&mut self, state: MetricState) {
        self.with(|memory| note(&mut memory.train, state));
    }

    fn update_valid(&mut self, state: MetricState) {
        std::thread::sleep(self.takes);
        self.with(|memory| note(&mut memory.valid, state));
    }

    fn render_train(&mut self, item: TrainingProgress, _: Vec<ProgressType>) {
        let epoch = item.global_progress.items_processed;
        let iteration = item.iteration.expect("every training item has one");
        self.with(|memory| memory.items.push((epoch, iteration)));
    }

    fn render_valid(&mut self, _: TrainingProgress, _: Vec<ProgressType>) {
        self.with(|memory| memory.valid_items += 1);
    }

    fn on_train_end(
        &mut self,
        summary: Option<LearnerSummary>,
    ) -> Result<(), Box<dyn std::error::Error>> {
        self.with(|memory| {
            memory.ends += 1;
            memory.summary = summary;
        });
        Ok(())
    }
}

impl MetricsRendererEvaluation for Renderer {
    fn update_test(&mut self, _: EvaluationName, _: MetricState) {}
    fn render_test(&mut self, _: EvaluationProgress, _: Vec<ProgressType>) {}
}

impl MetricsRenderer for Renderer {
    fn manual_close(&mut self) {}
    fn register_metric(&mut self, _: MetricDefinition) {}
}
