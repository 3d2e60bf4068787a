//! What a run logs and shows: Burn's metrics in files, and a line for each epoch.

use crate::memory::HighWater;
use crate::stopping::{self, CANNOT_LOG, LOSS};
use anyhow::{Context, Result, anyhow};
use burn::train::logger::{FileMetricLogger, MetricLogger};
use burn::train::metric::store::{EpochSummary, MetricsUpdate, Split};
use burn::train::metric::{MetricDefinition, MetricId, NumericEntry};
use burn::train::renderer::{
    EvaluationName, EvaluationProgress, MetricState, MetricsRenderer, MetricsRendererEvaluation,
    MetricsRendererTraining, ProgressType, TrainingProgress,
};
use burn::train::{Interrupter, LearnerSummary};
use std::collections::HashMap;
use std::error::Error;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use vit_common::progress;

type Names = HashMap<MetricId, String>;

/// The files of Burn's [`FileMetricLogger`], with the right epochs in a resumed run, and with an
/// interruption when the loss is not finite or a file cannot be written.
///
/// Burn's learner counts epochs from 1 until the first one has ended, so the first epoch of a
/// resumed run would overwrite the log of epoch 1. And Burn's logger panics on a thread of its own
/// when the disk is full, which can end the process before it has said so.
#[allow(missing_debug_implementations)] // Burn's interrupter has none.
pub struct MetricLog {
    /// None in a process that logs nothing, as it is not the first of several.
    folder: Option<PathBuf>,
    names: Names,
    epoch: usize,
    /// Those of one epoch.
    files: HashMap<PathBuf, File>,
    first_epoch: usize,
    interrupter: Interrupter,
}

impl MetricLog {
    /// Logs to `folder`, starting with the epoch `first_epoch`.
    pub fn new(folder: Option<PathBuf>, first_epoch: usize, interrupter: Interrupter) -> Self {
        Self {
            folder,
            names: Names::new(),
            epoch: 0,
            files: HashMap::new(),
            first_epoch,
            interrupter,
        }
    }

    fn write(&mut self, path: &Path, line: &str) -> io::Result<()> {
        if !self.files.contains_key(path) {
            fs::create_dir_all(path.parent().unwrap_or(Path::new(".")))?;
            self.files.insert(path.into(), File::create(path)?);
        }
        let file = self.files.get_mut(path);
        file.map_or(Ok(()), |file| {
            file.write_all(format!("{line}\n").as_bytes())
        })
    }
}

impl MetricLogger for MetricLog {
    fn log(&mut self, update: MetricsUpdate, epoch: usize, split: &Split) {
        let epoch = epoch.max(self.first_epoch);
        let Some(folder) = self.folder.clone() else {
            return;
        };
        if self.epoch != epoch {
            self.files.clear();
            self.epoch = epoch;
        }
        let numeric = update.entries_numeric.iter();
        let entries = update.entries.iter();
        let all = entries
            .map(|entry| (entry, None))
            .chain(numeric.map(|it| (&it.entry, Some(it.numeric_entry.current()))));
        for (entry, number) in all {
            let id = &entry.metric_id;
            let name = self.names.get(id).cloned();
            let name = name.unwrap_or_else(|| format!("{id:?}"));
            if let (LOSS, Some(loss)) = (name.as_str(), number) {
                stopping::interrupt_if_diverged(&self.interrupter, loss, epoch);
            }
            let file = format!("{split}/epoch-{epoch}/{}.log", name.replace(' ', "_"));
            let file = folder.join(file);
            if let Err(error) = self.write(&file, &entry.serialized_entry.serialized) {
                let reason = format!("{CANNOT_LOG}{}: {error}", file.display());
                stopping::stop(&self.interrupter, &reason);
                return;
            }
        }
    }

