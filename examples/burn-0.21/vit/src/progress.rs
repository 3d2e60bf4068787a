//! The progress of a run without Burn's terminal UI: one line for each epoch, on stderr.

use crate::memory::HighWater;
use crate::terminal::{mib, note};
use burn::train::LearnerSummary;
use burn::train::metric::{MetricDefinition, MetricId, NumericEntry};
use burn::train::renderer::{
    EvaluationName, EvaluationProgress, MetricState, MetricsRenderer, MetricsRendererEvaluation,
    MetricsRendererTraining, ProgressType, TrainingProgress,
};
use std::collections::HashMap;
use std::error::Error;

/// Prints the metrics of an epoch in one line, after its validation.
#[derive(Debug)]
pub struct EpochLines {
    memory: HighWater,
    names: HashMap<MetricId, String>,
    train: Means,
    valid: Means,
}

impl EpochLines {
    /// Creates the renderer; lines include the peak of `memory`.
    pub fn new(memory: HighWater) -> Self {
        Self {
            memory,
            names: HashMap::new(),
            train: Means::default(),
            valid: Means::default(),
        }
    }

    fn line(&self, epoch: usize, epochs: usize) -> String {
        let mut line = format!("epoch {epoch:>3}/{epochs}");
        for (label, value) in [
            ("loss", self.train.of("Loss")),
            ("validation loss", self.valid.of("Loss")),
        ] {
            if let Some(value) = value {
                line += &format!("  {label} {value:.4}");
            }
        }
        if let Some(percent) = self.valid.of("Accuracy") {
            line += &format!("  accuracy {percent:.2} %");
        }
        line + &format!("  peak {} MiB", mib(self.memory.highest().in_use, 2))
    }
}

impl MetricsRendererTraining for EpochLines {
    fn update_train(&mut self, state: MetricState) {
        self.train.update(&self.names, state);
    }

    fn update_valid(&mut self, state: MetricState) {
        self.valid.update(&self.names, state);
    }

    fn render_train(&mut self, _item: TrainingProgress, _indicators: Vec<ProgressType>) {}

    fn render_valid(&mut self, item: TrainingProgress, _indicators: Vec<ProgressType>) {
        let is_last =
            |items: &burn::data::dataloader::Progress| items.items_processed >= items.items_total;
        if item.progress.as_ref().is_some_and(is_last) {
            let epochs = item.global_progress;
            note(&self.line(epochs.items_processed, epochs.items_total));
            self.train = Means::default();
            self.valid = Means::default();
        }
    }

    // The default would write the summary to stdout.
    fn on_train_end(&mut self, _summary: Option<LearnerSummary>) -> Result<(), Box<dyn Error>> {
        Ok(())
    }
}

impl MetricsRendererEvaluation for EpochLines {
    fn update_test(&mut self, _name: EvaluationName, _state: MetricState) {}

    fn render_test(&mut self, _item: EvaluationProgress, _indicators: Vec<ProgressType>) {}
}

impl MetricsRenderer for EpochLines {
    fn manual_close(&mut self) {}

    fn register_metric(&mut self, definition: MetricDefinition) {
        self.names.insert(definition.metric_id, definition.name);
    }
}

/// The means of metrics over an epoch, by name.
#[derive(Debug, Default)]
struct Means(HashMap<String, (f64, usize)>);

impl Means {
    fn update(&mut self, names: &HashMap<MetricId, String>, state: MetricState) {
        let MetricState::Numeric(metric, entry) = state else {
            return;
        };
        let (value, count) = match entry {
            NumericEntry::Value(value) => (value, 1),
            NumericEntry::Aggregated {
                aggregated_value,
                count,
            } => (aggregated_value, count),
        };
        if let Some(name) = names.get(&metric.metric_id) {
            let (sum, total) = self.0.entry(name.clone()).or_default();
            *sum += value * count as f64;
            *total += count;
        }
    }

    fn of(&self, name: &str) -> Option<f64> {
        let (sum, count) = self.0.get(name)?;
        Some(sum / *count as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{Heap, Memory};
    use burn::train::metric::{MetricAttributes, MetricEntry, SerializedEntry};
    use std::sync::Arc;

    fn loss(value: f64, count: usize) -> MetricState {
        let entry = MetricEntry::new(
            MetricId::new(Arc::new("Loss".into())),
            SerializedEntry::new(String::new(), String::new()),
        );
        let number = NumericEntry::Aggregated {
            aggregated_value: value,
            count,
        };
        MetricState::Numeric(entry, number)
    }

    #[test]
    fn a_line_has_the_means_of_its_epoch() {
        let memory = HighWater::start(Memory::Heap(Heap::start()));
        let mut lines = EpochLines::new(memory);
        lines.register_metric(MetricDefinition {
            metric_id: MetricId::new(Arc::new("Loss".into())),
            name: "Loss".into(),
            description: None,
            attributes: MetricAttributes::None,
        });
        lines.update_train(loss(1.0, 3));
        lines.update_train(loss(2.0, 1));
        lines.update_valid(loss(0.5, 1));
        let line = lines.line(2, 20);
        let means = "epoch   2/20  loss 1.2500  validation loss 0.5000  peak ";
        assert!(line.starts_with(means), "{line}");
    }
}
