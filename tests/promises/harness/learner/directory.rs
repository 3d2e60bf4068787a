//! Folder of a run's checkpoints and logs.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tempfile::TempDir;

/// The folder given to `SupervisedTraining::new`; a temporary one lives as long as any run in it.
#[derive(Clone)]
pub(crate) struct Directory {
    path: PathBuf,
    _temporary: Option<Arc<TempDir>>,
}

impl Directory {
    /// A new one.
    pub(crate) fn temporary() -> Self {
        let temporary = tempfile::tempdir().expect("a temporary directory");
        Self {
            path: temporary.path().to_path_buf(),
            _temporary: Some(Arc::new(temporary)),
        }
    }

    /// One that another process looks after.
    pub(crate) fn at(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            _temporary: None,
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// A checkpoint's file.
    pub(crate) fn checkpoint(&self, file: &str) -> PathBuf {
        self.path.join("checkpoint").join(file)
    }

    /// The names of the checkpoints' files, sorted.
    pub(crate) fn checkpoints(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.path.join("checkpoint")).expect("checkpoints exist");
        let mut names: Vec<_> = entries
            .map(|entry| entry.expect("readable").file_name())
            .map(|name| name.to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    /// Log entries of a training metric in an epoch.
    pub(crate) fn logged(&self, epoch: usize, metric: &str) -> Vec<String> {
        let metric = metric.replace(' ', "_");
        let file = self.path.join(format!("train/epoch-{epoch}/{metric}.log"));
        let text = std::fs::read_to_string(&file)
            .unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        text.lines().map(str::to_string).collect()
    }
}
