//! A line for each epoch, where Burn's renderer without a terminal has one for each batch.

use burn::train::LearnerSummary;
use burn::train::metric::{MetricDefinition, MetricId};
use burn::train::renderer::{
    EvaluationName, EvaluationProgress, MetricState, MetricsRenderer, MetricsRendererEvaluation,
    MetricsRendererTraining, ProgressType, TrainingProgress,
};
use lean_run_folder::note;
use std::collections::{BTreeMap, HashMap};
use std::error::Error;

/// Shows the metrics of an epoch after its validation.
#[derive(Debug, Default)]
pub(crate) struct EpochLines {
    names: HashMap<MetricId, String>,
    /// Of each metric its mean over the epoch so far, as Burn formats it.
    means: BTreeMap<String, String>,
}

impl EpochLines {
    fn update(&mut self, split: &str, state: MetricState) {
        let (MetricState::Numeric(entry, _) | MetricState::Generic(entry)) = state;
        let name = self.names.get(&entry.metric_id);
        let text = entry.serialized_entry.formatted;
        if let (Some(name), Some((mean, _of_batch))) = (name, text.split_once(" - ")) {
            let mean = mean.trim_start_matches("epoch ").to_owned();
            self.means
                .insert(format!("{split} {}", name.to_lowercase()), mean);
        }
    }
}

impl MetricsRendererTraining for EpochLines {
    fn update_train(&mut self, state: MetricState) {
        self.update("train", state);
    }

    fn update_valid(&mut self, state: MetricState) {
        self.update("valid", state);
    }

    fn render_train(&mut self, _: TrainingProgress, _: Vec<ProgressType>) {}

    fn render_valid(&mut self, item: TrainingProgress, _: Vec<ProgressType>) {
        let is_last = item
            .progress
            .is_some_and(|images| images.items_processed >= images.items_total);
        if is_last {
            let epochs = item.global_progress;
            let (epoch, all) = (epochs.items_processed, epochs.items_total);
            let mut line = format!("epoch {epoch:>3}/{all}");
            for (name, mean) in std::mem::take(&mut self.means) {
                line += &format!("  {name} {mean}");
            }
            note(&line);
        }
    }

    // The default would write the summary to stdout.
    fn on_train_end(&mut self, _: Option<LearnerSummary>) -> Result<(), Box<dyn Error>> {
        Ok(())
    }
}

impl MetricsRendererEvaluation for EpochLines {
    fn update_test(&mut self, _: EvaluationName, _: MetricState) {}

    fn render_test(&mut self, _: EvaluationProgress, _: Vec<ProgressType>) {}
}

impl MetricsRenderer for EpochLines {
    fn manual_close(&mut self) {}

    fn register_metric(&mut self, definition: MetricDefinition) {
        self.names.insert(definition.metric_id, definition.name);
    }
}
