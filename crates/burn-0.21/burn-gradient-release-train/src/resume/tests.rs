use std::{
    fs,
    io::ErrorKind,
    path::{Path, PathBuf},
};

use burn::{
    backend::Flex,
    module::Module,
    nn::{Linear, LinearConfig, LinearRecord},
    record::{
        BinFileRecorder, BinGzFileRecorder, DefaultRecorder, FileRecorder, FullPrecisionSettings,
        JsonGzFileRecorder, NamedMpkGzFileRecorder, PrettyJsonFileRecorder, Recorder,
        RecorderError,
    },
    tensor::backend::Backend,
};
use serde::{Serialize, de::DeserializeOwned};
use tempfile::{TempDir, tempdir};

use super::{AtomicFileRecorder, resume_point_of_run};

type Full = FullPrecisionSettings;

/// A recorder on a full disk: Burn's, whose buffer is not written at the end, and which says `Ok`.
#[derive(Clone, Debug, Default)]
struct Torn<R> {
    recorder: R,
    /// Bytes of the file that fit.
    room: u64,
}

impl<B: Backend, R: FileRecorder<B>> Recorder<B> for Torn<R> {
    type Settings = R::Settings;
    type RecordArgs = PathBuf;
    type RecordOutput = ();
    type LoadArgs = PathBuf;

    fn save_item<I: Serialize>(&self, item: I, file: PathBuf) -> Result<(), RecorderError> {
        self.recorder.save_item(item, file.clone())?;
        let file = file.with_extension(R::file_extension());
        let file = fs::File::options().write(true).open(file).unwrap();
        file.set_len(self.room).unwrap();
        Ok(())
    }

    fn load_item<I: DeserializeOwned>(&self, file: &mut PathBuf) -> Result<I, RecorderError> {
        self.recorder.load_item(file)
    }
}

impl<B: Backend, R: FileRecorder<B>> FileRecorder<B> for Torn<R> {
    fn file_extension() -> &'static str {
        R::file_extension()
    }
}

fn model() -> Linear<Flex> {
    LinearConfig::new(3, 2).init(&Default::default())
}

fn save<R: FileRecorder<Flex>>(recorder: &R, file: &Path) -> Result<(), RecorderError> {
    recorder.record(model().into_record(), file.to_path_buf())
}

fn load<R: FileRecorder<Flex>>(recorder: &R, file: &Path) -> Result<(), RecorderError> {
    let loaded = recorder.load(file.to_path_buf(), &Default::default());
    loaded.map(|_: LinearRecord<Flex>| ())
}

/// Files in a folder, sorted.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.collect();
    names.sort();
    names
}

#[track_caller]
fn assert_says(error: impl ToString, parts: &[&str]) {
    let text = error.to_string();
    for part in parts {
        assert!(text.contains(part), "not `{part}`: {text}");
    }
}

/// Saving on a full disk is an error, and the file that was there before stays, which has the bytes
/// of the recorder inside.
fn nothing_torn<R: FileRecorder<Flex>>() {
    let home = tempdir().unwrap();
    let file = home.path().join("model-1");
    let read = || fs::read(file.with_extension(R::file_extension())).unwrap();
    let model = model();
    // Drawn now: the clone of a parameter that is not yet drawn draws its own numbers.
    let _ = (
        model.weight.val(),
        model.bias.as_ref().map(|bias| bias.val()),
    );
    let record = || model.clone().into_record();
    let plain = home.path().join("plain");
    Recorder::<Flex>::record(&R::default(), record(), plain.clone()).unwrap();
    let atomic = AtomicFileRecorder::new(R::default());
    Recorder::<Flex>::record(&atomic, record(), file.clone()).unwrap();
    let (before, whole) = (names(home.path()), read());
    let expected = fs::read(plain.with_extension(R::file_extension())).unwrap();
    assert!(
        whole == expected,
        "the bytes are those of the recorder inside"
    );
    // Either loads what the other saved.
    load(&R::default(), &file).unwrap();
    load(&atomic, &plain).unwrap();
    for room in [0, 1, whole.len() / 2, whole.len() - 20] {
        let torn = Torn {
            recorder: R::default(),
            room: room as u64,
        };
        let error = save(&AtomicFileRecorder::new(torn), &file).unwrap_err();
        assert_says(error, &["not all of it was written", "model-1"]);
        assert_eq!(names(home.path()), before, "{room} bytes");
        assert_eq!(read(), whole, "{room} bytes");
        load(&AtomicFileRecorder::new(R::default()), &file).unwrap();
    }
}

