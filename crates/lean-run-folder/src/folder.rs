//! The folder of a training run.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Serialize, de::DeserializeOwned};

use crate::checkpoints::Checkpoints;
use crate::disk::{remove, write_json};
use crate::error::{CannotWrite, FolderError};
use crate::lock::Lock;

const SETTINGS: &str = "config.json";
const RESULTS: &str = "results.json";
const CHECKPOINTS: &str = "checkpoint";

/// The folder of a run, which no other program uses meanwhile:
///
/// ```text
/// config.json      the settings
/// checkpoint/      the newest checkpoints, with their checksums
/// results.json     once the run has ended
/// lock             locked while a program uses the folder
/// ```
///
/// Of several processes of a run, the first has it; the others [read](Self::read) what it has
/// written. `parts` are those of its [`Checkpoints`].
#[derive(Debug)]
pub struct RunFolder {
    path: PathBuf,
    checkpoints: Checkpoints,
    _lock: Option<Lock>,
}

impl RunFolder {
    /// The folder for a new run, and no change to it but its lock. `S` are the settings, which tell
    /// the runs of this program from those of others.
    ///
    /// # Errors
    ///
    /// It is locked, or of another program, or holds a run, which only `overwrite` allows; or it
    /// cannot be written.
    pub fn create<S: DeserializeOwned>(
        path: &Path,
        parts: &[&str],
        overwrite: bool,
    ) -> Result<Self, FolderError> {
        let folder = Self::read(path, parts);
        Self::ensure_free::<S>(path, parts, overwrite)?;
        fs::create_dir_all(path).map_err(|error| CannotWrite::to(path, error))?;
        let folder = folder.locked()?;
        // Another program may have begun and ended a run since.
        folder.ensure_no_run::<S>(overwrite)?;
        Ok(folder)
    }

    /// Whether [`create`](Self::create) would refuse the folder, which is not touched.
    ///
    /// # Errors
    ///
    /// Those of `create`, but that of the disk.
    pub fn ensure_free<S: DeserializeOwned>(
        path: &Path,
        parts: &[&str],
        overwrite: bool,
    ) -> Result<(), FolderError> {
        if path.exists() && !path.is_dir() {
            return Err(FolderError::NoFolder(path.into()));
        }
        Lock::ensure_free(path)?;
        Self::read(path, parts).ensure_no_run::<S>(overwrite)
    }

    /// The folder of a run to resume.
    ///
    /// # Errors
    ///
    /// There is no run in it, or another program uses it, or it cannot be written.
    pub fn open(path: &Path, parts: &[&str]) -> Result<Self, FolderError> {
        let folder = Self::read(path, parts);
        folder.ensure_settings()?;
        folder.locked()
    }

    /// The folder of a run that another process has.
    pub fn read(path: &Path, parts: &[&str]) -> Self {
        Self {
            path: path.to_path_buf(),
            checkpoints: Checkpoints::new(path.join(CHECKPOINTS), parts),
            _lock: None,
        }
    }

    /// The path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the run in this folder has written its results.
    pub fn is_finished(&self) -> bool {
        self.path.join(RESULTS).exists()
    }

    /// The checkpoints, of whichever run.
    pub fn checkpoints(&self) -> Checkpoints {
        self.checkpoints.clone()
    }

    /// The settings of the run in this folder.
    ///
    /// # Errors
    ///
    /// There is no run in it, or its settings cannot be read.
    pub fn settings<S: DeserializeOwned>(&self) -> Result<S, FolderError> {
        self.ensure_settings()?;
        let file = self.path.join(SETTINGS);
        let bytes = fs::read(&file).map_err(|error| error.to_string());
        let read = bytes
            .and_then(|bytes| serde_json::from_slice(&bytes).map_err(|error| error.to_string()));
        read.map_err(|reason| FolderError::Unreadable { file, reason })
    }

