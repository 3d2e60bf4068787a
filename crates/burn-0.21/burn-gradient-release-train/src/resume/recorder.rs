//! Files that are whole or not there.

use std::{
    fs::File,
    io::{self, Write},
    path::{Path, PathBuf},
};

use burn::{
    record::{BurnRecord, FileRecorder, Record, Recorder, RecorderError},
    tensor::backend::Backend,
};
use lean_run_folder::{
    UNFINISHED,
    checksum::{self, Checksum, digest_of_run},
    folder_of, remove,
};
use serde::{
    Serialize,
    de::{DeserializeOwned, IgnoredAny},
};

/// Formats that can be read without knowing what is in them.
const SELF_DESCRIBING: [&str; 4] = ["json", "json.gz", "mpk", "mpk.gz"];

/// More bytes than the buffer that Burn writes through, which is what there may be room for.
const MORE: usize = 64 << 10;

/// Any file recorder of Burn, whose files appear under their name only once they are whole.
///
/// A file is written under another name beside its own, read back, synced to disk, then renamed,
/// which a file system does at once or not at all: nothing is ever replaced by less than a whole
/// file. The bytes are those of the recorder inside; either loads what the other saved.
///
/// Beside each file stands its SHA-256 (`model-3.mpk.sha256`, for `sha256sum -c` too), which
/// [`load`](Recorder::load) compares: what the disk has changed is refused, and so is what a run
/// with [other settings](Self::of_run) has saved. A file without a checksum is loaded as it is.
///
/// Burn's recorders report a full disk only while they write, not when their buffer is emptied at
/// the end: the file is torn, and they say `Ok`. So each file is read back: formats of JSON and
/// MessagePack without memory for it, those of bincode with the record in memory once more. An item
/// that is saved alone, with [`save_item`](Recorder::save_item) and in a format of bincode, is not.
#[derive(Clone, Debug, Default)]
pub struct AtomicFileRecorder<R> {
    recorder: R,
    run: Option<String>,
}

impl<R> AtomicFileRecorder<R> {
    /// Writes with this recorder.
    pub fn new(recorder: R) -> Self {
        Self {
            recorder,
            run: None,
        }
    }

    /// Notes what tells this run from others, as the text of its settings, and refuses to load what
    /// another one has saved. Leave out what may change when a run is resumed.
    pub fn of_run(mut self, settings: impl AsRef<[u8]>) -> Self {
        self.run = Some(digest_of_run(settings.as_ref()));
        self
    }

    /// Writes under another name, reads that, then renames.
    fn write<B: Backend>(
        &self,
        file: PathBuf,
        write: impl FnOnce(PathBuf) -> Result<(), RecorderError>,
        read: impl FnOnce(PathBuf) -> Result<(), RecorderError>,
    ) -> Result<(), RecorderError>
    where
        R: FileRecorder<B>,
    {
        let extension = R::file_extension();
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        let unfinished = file.with_file_name(format!("{UNFINISHED}{name}"));
        let written = unfinished.with_extension(extension);
        let file = file.with_extension(extension);
        let saved = write(unfinished.clone())
            .and_then(|()| read(unfinished))
            .map_err(|error| why_not_whole(&written, &error))
            .and_then(|()| {
                let saved = self.publish(&written, &file);
                saved.map_err(|error| error.to_string())
            })
            .map_err(|reason| {
                RecorderError::Unknown(format!("cannot save {}: {reason}", file.display()))
            });
        if saved.is_err() {
            // Makes room, and says nothing of its own: the error that counts is there.
            let _ = remove(&written);
        }
        saved
    }

    fn publish(&self, written: &Path, file: &Path) -> io::Result<()> {
        Checksum::new(written, self.run.clone())?.publish(written, file)?;
        // As `optim-3.mpk` where this is of `model-4.mpk`.
        let is_own = |name: &str| {
            let epoch = name
                .rsplit_once('-')
                .and_then(|(_, end)| end.split('.').next());
            epoch.is_some_and(|epoch| epoch.parse::<usize>().is_ok())
                && Path::new(name).extension() == file.extension()
        };
        checksum::remove_orphans(folder_of(file), is_own)
    }

    fn verify<B: Backend>(&self, file: &Path) -> Result<(), RecorderError>
    where
        R: FileRecorder<B>,
    {
        let file = file.with_extension(R::file_extension());
        match checksum::verify(&file, self.run.as_deref()) {
            // The recorder says so in words that Burn knows.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            verified => verified.map_err(|error| RecorderError::Unknown(error.to_string())),
        }
    }
}

/// Why not all of a file was written. Burn's error has lost what the system has said: it is asked
/// again, by writing on.
fn why_not_whole(written: &Path, error: &RecorderError) -> String {
    let more = || {
        let mut file = File::options().append(true).open(written)?;
        file.write_all(&[0; MORE])?;
        file.sync_all()
    };
    match more() {
        Err(reason) if reason.kind() != io::ErrorKind::NotFound => reason.to_string(),
        _ => format!(
            "not all of it was written, as on a full disk ({})",
            text_of(error)
        ),
    }
}

/// `Display` of Burn's error is its `Debug`.
fn text_of(error: &RecorderError) -> &str {
    match error {
        RecorderError::FileNotFound(text)
        | RecorderError::DeserializeError(text)
        | RecorderError::Unknown(text) => text,
    }
}

impl<B: Backend, R: FileRecorder<B>> Recorder<B> for AtomicFileRecorder<R> {
    type Settings = R::Settings;
    type RecordArgs = PathBuf;
    type RecordOutput = ();
    type LoadArgs = PathBuf;

    // The recorder inside puts its own name into what it writes.
    fn record<X: Record<B>>(&self, record: X, file: PathBuf) -> Result<(), RecorderError> {
        self.write::<B>(
            file,
            |file| self.recorder.record(record, file),
            |mut file| match SELF_DESCRIBING.contains(&R::file_extension()) {
                true => self.recorder.load_item(&mut file).map(|IgnoredAny| ()),
                false => {
                    let read = self.recorder.load_item(&mut file);
                    read.map(|_: BurnRecord<X::Item<R::Settings>, B>| ())
                }
            },
        )
    }

    fn load<X: Record<B>>(&self, file: PathBuf, device: &B::Device) -> Result<X, RecorderError> {
        self.verify::<B>(&file)?;
        self.recorder.load(file, device)
    }

    fn save_item<I: Serialize>(&self, item: I, file: PathBuf) -> Result<(), RecorderError> {
        self.write::<B>(
            file,
            |file| self.recorder.save_item(item, file),
            |mut file| match SELF_DESCRIBING.contains(&R::file_extension()) {
                true => self.recorder.load_item(&mut file).map(|IgnoredAny| ()),
                false => Ok(()),
            },
        )
    }

    fn load_item<I: DeserializeOwned>(&self, file: &mut PathBuf) -> Result<I, RecorderError> {
        self.verify::<B>(file)?;
        self.recorder.load_item(file)
    }
}

impl<B: Backend, R: FileRecorder<B>> FileRecorder<B> for AtomicFileRecorder<R> {
    fn file_extension() -> &'static str {
        R::file_extension()
    }
}