#[test]
fn a_full_disk_leaves_no_torn_file() {
    nothing_torn::<DefaultRecorder>();
    nothing_torn::<NamedMpkGzFileRecorder<Full>>();
    nothing_torn::<PrettyJsonFileRecorder<Full>>();
    nothing_torn::<JsonGzFileRecorder<Full>>();
    nothing_torn::<BinFileRecorder<Full>>();
    nothing_torn::<BinGzFileRecorder<Full>>();
}

#[test]
fn what_is_written_when_the_disk_is_full_is_the_error() {
    let home = tempdir().unwrap();
    let recorder = AtomicFileRecorder::new(DefaultRecorder::new());
    // A folder in the place of the file: no buffer is ever emptied.
    fs::create_dir(home.path().join("unfinished-model-1.mpk")).unwrap();
    let error = save(&recorder, &home.path().join("model-1")).unwrap_err();
    assert_says(error, &["cannot save", "model-1.mpk"]);
}

/// A folder with the checkpoints of two epochs, saved by a run with these settings.
fn checkpoints(settings: &str) -> TempDir {
    let home = tempdir().unwrap();
    let recorder = AtomicFileRecorder::new(DefaultRecorder::new()).of_run(settings);
    for epoch in [1, 2] {
        for part in ["model", "optim", "scheduler"] {
            save(&recorder, &saved(&home, &format!("{part}-{epoch}"))).unwrap();
        }
    }
    home
}

fn saved(home: &TempDir, name: &str) -> PathBuf {
    home.path().join("checkpoint").join(name)
}

/// Fails unless the run with these settings is refused, in words that have these parts.
#[track_caller]
fn assert_refused(home: &TempDir, settings: &str, parts: &[&str]) {
    let error = resume_point_of_run(home.path(), settings).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidData);
    assert_says(error, parts);
}

#[test]
fn a_bit_that_has_flipped_is_found() {
    let home = checkpoints("a");
    let file = saved(&home, "optim-2.mpk");
    let whole = fs::read(&file).unwrap();
    let recorder = AtomicFileRecorder::new(DefaultRecorder::new());
    for at in 0..whole.len() {
        let mut bytes = whole.clone();
        bytes[at] ^= 1 << (at % 8);
        fs::write(&file, bytes).unwrap();
        let error = load(&recorder, &file).unwrap_err();
        assert_says(error, &["optim-2.mpk is not as it was saved"]);
    }
    fs::write(&file, whole).unwrap();
    load(&recorder, &file).unwrap();
}

#[test]
fn checkpoints_of_another_run_or_epoch_are_refused() {
    const RUN: &str = "adam, seed 1";
    let (home, other) = (checkpoints(RUN), checkpoints("sgd, seed 1"));
    assert_eq!(resume_point_of_run(home.path(), RUN).unwrap(), Some(2));
    let file = saved(&home, "optim-2.mpk");
    let replace_by = |home: &TempDir, name: &str| {
        for end in ["", ".sha256"] {
            let to = file.with_extension(format!("mpk{end}"));
            fs::copy(saved(home, &format!("{name}{end}")), to).unwrap();
        }
    };
    replace_by(&other, "optim-2.mpk");
    assert_refused(&home, RUN, &["was saved by a run with other settings"]);
    let recorder = AtomicFileRecorder::new(DefaultRecorder::new());
    load(&recorder, &file).unwrap();
    let error = load(&recorder.of_run(RUN), &file).unwrap_err();
    assert_says(error, &["other settings"]);

    replace_by(&home, "optim-1.mpk");
    assert_refused(&home, RUN, &["is no checksum of optim-2.mpk"]);
}

#[test]
fn a_checksum_goes_with_its_file() {
    let home = checkpoints("a");
    let folder = saved(&home, "");
    for gone in ["model-1", "optim-1", "scheduler-1", "optim-2"] {
        fs::remove_file(folder.join(format!("{gone}.mpk"))).unwrap();
    }
    let recorder = AtomicFileRecorder::new(DefaultRecorder::new());
    save(&recorder, &folder.join("model-3")).unwrap();
    assert_eq!(
        names(&folder),
        [
            "model-2.mpk",
            "model-2.mpk.sha256",
            "model-3.mpk",
            "model-3.mpk.sha256",
            "scheduler-2.mpk",
            "scheduler-2.mpk.sha256",
        ]
    );
}
