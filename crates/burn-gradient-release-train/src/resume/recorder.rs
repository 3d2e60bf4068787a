//! Files that are whole or not there.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
};

use burn::{
    record::{FileRecorder, Record, Recorder, RecorderError},
    tensor::backend::Backend,
};
use serde::{Serialize, de::DeserializeOwned};

use super::UNFINISHED;

/// Any file recorder of Burn, whose files appear under their name only once they are whole.
///
/// A file is written under another name beside its own, synced to disk, then renamed, which a file
/// system does at once or not at all. The bytes are those of the recorder inside; either loads what
/// the other saved.
#[derive(Clone, Debug, Default)]
pub struct AtomicFileRecorder<R> {
    recorder: R,
}

impl<R> AtomicFileRecorder<R> {
    /// Writes with this recorder.
    pub fn new(recorder: R) -> Self {
        Self { recorder }
    }

    /// Writes under another name, then renames.
    fn write<B: Backend>(
        file: PathBuf,
        write: impl FnOnce(PathBuf) -> Result<(), RecorderError>,
    ) -> Result<(), RecorderError>
    where
        R: FileRecorder<B>,
    {
        let extension = R::file_extension();
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        let mut unfinished = file.with_file_name(format!("{UNFINISHED}{name}"));
        write(unfinished.clone())?;
        unfinished.set_extension(extension);
        publish(&unfinished, &file.with_extension(extension)).map_err(|error| {
            RecorderError::Unknown(format!("cannot finish {}: {error}", file.display()))
        })
    }
}

fn publish(unfinished: &Path, file: &Path) -> std::io::Result<()> {
    File::open(unfinished)?.sync_all()?;
    fs::rename(unfinished, file)
}

impl<B: Backend, R: FileRecorder<B>> Recorder<B> for AtomicFileRecorder<R> {
    type Settings = R::Settings;
    type RecordArgs = PathBuf;
    type RecordOutput = ();
    type LoadArgs = PathBuf;

    // The recorder inside puts its own name into what it writes.
    fn record<X: Record<B>>(&self, record: X, file: PathBuf) -> Result<(), RecorderError> {
        Self::write::<B>(file, |file| self.recorder.record(record, file))
    }

    fn load<X: Record<B>>(&self, file: PathBuf, device: &B::Device) -> Result<X, RecorderError> {
        self.recorder.load(file, device)
    }

    fn save_item<I: Serialize>(&self, item: I, file: PathBuf) -> Result<(), RecorderError> {
        Self::write::<B>(file, |file| self.recorder.save_item(item, file))
    }

    fn load_item<I: DeserializeOwned>(&self, file: &mut PathBuf) -> Result<I, RecorderError> {
        self.recorder.load_item(file)
    }
}

impl<B: Backend, R: FileRecorder<B>> FileRecorder<B> for AtomicFileRecorder<R> {
    fn file_extension() -> &'static str {
        R::file_extension()
    }
}