    fn read_numeric(
        &mut self,
        name: &str,
        epoch: usize,
        split: &Split,
    ) -> Result<Vec<NumericEntry>, String> {
        let folder = self.folder.as_ref();
        folder.map_or(Ok(Vec::new()), |folder| {
            FileMetricLogger::new(folder).read_numeric(name, epoch, split)
        })
    }

    fn log_metric_definition(&mut self, definition: MetricDefinition) {
        self.names.insert(definition.metric_id, definition.name);
    }

    fn log_epoch_summary(&mut self, _summary: EpochSummary) {}
}

/// The mean training loss that was logged for an epoch.
///
/// # Errors
///
/// None was logged.
pub fn train_loss(folder: &Path, epoch: usize) -> Result<f64> {
    let entries = FileMetricLogger::new(folder).read_numeric(LOSS, epoch, &Split::Train);
    let entries = entries
        .map_err(|text| anyhow!("cannot read the training losses of epoch {epoch}: {text}"))?;
    let mut mean = Mean::default();
    entries.iter().for_each(|entry| mean.add(entry));
    mean.get()
        .context("the loss of the last epoch was not logged")
}

/// A mean over items, added up in the order of Burn's `Aggregate::Mean`.
#[derive(Clone, Copy, Debug, Default)]
struct Mean {
    sum: Option<f64>,
    items: usize,
}

impl Mean {
    fn add(&mut self, entry: &NumericEntry) {
        let (sum, items) = match entry {
            NumericEntry::Value(value) => (*value, 1),
            NumericEntry::Aggregated {
                aggregated_value,
                count,
            } => (aggregated_value * *count as f64, *count),
        };
        self.sum = Some(self.sum.map_or(sum, |before| before + sum));
        self.items += items;
    }

    fn get(self) -> Option<f64> {
        Some(self.sum? / self.items as f64)
    }
}

/// Shows a bar in an epoch, and its metrics in one line after its validation.
#[derive(Debug)]
pub struct EpochLines {
    memory: HighWater,
    names: Names,
    train: HashMap<String, Mean>,
    valid: HashMap<String, Mean>,
}

impl EpochLines {
    /// Creates the renderer; lines include the peak of `memory`.
    pub fn new(memory: HighWater) -> Self {
        Self {
            memory,
            names: Names::new(),
            train: HashMap::new(),
            valid: HashMap::new(),
        }
    }
}

fn update(means: &mut HashMap<String, Mean>, names: &Names, state: &MetricState) {
    if let MetricState::Numeric(metric, entry) = state
        && let Some(name) = names.get(&metric.metric_id)
    {
        means.entry(name.clone()).or_default().add(entry);
    }
}

fn take(means: &mut HashMap<String, Mean>, name: &str) -> f64 {
    let mean = means.remove(name).and_then(Mean::get);
    mean.unwrap_or(f64::NAN)
}

impl MetricsRendererTraining for EpochLines {
    fn update_train(&mut self, state: MetricState) {
        update(&mut self.train, &self.names, &state);
    }

    fn update_valid(&mut self, state: MetricState) {
        update(&mut self.valid, &self.names, &state);
    }

    fn render_train(&mut self, item: TrainingProgress, _indicators: Vec<ProgressType>) {
        if let Some(images) = item.progress {
            let epochs = item.global_progress;
            let [done, all] = [images.items_processed, images.items_total];
            progress::batch(epochs.items_processed, epochs.items_total, done, all);
        }
    }

    fn render_valid(&mut self, item: TrainingProgress, _indicators: Vec<ProgressType>) {
        let is_last =
            |items: &burn::data::dataloader::Progress| items.items_processed >= items.items_total;
        if item.progress.as_ref().is_some_and(is_last) {
            let epochs = item.global_progress;
            let means = [
                take(&mut self.train, LOSS),
                take(&mut self.valid, LOSS),
                take(&mut self.valid, "Accuracy") / 100.0,
            ];
            let peak = self.memory.highest().in_use;
            progress::epoch(epochs.items_processed, epochs.items_total, means, peak);
            self.train.clear();
            self.valid.clear();
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
