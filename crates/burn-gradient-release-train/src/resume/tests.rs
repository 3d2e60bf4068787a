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

use super::{AtomicFileRecorder, resume_point, resume_point_of_run};

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
    let name = |entry: std::io::Result<fs::DirEntry>| entry.unwrap().file_name();
    let mut names: Vec<_> = entries
        .map(|entry| name(entry).into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// Saving on a full disk is an error, and the file that was there before stays.
fn nothing_torn<R: FileRecorder<Flex>>() {
    let home = tempdir().unwrap();
    let file = home.path().join("model-1");
    save(&AtomicFileRecorder::new(R::default()), &file).unwrap();
    let before = names(home.path());
    let whole = fs::read(file.with_extension(R::file_extension())).unwrap();
    for room in [0, 1, whole.len() / 2, whole.len() - 20] {
        let torn = Torn {
            recorder: R::default(),
            room: room as u64,
        };
        let error = save(&AtomicFileRecorder::new(torn), &file).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("not all of it was written"), "{text}");
        assert!(text.contains("model-1"), "{text}");
        assert_eq!(names(home.path()), before, "{room} bytes");
        let left = fs::read(file.with_extension(R::file_extension())).unwrap();
        assert_eq!(left, whole, "{room} bytes");
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
    let text = save(&recorder, &home.path().join("model-1")).unwrap_err();
    let text = text.to_string();
    assert!(
        text.contains("cannot save") && text.contains("model-1.mpk"),
        "{text}"
    );
}

/// A folder with the checkpoints of two epochs, saved by a run with these settings.
fn checkpoints(settings: &str) -> TempDir {
    let home = tempdir().unwrap();
    let recorder = AtomicFileRecorder::new(DefaultRecorder::new()).of_run(settings);
    for epoch in [1, 2] {
        for part in ["model", "optim", "scheduler"] {
            let file = home
                .path()
                .join("checkpoint")
                .join(format!("{part}-{epoch}"));
            save(&recorder, &file).unwrap();
        }
    }
    home
}

fn refusal(home: &TempDir, settings: &str) -> String {
    let error = resume_point_of_run(home.path(), settings).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidData);
    error.to_string()
}

#[test]
fn a_bit_that_has_flipped_is_found() {
    let home = checkpoints("a");
    let file = home.path().join("checkpoint/optim-2.mpk");
    let whole = fs::read(&file).unwrap();
    let recorder = AtomicFileRecorder::new(DefaultRecorder::new());
    for at in 0..whole.len() {
        let mut bytes = whole.clone();
        bytes[at] ^= 1 << (at % 8);
        fs::write(&file, bytes).unwrap();
        let text = load(&recorder, &file).unwrap_err().to_string();
        assert!(
            text.contains("optim-2.mpk is not as it was saved"),
            "{text}"
        );
    }
    let text = resume_point(home.path()).unwrap_err().to_string();
    assert!(
        text.contains("optim-2.mpk is not as it was saved"),
        "{text}"
    );
    assert!(
        text.contains("the checkpoint of epoch 1 is whole"),
        "{text}"
    );

    let older = home.path().join("checkpoint/model-1.mpk");
    let mut bytes = fs::read(&older).unwrap();
    bytes.reverse();
    fs::write(older, bytes).unwrap();
    let text = refusal(&home, "a");
    assert!(text.contains("there is no older checkpoint"), "{text}");

    fs::write(&file, whole).unwrap();
    assert_eq!(resume_point(home.path()).unwrap(), Some(2));
    load(&recorder, &file).unwrap();
}

#[test]
fn checkpoints_of_another_run_or_epoch_are_refused() {
    let (home, other) = (checkpoints("adam, seed 1"), checkpoints("sgd, seed 1"));
    assert_eq!(
        resume_point_of_run(home.path(), "adam, seed 1").unwrap(),
        Some(2)
    );
    let of = |home: &TempDir, name: &str| home.path().join("checkpoint").join(name);
    for name in ["optim-2.mpk", "optim-2.mpk.sha256"] {
        fs::copy(of(&other, name), of(&home, name)).unwrap();
    }
    let text = refusal(&home, "adam, seed 1");
    assert!(
        text.contains("was saved by a run with other settings"),
        "{text}"
    );
    let recorder = AtomicFileRecorder::new(DefaultRecorder::new());
    load(&recorder, &of(&home, "optim-2.mpk")).unwrap();
    let recorder = recorder.of_run("adam, seed 1");
    let text = load(&recorder, &of(&home, "optim-2.mpk")).unwrap_err();
    assert!(text.to_string().contains("other settings"), "{text}");

    for (from, to) in [
        ("optim-1.mpk", "optim-2.mpk"),
        ("optim-1.mpk.sha256", "optim-2.mpk.sha256"),
    ] {
        fs::copy(of(&home, from), of(&home, to)).unwrap();
    }
    let text = refusal(&home, "adam, seed 1");
    assert!(text.contains("is no checksum of optim-2.mpk"), "{text}");
}

#[test]
fn files_without_checksums_are_loaded() {
    let home = checkpoints("a");
    for name in names(&home.path().join("checkpoint")) {
        if name.ends_with(".sha256") {
            fs::remove_file(home.path().join("checkpoint").join(name)).unwrap();
        }
    }
    assert_eq!(resume_point_of_run(home.path(), "b").unwrap(), Some(2));
    let recorder = AtomicFileRecorder::new(DefaultRecorder::new()).of_run("b");
    load(&recorder, &home.path().join("checkpoint/model-2")).unwrap();
}

#[test]
fn a_checksum_goes_with_its_file() {
    let home = checkpoints("a");
    let folder = home.path().join("checkpoint");
    for part in ["model", "optim", "scheduler"] {
        fs::remove_file(folder.join(format!("{part}-1.mpk"))).unwrap();
    }
    fs::remove_file(folder.join("optim-2.mpk")).unwrap();
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
    // Nothing is complete: nothing is left.
    assert_eq!(resume_point(home.path()).unwrap(), None);
    assert_eq!(names(&folder), [""; 0]);
}
