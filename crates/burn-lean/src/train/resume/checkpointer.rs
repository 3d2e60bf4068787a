//! Checkpoints whose bytes are compared before they are loaded.

use std::io;
use std::path::{Path, PathBuf};

use burn::train::checkpoint::{Checkpoint, Checkpointer, CheckpointerError, FileCheckpointer};
use burn::train::{LearnerModel, SupervisedTraining};
use lean_run_folder::checksum::{self, Checksum, digest_of_run};
use lean_run_folder::{UNFINISHED, remove};

/// Burn's file checkpointer, with the SHA-256 of each file beside it (`model-3.bpk.sha256`, for
/// `sha256sum -c` too). What the disk has changed since is refused, and so is what a run with
/// [other settings](Self::of_run) has saved. A file without a checksum is loaded as it is.
///
/// [`checked_checkpointers`] gives a training the three that it wants.
#[derive(Debug)]
pub struct CheckedFileCheckpointer {
    folder: PathBuf,
    name: String,
    run: Option<String>,
}

impl CheckedFileCheckpointer {
    /// Saves the part of this name, as `model`, in this folder. Its files are those of
    /// [`FileCheckpointer`].
    pub fn new(folder: impl AsRef<Path>, name: &str) -> Self {
        Self {
            folder: folder.as_ref().to_path_buf(),
            name: name.into(),
            run: None,
        }
    }

    /// Notes what tells this run from others, as the text of its settings, and refuses to load what
    /// another one has saved. Leave out what may change when a run is resumed.
    pub fn of_run(mut self, settings: impl AsRef<[u8]>) -> Self {
        self.run = Some(digest_of_run(settings.as_ref()));
        self
    }

    fn files(&self) -> FileCheckpointer {
        FileCheckpointer::new(&self.folder, &self.name)
    }

    fn file(&self, epoch: usize) -> PathBuf {
        self.folder.join(format!("{}-{epoch}.bpk", self.name))
    }
}

impl<R: Checkpoint> Checkpointer<R> for CheckedFileCheckpointer {
    fn save(&self, epoch: usize, record: R) -> Result<(), CheckpointerError> {
        // What is there keeps its checksum until all is written: it may be of another run.
        let unfinished = Self::new(&self.folder, &format!("{UNFINISHED}{}", self.name));
        let written = unfinished.file(epoch);
        let saved = unfinished.files().save(epoch, record).and_then(|()| {
            let published = Checksum::new(&written, self.run.clone())
                .and_then(|checksum| checksum.publish(&written, &self.file(epoch)));
            published.map_err(CheckpointerError::IOError)
        });
        saved.inspect_err(|_| {
            // Makes room, and says nothing of its own: the error that counts is there.
            let _ = remove(&written);
        })
    }

    fn delete(&self, epoch: usize) -> Result<(), CheckpointerError> {
        Checkpointer::<R>::delete(&self.files(), epoch)?;
        let checksum = checksum::path_of(&self.file(epoch));
        remove(&checksum).map_err(CheckpointerError::IOError)
    }

    fn restore(&self, epoch: usize) -> Result<R, CheckpointerError> {
        match checksum::verify(&self.file(epoch), self.run.as_deref()) {
            // Burn says so in its own words.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            verified => verified.map_err(CheckpointerError::IOError)?,
        }
        self.files().restore(epoch)
    }
}

/// A training with the checkpointers of `with_default_checkpointers`, and checksums. `directory` is
/// the one given to `SupervisedTraining::new`.
///
/// ```no_run
/// use std::{io, sync::Arc};
///
/// use burn::data::dataloader::DataLoader;
/// use burn::optim::AdamConfig;
/// use burn::tensor::Device;
/// use burn::train::{InferenceStep, LearnerModel, SupervisedTraining, TrainStep};
/// use burn_lean::train::resume::{ResumedDataLoader, checked_checkpointers, resume_point};
/// use burn_lean::train::{GradientReleaseStrategy, release_learner};
///
/// fn train<M: LearnerModel>(
///     directory: &str,
///     model: M,
///     train: Arc<dyn DataLoader<<M as TrainStep>::Input>>,
///     valid: Arc<dyn DataLoader<<M as InferenceStep>::Input>>,
/// ) -> io::Result<()> {
///     let strategy = GradientReleaseStrategy::new(Device::flex());
///     let done = resume_point(directory)?; // `None`: a new run
///     let train = ResumedDataLoader::new(train, done.map_or(1, |epoch| epoch + 1));
///     let training = SupervisedTraining::new(directory, train, valid);
///     let mut training = checked_checkpointers(training, directory)
///         .with_training_strategy(strategy.into())
///         .num_epochs(10);
///     if let Some(epoch) = done {
///         training = training.checkpoint(epoch);
///     }
///     let result = training.launch(release_learner(model, AdamConfig::new().init(), 1e-3));
///     // A full disk, or data that cannot be read, has ended the training.
///     result.error.map_or(Ok(()), |error| Err(io::Error::other(error.to_string())))
/// }
/// ```
pub fn checked_checkpointers<M: LearnerModel>(
    training: SupervisedTraining<M>,
    directory: impl AsRef<Path>,
) -> SupervisedTraining<M> {
    with(training, directory.as_ref(), |checkpointer| checkpointer)
}

/// The same, with a text that identifies this run: the settings that do not change when it is
/// resumed. Checkpoints of another run are refused.
pub fn checked_checkpointers_of_run<M: LearnerModel>(
    training: SupervisedTraining<M>,
    directory: impl AsRef<Path>,
    settings: impl AsRef<[u8]>,
) -> SupervisedTraining<M> {
    with(training, directory.as_ref(), |checkpointer| {
        checkpointer.of_run(settings.as_ref())
    })
}

fn with<M: LearnerModel>(
    training: SupervisedTraining<M>,
    directory: &Path,
    of_run: impl Fn(CheckedFileCheckpointer) -> CheckedFileCheckpointer,
) -> SupervisedTraining<M> {
    let folder = directory.join("checkpoint");
    let of = |part| of_run(CheckedFileCheckpointer::new(&folder, part));
    training.with_custom_checkpointers(of("model"), of("optim"), of("scheduler"))
}
