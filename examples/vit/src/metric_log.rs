//! Logs the metrics of a run to files.

use crate::stopping::{self, LOSS};
use burn::train::Interrupter;
use burn::train::logger::{FileMetricLogger, MetricLogger};
use burn::train::metric::store::{EpochSummary, MetricsUpdate, Split};
use burn::train::metric::{MetricDefinition, MetricId, NumericEntry};
use std::path::Path;
use std::sync::Arc;

/// Burn's log to files, with the right epochs in a resumed run, and with an interruption when the loss
/// is not finite.
///
/// Burn's learner counts epochs from 1 until the first one has ended, so the first epoch of a resumed run
/// would overwrite the log of epoch 1.
#[allow(missing_debug_implementations)] // Burn's interrupter has none.
pub struct MetricLog {
    files: FileMetricLogger,
    first_epoch: usize,
    interrupter: Interrupter,
}

impl MetricLog {
    /// Logs to `folder`, starting with the epoch `first_epoch`.
    pub fn new(folder: &Path, first_epoch: usize, interrupter: Interrupter) -> Self {
        Self {
            files: FileMetricLogger::new(folder),
            first_epoch,
            interrupter,
        }
    }
}

impl MetricLogger for MetricLog {
    fn log(&mut self, update: MetricsUpdate, epoch: usize, split: &Split) {
        let epoch = epoch.max(self.first_epoch);
        if let Some(loss) = loss(&update) {
            stopping::interrupt_if_diverged(&self.interrupter, loss, epoch);
        }
        self.files.log(update, epoch, split);
    }

    fn read_numeric(
        &mut self,
        name: &str,
        epoch: usize,
        split: &Split,
    ) -> Result<Vec<NumericEntry>, String> {
        self.files.read_numeric(name, epoch, split)
    }

    fn log_metric_definition(&mut self, definition: MetricDefinition) {
        self.files.log_metric_definition(definition);
    }

    fn log_epoch_summary(&mut self, summary: EpochSummary) {
        self.files.log_epoch_summary(summary);
    }
}

fn loss(update: &MetricsUpdate) -> Option<f64> {
    let id = MetricId::new(Arc::new(LOSS.to_string()));
    let mut numeric = update.entries_numeric.iter();
    let found = numeric.find(|numeric| numeric.entry.metric_id == id)?;
    Some(found.numeric_entry.current())
}
