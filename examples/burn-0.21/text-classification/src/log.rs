//! Reads the metrics that Burn logged during a training.

use std::path::Path;

use anyhow::{Error, Result, ensure};
use burn::train::{
    logger::{FileMetricLogger, MetricLogger},
    metric::{NumericEntry, store::Split},
};

/// The logged metrics of a training.
pub struct Log(FileMetricLogger);

impl Log {
    /// Reads the logs in this folder.
    pub fn new(artifact_dir: &Path) -> Self {
        Self(FileMetricLogger::new(artifact_dir))
    }

    /// The values of a metric in the iterations of an epoch.
    ///
    /// # Errors
    ///
    /// If there is no such log.
    pub fn values(&mut self, metric: &str, epoch: usize, split: &Split) -> Result<Vec<f64>> {
        let entries = self.entries(metric, epoch, split)?;
        Ok(entries.iter().map(NumericEntry::current).collect())
    }

    /// The mean of a metric over all items of an epoch.
    ///
    /// # Errors
    ///
    /// If there is no such log.
    pub fn mean(&mut self, metric: &str, epoch: usize, split: &Split) -> Result<f64> {
        let (mut sum, mut items) = (0.0, 0.0);
        for entry in self.entries(metric, epoch, split)? {
            let count = match entry {
                NumericEntry::Value(_) => 1.0,
                NumericEntry::Aggregated { count, .. } => count as f64,
            };
            sum += entry.current() * count;
            items += count;
        }
        Ok(sum / items)
    }

    fn entries(&mut self, metric: &str, epoch: usize, split: &Split) -> Result<Vec<NumericEntry>> {
        let entries = (self.0.read_numeric(metric, epoch, split)).map_err(Error::msg)?;
        ensure!(
            !entries.is_empty(),
            "no {metric} was logged in epoch {epoch}: was the training interrupted?"
        );
        Ok(entries)
    }
}

impl std::fmt::Debug for Log {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Log").finish_non_exhaustive()
    }
}

/// The median; of an even number of values, the upper of the two in the middle.
///
/// # Panics
///
/// If there are none.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
