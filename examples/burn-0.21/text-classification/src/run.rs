//! Runs a training and summarizes it.

use std::path::Path;

use anyhow::Result;
use burn::train::metric::store::Split;
use peak_alloc::PeakAlloc;
use text_classification::{
    log::{Log, median},
    memory::{MIB, PeakHeapMetric},
    training::{ExperimentConfig, plain, release},
    weights,
};

use crate::Mode;

/// The results of a training.
#[derive(Debug)]
pub(crate) struct Run {
    mode: Mode,
    accuracy: f64,
    /// Median of the peaks of all steps, in MiB.
    step_peak: f64,
    /// Peak of the whole run, in MiB. It may include the checkpoint that Burn writes during the
    /// first steps of an epoch.
    peak: f64,
    pub(crate) weights: u64,
}

impl Run {
    pub(crate) fn new(mode: Mode, config: &ExperimentConfig, artifact_dir: &Path) -> Result<Self> {
        let (train, folder): (fn(_, _) -> _, _) = match mode {
            Mode::Plain => (plain::train, "plain"),
            Mode::Release => (release::train, "release"),
        };
        let artifact_dir = artifact_dir.join(folder);
        PeakAlloc.reset_peak_usage();
        let model = train(config, &artifact_dir)?;
        let last_peak = PeakAlloc.peak_usage() as f64 / MIB;

        let mut log = Log::new(&artifact_dir);
        let mut peaks = Vec::new();
        for epoch in 1..=config.num_epochs {
            peaks.extend(log.values(PeakHeapMetric::NAME, epoch, &Split::Train)?);
        }
        Ok(Self {
            mode,
            accuracy: log.mean("Accuracy", config.num_epochs, &Split::Valid)?,
            peak: peaks.iter().copied().fold(last_peak, f64::max),
            step_peak: median(peaks),
            weights: weights::digest(&model),
        })
    }
}

impl std::fmt::Display for Run {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mode = match self.mode {
            Mode::Plain => "plain Burn:",
            Mode::Release => "gradient release:",
        };
        write!(
            f,
            "{mode:<18}accuracy {:.1} %, peak of a step {:.1} MiB, of the run {:.1} MiB",
            self.accuracy, self.step_peak, self.peak
        )
    }
}
