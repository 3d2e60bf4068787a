//! Renders the progress of a training.

use std::{
    collections::{BTreeMap, HashMap},
    io::{IsTerminal, stdout},
};

use burn::{
    data::dataloader::Progress,
    train::{
        LearningComponentsTypes, SupervisedTraining,
        metric::{MetricDefinition, MetricId, NumericEntry, format_float},
        renderer::{
            EvaluationName, EvaluationProgress, MetricState, MetricsRenderer,
            MetricsRendererEvaluation, MetricsRendererTraining, ProgressType, TrainingProgress,
        },
    },
};

/// Keeps Burn's renderer on a terminal. Elsewhere it would print every iteration, and
/// [`EpochLines`] replaces it.
pub fn for_this_output<LC: LearningComponentsTypes>(
    training: SupervisedTraining<LC>,
) -> SupervisedTraining<LC> {
    if stdout().is_terminal() {
        training
    } else {
        training.renderer(EpochLines::default())
    }
}

/// Prints one line for each epoch: the mean of every numeric metric.
#[derive(Debug, Default)]
pub struct EpochLines {
    names: HashMap<MetricId, String>,
    train: Means,
    valid: Means,
}

impl EpochLines {
    fn line(&self, epochs: &Progress) -> String {
        format!(
            "epoch {}/{}  train {}  valid {}",
            epochs.items_processed, epochs.items_total, self.train, self.valid
        )
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
        let items = item.progress.as_ref();
        if items.is_some_and(|items| items.items_processed >= items.items_total) {
            println!("{}", self.line(&item.global_progress));
            self.train = Means::default();
            self.valid = Means::default();
        }
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

/// Sum and number of values, by name of the metric.
#[derive(Debug, Default)]
struct Means(BTreeMap<String, (f64, usize)>);

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
}

impl std::fmt::Display for Means {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (index, (name, (sum, count))) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { ", " };
            let mean = format_float(sum / *count as f64, 3);
            write!(f, "{separator}{name} {mean}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::train::metric::{MetricAttributes, MetricEntry, SerializedEntry};
    use std::sync::Arc;

    fn state(name: &str, value: f64, count: usize) -> MetricState {
        let entry = MetricEntry::new(
            MetricId::new(Arc::new(name.into())),
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
        let mut lines = EpochLines::default();
        for name in ["Loss", "Accuracy"] {
            lines.register_metric(MetricDefinition {
                metric_id: MetricId::new(Arc::new(name.into())),
                name: name.into(),
                description: None,
                attributes: MetricAttributes::None,
            });
        }
        lines.update_train(state("Loss", 1.0, 3));
        lines.update_train(state("Loss", 2.0, 1));
        lines.update_valid(state("Loss", 0.5, 1));
        lines.update_valid(state("Accuracy", 75.0, 1));
        assert_eq!(
            lines.line(&Progress::new(2, 3)),
            "epoch 2/3  train Loss 1.250  valid Accuracy 75.000, Loss 0.500"
        );
    }
}
