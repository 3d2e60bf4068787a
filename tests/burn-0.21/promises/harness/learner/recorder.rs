//! A recorder that says when it writes.

use std::fmt::{self, Debug, Formatter};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use burn::record::{FileRecorder, FullPrecisionSettings, Record, Recorder, RecorderError};
use burn::tensor::backend::Backend;
use serde::{Serialize, de::DeserializeOwned};

use super::Bin;

/// [`Bin`], which is not done with a file before it has called `while_writing` with its name.
#[derive(Clone, Default)]
pub(crate) struct Watched {
    recorder: Bin,
    while_writing: Option<Arc<WhileWriting>>,
}

type WhileWriting = dyn Fn(&Path) + Send + Sync;

impl Watched {
    pub(crate) fn new(while_writing: impl Fn(&Path) + Send + Sync + 'static) -> Self {
        Self {
            recorder: Bin::default(),
            while_writing: Some(Arc::new(while_writing)),
        }
    }
}

impl Debug for Watched {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.recorder.fmt(f)
    }
}

impl<B: Backend> Recorder<B> for Watched {
    type Settings = FullPrecisionSettings;
    type RecordArgs = PathBuf;
    type RecordOutput = ();
    type LoadArgs = PathBuf;

    fn record<R: Record<B>>(&self, record: R, file: PathBuf) -> Result<(), RecorderError> {
        Recorder::<B>::record(&self.recorder, record, file.clone())?;
        if let Some(while_writing) = &self.while_writing {
            while_writing(&file);
        }
        Ok(())
    }

    fn save_item<I: Serialize>(&self, item: I, file: PathBuf) -> Result<(), RecorderError> {
        Recorder::<B>::save_item(&self.recorder, item, file)
    }

    fn load_item<I: DeserializeOwned>(&self, file: &mut PathBuf) -> Result<I, RecorderError> {
        Recorder::<B>::load_item(&self.recorder, file)
    }
}

impl<B: Backend> FileRecorder<B> for Watched {
    fn file_extension() -> &'static str {
        <Bin as FileRecorder<B>>::file_extension()
    }
}