    /// Removes results and checkpoints of an earlier run, and no other files, and writes the
    /// settings.
    ///
    /// # Errors
    ///
    /// A file cannot be removed or written.
    pub fn start(&self, settings: &impl Serialize) -> Result<(), CannotWrite> {
        // Settings last, without which there is nothing to resume.
        remove(&self.path.join(RESULTS))
            .and_then(|()| self.checkpoints.clear())
            .and_then(|()| remove(&self.path.join(SETTINGS)))
            .map_err(|error| CannotWrite::to(&self.path, error))?;
        self.save_settings(settings)
    }

    /// Writes the settings.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn save_settings(&self, settings: &impl Serialize) -> Result<(), CannotWrite> {
        self.save(SETTINGS, settings)
    }

    /// Writes the results.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn save_results(&self, results: &impl Serialize) -> Result<(), CannotWrite> {
        self.save(RESULTS, results)
    }

    fn save(&self, name: &str, value: &impl Serialize) -> Result<(), CannotWrite> {
        write_json(&self.path, name, value).map_err(|error| CannotWrite::to(&self.path, error))
    }

    fn locked(self) -> Result<Self, FolderError> {
        let lock = Lock::acquire(&self.path)?;
        Ok(Self {
            _lock: Some(lock),
            ..self
        })
    }

    fn ensure_settings(&self) -> Result<(), FolderError> {
        let file = self.path.join(SETTINGS);
        match file.is_file() {
            true => Ok(()),
            false => Err(FolderError::NothingToResume(file)),
        }
    }

    fn ensure_no_run<S: DeserializeOwned>(&self, overwrite: bool) -> Result<(), FolderError> {
        let settings = self.path.join(SETTINGS);
        if settings.exists() && self.settings::<S>().is_err() {
            return Err(FolderError::OfAnotherProgram(settings));
        }
        if !overwrite && self.is_finished() {
            return Err(FolderError::Finished(self.path.clone()));
        }
        if !overwrite && self.checkpoints.exist() {
            return Err(FolderError::Interrupted(self.path.clone()));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    type Settings = BTreeMap<String, u64>;

    const PARTS: [&str; 2] = ["model.bin", "state.json"];

    fn settings(seed: u64) -> Settings {
        Settings::from([("seed".into(), seed)])
    }

    fn create(path: &Path, overwrite: bool) -> Result<RunFolder, String> {
        RunFolder::create::<Settings>(path, &PARTS, overwrite).map_err(|error| error.to_string())
    }

    fn open(path: &Path) -> Result<RunFolder, String> {
        RunFolder::open(path, &PARTS).map_err(|error| error.to_string())
    }

    /// All files but the lock, which names the process that had it last.
    fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
        let mut all = BTreeMap::new();
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                all.extend(files(&path));
            } else if !path.ends_with("lock") {
                all.insert(path.clone(), fs::read(path).unwrap());
            }
        }
        all
    }

    #[test]
    fn a_folder_has_one_run_at_a_time() {
        let home = tempfile::tempdir().unwrap();
        let first = create(home.path(), false).unwrap();
        first.start(&settings(1)).unwrap();
        let before = files(home.path());
        let holder = format!("another program (process {}", std::process::id());
        for second in [
            create(home.path(), false),
            create(home.path(), true),
            open(home.path()),
        ] {
            let text = second.unwrap_err();
            assert!(text.starts_with(&holder), "{text}");
            assert!(
                text.ends_with("wait for it, or choose another folder"),
                "{text}"
            );
        }
        assert!(files(home.path()) == before);
        drop(first);
        open(home.path()).unwrap();
    }

    #[test]
    fn a_run_is_overwritten_only_if_asked() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("run");
        let folder = create(&path, false).unwrap();
        folder.start(&settings(1)).unwrap();
        let save = |_: &str, file: &Path| fs::write(file, "weights");
        folder.checkpoints().save(3, save).unwrap();
        drop(folder);
        let is_refused = |text: &str| {
            let before = files(&path);
            let refused = create(&path, false).unwrap_err();
            assert_eq!(refused, format!("{} {text}", path.display()));
            assert!(files(&path) == before, "the run should be as it was");
        };
        is_refused(
            "holds a run that was interrupted: resume it, overwrite it, or choose another folder",
        );
        let folder = open(&path).unwrap();
        assert!(!folder.is_finished());
        folder.save_results(&0.97).unwrap();
        assert!(folder.is_finished());
        drop(folder);
        is_refused("holds a finished run: overwrite it, or choose another folder");

        // What is not of the run stays.
        for file in ["notes", "checkpoint/notes", "checkpoint/model-3.bin.bak"] {
            fs::write(path.join(file), "").unwrap();
        }
        let folder = create(&path, true).unwrap();
        assert!(path.join(RESULTS).exists(), "until it starts");
        folder.start(&settings(7)).unwrap();
        assert_eq!(folder.settings::<Settings>().unwrap(), settings(7));
        let left = files(&path).into_keys();
        let left: Vec<_> = left
            .map(|file| file.strip_prefix(&path).unwrap().display().to_string())
            .collect();
        let others = [
            "checkpoint/model-3.bin.bak",
            "checkpoint/notes",
            SETTINGS,
            "notes",
        ];
        assert_eq!(left, others);
    }

    /// Else the run that wrote them could not be resumed with them.
    #[test]
    fn settings_are_read_to_the_last_bit() {
        let home = tempfile::tempdir().unwrap();
        let folder = create(home.path(), false).unwrap();
        let rates = vec![0.001_200_000_000_000_000_1, 0.001_791_829_084_778_109_9];
        folder.start(&rates).unwrap();
        assert_eq!(folder.settings::<Vec<f64>>().unwrap(), rates);
    }

    #[test]
    fn the_folder_of_another_program_stays_as_it_is() {
        let home = tempfile::tempdir().unwrap();
        fs::create_dir(home.path().join(CHECKPOINTS)).unwrap();
        fs::write(home.path().join("checkpoint/model-3.bin"), "weights").unwrap();
        fs::write(home.path().join(SETTINGS), r#"{"mine": true}"#).unwrap();
        let before = files(home.path());
        for overwrite in [false, true] {
            let text = create(home.path(), overwrite).unwrap_err();
            let way_out = "config.json is of another program: choose another folder";
            assert!(text.ends_with(way_out), "{text}");
        }
        assert!(files(home.path()) == before);
        assert!(!home.path().join("lock").exists());

        // As the run to resume, it cannot be read.
        let text = open(home.path()).unwrap().settings::<Settings>();
        let text = text.unwrap_err().to_string();
        assert!(
            text.contains("config.json cannot be read: start anew"),
            "{text}"
        );
        let text = open(&home.path().join("new")).unwrap_err();
        assert!(
            text.starts_with("nothing to resume: there is no "),
            "{text}"
        );
        assert!(!home.path().join("new").exists());
    }

    #[test]
    fn what_cannot_be_written_is_named() {
        let home = tempfile::tempdir().unwrap();
        let [file, locked] = ["file", "locked"].map(|name| home.path().join(name));
        fs::write(&file, "").unwrap();
        assert!(
            create(&file, false)
                .unwrap_err()
                .ends_with("is not a folder")
        );
        fs::create_dir_all(locked.join("lock")).unwrap();
        for (folder, text) in [
            (file.join("run"), "cannot write to "),
            (locked, "cannot lock "),
        ] {
            let error = RunFolder::create::<Settings>(&folder, &PARTS, false).unwrap_err();
            assert!(error.to_string().starts_with(text), "{error}");
            assert!(matches!(error, FolderError::CannotWrite(_)));
        }
        let run = home.path().join("run");
        let folder = create(&run, false).unwrap();
        folder.start(&settings(1)).unwrap();
        fs::create_dir(run.join(RESULTS)).unwrap();
        let text = folder.save_results(&0.97).unwrap_err().to_string();
        assert!(
            text.starts_with(&format!("cannot write to {}: ", run.display())),
            "{text}"
        );
    }
}
