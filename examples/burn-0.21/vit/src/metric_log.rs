//! Logs the metrics of a run to files.

use crate::stopping::{self, CANNOT_LOG, LOSS};
use burn::train::Interrupter;
use burn::train::logger::{FileMetricLogger, MetricLogger};
use burn::train::metric::store::{EpochSummary, MetricsUpdate, Split};
use burn::train::metric::{MetricDefinition, MetricEntry, MetricId, NumericEntry};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The files of Burn's [`FileMetricLogger`], with the right epochs in a resumed run, and with an
/// interruption when the loss is not finite or a file cannot be written.
///
/// Burn's learner counts epochs from 1 until the first one has ended, so the first epoch of a
/// resumed run would overwrite the log of epoch 1. And Burn's logger panics on a thread of its own
/// when the disk is full, which can end the process before it has said so.
#[allow(missing_debug_implementations)] // Burn's interrupter has none.
pub struct MetricLog {
    folder: PathBuf,
    /// Reads what was logged.
    reader: FileMetricLogger,
    names: HashMap<MetricId, String>,
    files: Files,
    first_epoch: usize,
    interrupter: Interrupter,
}

/// The open files of one epoch.
#[derive(Debug, Default)]
struct Files {
    epoch: usize,
    open: HashMap<PathBuf, File>,
}

impl MetricLog {
    /// Logs to `folder`, starting with the epoch `first_epoch`.
    pub fn new(folder: &Path, first_epoch: usize, interrupter: Interrupter) -> Self {
        Self {
            folder: folder.to_path_buf(),
            reader: FileMetricLogger::new(folder),
            names: HashMap::new(),
            files: Files::default(),
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
        self.files.begin(epoch);
        let numeric = update.entries_numeric.iter();
        let numeric = numeric.map(|update| &update.entry);
        for entry in update.entries.iter().chain(numeric) {
            let file = self.file_of(entry, epoch, split);
            if let Err(error) = self.files.write(&file, &entry.serialized_entry.serialized) {
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
        self.reader.read_numeric(name, epoch, split)
    }

    fn log_metric_definition(&mut self, definition: MetricDefinition) {
        let (id, name) = (definition.metric_id.clone(), definition.name.clone());
        self.names.insert(id, name);
        self.reader.log_metric_definition(definition);
    }

    fn log_epoch_summary(&mut self, _summary: EpochSummary) {}
}

impl MetricLog {
    /// Where Burn's logger has the entries of a metric.
    fn file_of(&self, entry: &MetricEntry, epoch: usize, split: &Split) -> PathBuf {
        let id = &entry.metric_id;
        let name = self
            .names
            .get(id)
            .map_or_else(|| format!("{id:?}"), Clone::clone);
        let epoch = self
            .folder
            .join(split.to_string())
            .join(format!("epoch-{epoch}"));
        epoch.join(format!("{}.log", name.replace(' ', "_")))
    }
}

impl Files {
    fn begin(&mut self, epoch: usize) {
        if self.epoch != epoch {
            self.open.clear();
            self.epoch = epoch;
        }
    }

    fn write(&mut self, path: &Path, line: &str) -> io::Result<()> {
        let file = match self.open.entry(path.to_path_buf()) {
            Entry::Occupied(open) => open.into_mut(),
            Entry::Vacant(new) => {
                fs::create_dir_all(path.parent().unwrap_or(Path::new(".")))?;
                new.insert(File::create(path)?)
            }
        };
        file.write_all(format!("{line}\n").as_bytes())
    }
}

fn loss(update: &MetricsUpdate) -> Option<f64> {
    let id = MetricId::new(Arc::new(LOSS.to_string()));
    let mut numeric = update.entries_numeric.iter();
    let found = numeric.find(|numeric| numeric.entry.metric_id == id)?;
    Some(found.numeric_entry.current())
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::train::metric::store::NumericMetricUpdate;
    use burn::train::metric::{MetricAttributes, SerializedEntry};

    fn definition() -> MetricDefinition {
        MetricDefinition {
            metric_id: MetricId::new(Arc::new(LOSS.into())),
            name: LOSS.into(),
            description: None,
            attributes: MetricAttributes::None,
        }
    }

    fn update(loss: f64) -> MetricsUpdate {
        let entry = NumericEntry::Value(loss);
        let serialized = SerializedEntry::new(loss.to_string(), entry.serialize());
        let entry = NumericMetricUpdate {
            entry: MetricEntry::new(definition().metric_id, serialized),
            numeric_entry: entry.clone(),
            running_entry: entry,
        };
        MetricsUpdate::new(Vec::new(), vec![entry])
    }

    #[test]
    fn the_files_are_burns() {
        let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let [ours, burns] = folders.each_ref().map(tempfile::TempDir::path);
        let mut ours_log = MetricLog::new(ours, 1, Interrupter::new());
        let mut burns_log = FileMetricLogger::new(burns);
        for log in [&mut ours_log as &mut dyn MetricLogger, &mut burns_log] {
            log.log_metric_definition(definition());
            for (epoch, loss) in [(1, 3.0), (1, 2.5), (2, 2.0)] {
                log.log(update(loss), epoch, &Split::Train);
                log.log(update(loss + 1.0), epoch, &Split::Valid);
            }
        }
        drop(burns_log);
        for file in [
            "train/epoch-1/Loss.log",
            "train/epoch-2/Loss.log",
            "valid/epoch-1/Loss.log",
        ] {
            let [ours, burns] = [ours, burns].map(|folder| fs::read_to_string(folder.join(file)));
            assert_eq!(ours.unwrap(), burns.unwrap(), "{file}");
        }
        let read = ours_log.read_numeric(LOSS, 1, &Split::Train).unwrap();
        assert_eq!(read.iter().map(NumericEntry::current).sum::<f64>(), 5.5);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_full_disk_interrupts() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("train/epoch-1/Loss.log");
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::os::unix::fs::symlink("/dev/full", &file).unwrap();
        let interrupter = Interrupter::new();
        let mut log = MetricLog::new(folder.path(), 1, interrupter.clone());
        log.log_metric_definition(definition());
        log.log(update(3.0), 1, &Split::Train);
        let reason = interrupter.get_message().unwrap();
        let text = format!("{CANNOT_LOG}{}: No space left on device", file.display());
        assert!(reason.starts_with(&text), "{reason}");
        assert!(!stopping::was_asked_for(&reason));
    }
}
