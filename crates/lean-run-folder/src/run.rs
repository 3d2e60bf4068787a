//! A run from its options to its first step, in one process or in several.

use std::path::PathBuf;

use serde::{Serialize, de::DeserializeOwned};

use crate::checkpoints::Checkpoints;
use crate::error::RunError;
use crate::exit::note;
use crate::folder::RunFolder;
use crate::settings::{identity, resumed};

/// What the options of a program say of the folder of its run.
#[derive(Clone, Debug)]
pub struct Start<'a> {
    /// The folder.
    pub folder: PathBuf,
    /// The parts of a checkpoint, as those of [`Checkpoints`].
    pub parts: &'a [&'a str],
    /// Whether the run that is there goes on.
    pub resume: bool,
    /// Whether a new run may replace the one that is there.
    pub overwrite: bool,
    /// Names of the settings that were given: a run that goes on has its own for the others.
    pub given: &'a [String],
    /// Names of the settings that a run that goes on may have others of.
    pub may_change: &'a [&'a str],
    /// Whether this process writes to the folder: of several, the first. The others only read.
    pub is_first: bool,
}

/// A run whose options are looked at. Nothing in its folder has changed, but the lock of a run to resume.
#[derive(Debug)]
pub struct Pending<'a, S> {
    /// Its settings, which the program may complete.
    pub settings: S,
    start: Start<'a>,
    folder: RunFolder,
}

/// A run that has begun.
#[derive(Debug)]
pub struct Run<S> {
    /// Its settings.
    pub settings: S,
    /// Its folder, which no other program uses meanwhile.
    pub folder: RunFolder,
    /// Its checkpoints.
    pub checkpoints: Checkpoints,
    /// What tells it from other runs.
    pub identity: String,
    /// The epoch after which it goes on.
    pub resume_point: Option<usize>,
    /// Whether this process writes to the folder.
    pub is_first: bool,
}

impl<'a> Start<'a> {
    /// Looks at the folder: for a run with these settings, or for the one to resume.
    ///
    /// # Errors
    ///
    /// The folder is not free, or has no run to resume, or one with another setting that must not change.
    pub fn open<S: Serialize + DeserializeOwned>(
        self,
        settings: S,
    ) -> Result<Pending<'a, S>, RunError> {
        let (path, mut settings) = (&self.folder, settings);
        let mut folder = RunFolder::read(path, self.parts);
        if self.resume {
            if self.is_first {
                folder = RunFolder::open(path, self.parts)?;
            }
            settings = resumed(&folder.settings()?, &settings, self.given, self.may_change)?;
        } else if self.is_first {
            RunFolder::ensure_free::<S>(path, self.parts, self.overwrite)?;
        }
        Ok(Pending {
            settings,
            start: self,
            folder,
        })
    }
}

