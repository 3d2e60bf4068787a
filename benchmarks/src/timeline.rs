//! Whose the bytes of a run are, tick by tick: two of its steps, recorded in a process of their own.

use crate::measure::{Measured, Mode};
use crate::results::{Case, Subject, value_name};
use anyhow::{Context, Result};
use burn_memory_timeline::{Recorder, Recording};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use vit::config::Checkpointing;
use vit::memory::{HighWater, Memory};

/// The folder of the files, in that of the results.
pub const FOLDER: &str = "timelines";

/// How many steps are recorded: the last of those that are measured.
pub const STEPS: usize = 2;

/// A recording to be made; travels to its process as JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// For people.
    pub title: String,
    /// Where it goes.
    pub file: PathBuf,
}

impl Plan {
    /// What is to be recorded of a run, if anything is: the floor has no optimizer, and PyTorch
    /// records itself.
    pub fn of(case: &Case, subject: &Subject, folder: &Path) -> Option<Self> {
        Some(Self {
            title: format!("{}, {}", case.title(), subject.name()),
            file: folder.join(file_name(case, subject)?),
        })
    }

    /// Begins to record with the next step.
    pub fn start(&self, memory: Option<Memory>) -> Result<Recording> {
        let counter = HighWater::start(memory.context("nobody counts the memory")?);
        let recorder = Recorder::new(&self.title)
            .with_steps(0..STEPS)
            .with_counter(counter)
            .with_file(&self.file);
        Ok(recorder.start()?)
    }
}

/// A recording that was made, and what it cost.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Timeline {
    /// The file, seen from the folder of the results.
    pub file: String,
    /// SHA-256 of the weights after it: those of the run.
    pub weights_digest: String,
    /// Seconds of the steps that were recorded.
    pub recorded_step_seconds: Vec<f64>,
    /// Seconds of the measured steps before them, in the same process.
    pub unrecorded_step_seconds: Vec<f64>,
}

impl Timeline {
    /// Puts together what the process of a recording said.
    pub fn new(plan: &Plan, measured: &Measured) -> Self {
        let name = plan.file.file_name().unwrap_or_default().to_string_lossy();
        let steps = &measured.step_seconds;
        let (unrecorded, recorded) = steps.split_at(steps.len().saturating_sub(STEPS));
        Self {
            file: format!("{FOLDER}/{name}"),
            weights_digest: measured.weights_digest.clone(),
            recorded_step_seconds: recorded.to_vec(),
            unrecorded_step_seconds: unrecorded.to_vec(),
        }
    }
}

/// `vit-s-16-batch-1-flex-plain.json.gz`
fn file_name(case: &Case, subject: &Subject) -> Option<String> {
    let Subject::Burn {
        backend,
        fusion,
        mode: mode @ (Mode::Plain | Mode::Release | Mode::Unarmed),
        checkpointing,
    } = subject
    else {
        return None;
    };
    let mut parts = vec![case.title(), backend.to_string()];
    if !fusion && !backend.is_on_heap() {
        parts.push("no fusion".into());
    }
    if *checkpointing != Checkpointing::None {
        parts.push(value_name(*checkpointing));
    }
    parts.push(value_name(*mode));
    Some(format!("{}.json.gz", safe(&parts.join(" "))))
}

/// Words of small letters and digits between hyphens: any file system has them.
fn safe(text: &str) -> String {
    let lower = text.to_ascii_lowercase();
    let words = lower.split(|letter: char| !letter.is_ascii_alphanumeric());
    let words: Vec<_> = words.filter(|word| !word.is_empty()).collect();
    words.join("-")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shape::Kind;
    use vit::config::{BackendKind, Preset};

    fn name(
        title: &str,
        backend: BackendKind,
        fusion: bool,
        checkpointing: Checkpointing,
        mode: Mode,
    ) -> Option<String> {
        let case = Case {
            name: title.into(),
            model: Kind::Vit.shape(Preset::Tiny, None),
            batch_size: 8,
        };
        let subject = Subject::Burn {
            backend,
            fusion,
            mode,
            checkpointing,
        };
        file_name(&case, &subject)
    }

    #[test]
    fn every_run_has_a_file_of_its_own() {
        use {BackendKind::*, Checkpointing::*, Mode::*};
        assert_eq!(
            name("ViT-S/16", Flex, true, None, Plain).unwrap(),
            "vit-s-16-batch-8-flex-plain.json.gz"
        );
        assert_eq!(
            name("ViT-L/16 at 64x64", Cuda, false, Balanced, Release).unwrap(),
            "vit-l-16-at-64x64-batch-8-cuda-no-fusion-balanced-release.json.gz"
        );
        assert!(name("ViT-S/16", Flex, true, None, Ideal).is_none());
    }
}
