//! Allocations of a run over time, by owner: two of its steps, recorded in a separate process.

use crate::results::{
    BurnVersion, Case, Checkpointing, Measured, Mode, Subject, Timeline, value_name,
};
use anyhow::{Context, Result};
use burn_gradient_release_timeline::{Recorder, Recording};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use vit_0_21::memory::{HighWater, Memory};

/// The folder of the files, inside the folder of the results.
pub const FOLDER: &str = "timelines";

/// Number of recorded steps: the last of the measured ones.
pub const STEPS: usize = 2;

/// A recording to make.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimelineSpec {
    /// Title of the recording.
    pub title: String,
    /// Path of the file.
    pub file: PathBuf,
}

impl TimelineSpec {
    /// The recording of a run. The floor has none, because it has no optimizer, and PyTorch has
    /// none, because it has a recorder of its own.
    pub fn of(case: &Case, subject: &Subject, folder: &Path) -> Option<Self> {
        Some(Self {
            title: format!("{}, {}", case.title(), subject.name()),
            file: folder.join(file_name(case, subject)?),
        })
    }

    /// Starts recording with the next step.
    pub fn start(&self, memory: Option<Memory>) -> Result<Recording> {
        let counter = HighWater::start(memory.context("the memory is not counted")?);
        let recorder = Recorder::new(&self.title)
            .with_steps(0..STEPS)
            .with_counter(counter)
            .with_file(&self.file);
        Ok(recorder.start()?)
    }

    /// The recording that was made, given the output of its process.
    pub fn result(&self, measured: &Measured) -> Timeline {
        let name = self.file.file_name().unwrap_or_default().to_string_lossy();
        let steps = &measured.step_seconds;
        let (unrecorded, recorded) = steps.split_at(steps.len().saturating_sub(STEPS));
        Timeline {
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
        burn: BurnVersion::V0_21,
        backend,
        fusion,
        mode: mode @ (Mode::Plain | Mode::Release | Mode::Unarmed),
        checkpointing,
        arithmetic,
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
    parts.extend(arithmetic.words());
    parts.push(value_name(*mode));
    Some(format!("{}.json.gz", safe(&parts.join(" "))))
}

/// Words of lower-case letters and digits, joined by hyphens: valid on any file system.
fn safe(text: &str) -> String {
    let lower = text.to_ascii_lowercase();
    let words = lower.split(|letter: char| !letter.is_ascii_alphanumeric());
    let words: Vec<_> = words.filter(|word| !word.is_empty()).collect();
    words.join("-")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::{Arithmetic, LossChunk};
    use crate::shape::{Kind, Sizes};
    use std::num::NonZeroUsize;
    use vit_0_21::config::{BackendKind, Preset};

    fn name(
        title: &str,
        backend: BackendKind,
        fusion: bool,
        checkpointing: Checkpointing,
        arithmetic: Arithmetic,
        mode: Mode,
    ) -> Option<String> {
        let case = Case {
            name: title.into(),
            model: Kind::Vit.shape(Preset::Tiny, &Sizes::default()),
            batch_size: 8,
        };
        let subject = Subject::Burn {
            burn: BurnVersion::V0_21,
            backend,
            fusion,
            mode,
            checkpointing,
            arithmetic,
        };
        file_name(&case, &subject)
    }

    #[test]
    fn every_run_has_its_own_file() {
        use {BackendKind::*, Checkpointing::*, Mode::*};
        let by_default = Arithmetic::default();
        let in_chunks = Arithmetic {
            loss_chunk: LossChunk(NonZeroUsize::new(512)),
            ..by_default
        };
        assert_eq!(
            name("ViT-S/16", Flex, true, None, by_default, Plain).unwrap(),
            "vit-s-16-batch-8-flex-plain.json.gz"
        );
        assert_eq!(
            name(
                "ViT-L/16 at 64x64",
                Cuda,
                false,
                Balanced,
                by_default,
                Release
            )
            .unwrap(),
            "vit-l-16-at-64x64-batch-8-cuda-no-fusion-balanced-release.json.gz"
        );
        assert_eq!(
            name("GPT tiny", Flex, true, Automatic, in_chunks, Release).unwrap(),
            "gpt-tiny-batch-8-flex-automatic-loss-chunk-512-release.json.gz"
        );
        assert!(name("ViT-S/16", Flex, true, None, by_default, Ideal).is_none());
    }
}