impl<S: Serialize + DeserializeOwned> Pending<'_, S> {
    /// Whether this process writes to the folder.
    pub fn is_first(&self) -> bool {
        self.start.is_first
    }

    /// Takes the folder, once all options were looked at. `None` if the run to resume has ended: its files stay. Says on
    /// stderr where a run goes on.
    ///
    /// `agree` is where several processes wait for each other, twice: before anything changes, where they also
    /// compare their settings, and when the first has cleaned up what a run that was killed has left.
    ///
    /// # Errors
    ///
    /// Those of `agree`; another program has the folder, or it cannot be written, or its newest checkpoint is not as
    /// it was saved.
    pub fn begin<E: From<RunError>>(
        self,
        agree: impl Fn(&S) -> Result<(), E>,
    ) -> Result<Option<Run<S>>, E> {
        let Self {
            settings,
            start,
            mut folder,
        } = self;
        if start.is_first && !start.resume {
            let taken = RunFolder::create::<S>(&start.folder, start.parts, start.overwrite);
            folder = taken.map_err(RunError::from)?;
        }
        agree(&settings)?;
        if start.resume && folder.is_finished() {
            if start.is_first {
                let folder = start.folder.display();
                note(&format!(
                    "{folder} holds a finished run: nothing is left to train"
                ));
            }
            return Ok(None);
        }
        let identity = identity(&settings, start.may_change).map_err(RunError::from)?;
        let checkpoints = folder.checkpoints().of_run(&identity);
        let find = || match start.resume {
            true => checkpoints.resume_point().map_err(RunError::from),
            false => Ok(None),
        };
        let resume_point;
        if start.is_first {
            resume_point = find()?;
            match (start.resume, resume_point) {
                (false, _) => folder.start(&settings),
                (true, Some(epoch)) => {
                    note(&format!("going on after epoch {epoch}"));
                    folder.save_settings(&settings)
                }
                (true, None) => {
                    note("no epoch was finished: beginning with the first");
                    folder.save_settings(&settings)
                }
            }
            .map_err(RunError::from)?;
            agree(&settings)?;
        } else {
            agree(&settings)?;
            resume_point = find()?;
        }
        Ok(Some(Run {
            settings,
            folder,
            checkpoints,
            identity,
            resume_point,
            is_first: start.is_first,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;
    use std::cell::Cell;
    use std::fs;
    use std::path::Path;

    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    struct Settings {
        seed: u64,
        device: String,
    }

    fn settings(seed: u64, device: &str) -> Settings {
        let device = device.into();
        Settings { seed, device }
    }

    fn start<'a>(folder: &Path, resume: bool, given: &'a [String]) -> Start<'a> {
        Start {
            folder: folder.into(),
            parts: &["model.bin"],
            resume,
            overwrite: false,
            given,
            may_change: &["device"],
            is_first: true,
        }
    }

    fn begin(pending: Pending<'_, Settings>) -> Result<Option<Run<Settings>>, RunError> {
        pending.begin(|_| Ok(()))
    }

    #[test]
    fn a_run_begins_once_its_options_are_known() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("run");
        let mut new = start(&path, false, &[]).open(settings(7, "cpu")).unwrap();
        assert!(!path.exists(), "nothing is written before it begins");
        new.settings.seed = 8;
        let run = begin(new).unwrap().unwrap();
        assert_eq!(run.resume_point, None);
        assert_eq!(run.identity, "seed: 8\n");
        let save = |_: &str, file: &Path| fs::write(file, "weights");
        run.checkpoints.save(3, save).unwrap();
        let text = start(&path, false, &[]).open(settings(8, "cpu"));
        let text = text.unwrap_err().to_string();
        assert!(text.starts_with("another program"), "{text}");
        drop(run);

        let given = ["seed".to_owned()];
        let text = start(&path, true, &given).open(settings(9, "cpu"));
        let text = text.unwrap_err().to_string();
        assert_eq!(text, "the run to resume has --seed 8, not 9");
        let given = ["device".to_owned()];
        let pending = start(&path, true, &given).open(settings(9, "cuda"));
        let run = begin(pending.unwrap()).unwrap().unwrap();
        assert_eq!(run.resume_point, Some(3));
        assert_eq!(run.settings, settings(8, "cuda"));
        assert_eq!(run.folder.settings::<Settings>().unwrap(), run.settings);
        run.folder.save_results(&0.97).unwrap();
        drop(run);

        // It has ended: what is given now is not written.
        let pending = start(&path, true, &given).open(settings(8, "npu"));
        assert!(begin(pending.unwrap()).unwrap().is_none());
        let folder = RunFolder::read(&path, &["model.bin"]);
        assert_eq!(folder.settings::<Settings>().unwrap().device, "cuda");
    }

    #[test]
    fn processes_agree_before_anything_changes_and_when_the_folder_is_ready() {
        let home = tempfile::tempdir().unwrap();
        let run = || {
            let new = start(home.path(), false, &[]);
            new.open(settings(7, "cpu")).unwrap()
        };
        let refused = run().begin(|_| Err(RunError::from(std::io::Error::other("they differ"))));
        assert_eq!(refused.unwrap_err().to_string(), "they differ");
        let config = home.path().join("config.json");
        assert!(!config.exists());

        let was_there = Cell::new(Vec::new());
        let agree = |_: &Settings| {
            let mut seen = was_there.take();
            seen.push(config.exists());
            was_there.set(seen);
            Ok::<(), RunError>(())
        };
        run().begin(agree).unwrap().unwrap();
        assert_eq!(was_there.take(), [false, true]);

        // The other processes write nothing, and find what the first has written.
        let unfinished = home.path().join("checkpoint/unfinished-model-1.bin");
        fs::create_dir(home.path().join("checkpoint")).unwrap();
        fs::write(&unfinished, "").unwrap();
        let mut other = start(home.path(), true, &[]);
        other.is_first = false;
        let pending = other.open(settings(0, "gpu")).unwrap();
        assert_eq!(pending.settings, settings(7, "cpu"));
        let clean_up = |_: &Settings| {
            let _ = fs::remove_file(&unfinished);
            Ok::<(), RunError>(())
        };
        pending.begin(clean_up).unwrap().unwrap();
    }
}
