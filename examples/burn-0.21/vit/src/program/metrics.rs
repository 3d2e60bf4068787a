//! What a run logs and shows: Burn's metrics in files, and a line for each epoch.

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
use std::mem;
use std::path::{Path, PathBuf};
use vit_0_21::memory::HighWater;
use vit_0_21::stopping::{self, CANNOT_LOG, LOSS};
use vit_common::progress;

type Names = HashMap<MetricId, String>;

/// The files of Burn's [`FileMetricLogger`], with the right epochs in a resumed run, and with an
/// interruption when a file cannot be written.
///
/// Burn's learner counts epochs from 1 until the first one has ended, so the first epoch of a
/// resumed run would overwrite the log of epoch 1. And Burn's logger panics on a thread of its own
/// when the disk is full, which can end the process before it has said so.
pub(crate) struct MetricLog {
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
    pub(crate) fn new(
        folder: Option<PathBuf>,
        first_epoch: usize,
        interrupter: Interrupter,
    ) -> Self {
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
        let numeric = update.entries_numeric.iter().map(|it| &it.entry);
        for entry in update.entries.iter().chain(numeric) {
            let id = &entry.metric_id;
            let name = self.names.get(id).cloned();
            let name = name.unwrap_or_else(|| format!("{id:?}"));
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
pub(crate) fn train_loss(folder: &Path, epoch: usize) -> Result<f64> {
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
pub(crate) struct EpochLines {
    memory: HighWater,
    names: Names,
    train_loss: Mean,
    loss: Mean,
    accuracy: Mean,
}

impl EpochLines {
    /// Creates the renderer; lines include the peak of `memory`.
    pub(crate) fn new(memory: HighWater) -> Self {
        Self {
            memory,
            names: Names::new(),
            train_loss: Mean::default(),
            loss: Mean::default(),
            accuracy: Mean::default(),
        }
    }

    /// The name of a metric, and what it has measured.
    fn measured<'a>(&self, state: &'a MetricState) -> Option<(&str, &'a NumericEntry)> {
        match state {
            MetricState::Numeric(metric, entry) => {
                Some((self.names.get(&metric.metric_id)?, entry))
            }
            MetricState::Generic(_) => None,
        }
    }
}

impl MetricsRendererTraining for EpochLines {
    fn update_train(&mut self, state: MetricState) {
        if let Some((LOSS, entry)) = self.measured(&state) {
            self.train_loss.add(entry);
        }
    }

    fn update_valid(&mut self, state: MetricState) {
        match self.measured(&state) {
            Some((LOSS, entry)) => self.loss.add(entry),
            Some(("Accuracy", entry)) => self.accuracy.add(entry),
            _ => {}
        }
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
            let of = |mean: &mut Mean| mem::take(mean).get().unwrap_or(f64::NAN);
            let accuracy = of(&mut self.accuracy) / 100.0;
            let means = [of(&mut self.train_loss), of(&mut self.loss), accuracy];
            let peak = self.memory.highest().in_use;
            progress::epoch(epochs.items_processed, epochs.items_total, means, peak);
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
