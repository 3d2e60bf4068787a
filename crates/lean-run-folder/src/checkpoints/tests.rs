use super::*;
use crate::learner::PARTS as LEARNER_PARTS;
use std::collections::BTreeSet;
use tempfile::TempDir;

fn learner(folder: &Path) -> Checkpoints {
    Checkpoints::new(folder, &LEARNER_PARTS)
}

fn bpk(folder: &Path) -> Checkpoints {
    Checkpoints::new(folder, &["model.bpk", "optim.bpk", "scheduler.bpk"])
}

/// A folder of checkpoints with these files, in a folder of its own.
fn folder(files: &[&str]) -> (TempDir, PathBuf) {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join("checkpoint");
    fs::create_dir(&folder).unwrap();
    write(&folder, files);
    (home, folder)
}

fn write(folder: &Path, files: &[&str]) {
    for file in files {
        fs::write(folder.join(file), file).unwrap();
    }
}

fn names(folder: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(folder).unwrap();
    let name = |entry: io::Result<fs::DirEntry>| entry.unwrap().file_name();
    entries
        .map(|entry| name(entry).into_string().unwrap())
        .collect()
}

fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| String::from(*name)).collect()
}

#[test]
fn parts_of_one_kind_make_a_checkpoint() {
    let files = ["model-1.bpk", "optim-1.mpk", "scheduler-1.mpk"];
    let other = ["model-1.mpk", "model-2.mpk.gz", "unfinished-optim-2.mpk.gz"];
    let (_home, folder) = folder(&[files, other].concat());
    assert_eq!(learner(&folder).resume_point().unwrap(), Some(1));
    assert_eq!(names(&folder).len(), 4);
    // Of this extension there is one part, which makes none.
    let bpk = bpk(&folder).resume_point().unwrap();
    assert_eq!(bpk, None);
    assert_eq!(names(&folder).len(), 3);
}

#[test]
fn what_a_killed_save_has_left_is_removed() {
    let kept = ["model-1.bpk", "optim-1.bpk", "scheduler-1.bpk", "notes.tmp"];
    let left = [
        "model-2.bpk",
        "model-2.bpk.sha256",
        "optim-2.bpk.4711-0.tmp",
        "unfinished-model-2.bpk.sha256",
        "model-4.bpk",
    ];
    let (home, folder) = folder(&[&kept[..], &left].concat());
    let found = bpk(&folder).resume_point().unwrap();
    assert_eq!(found, Some(1));
    assert_eq!(names(&folder), set(&kept));
    // Of a later epoch than the next, it is moved aside.
    let folders = set(&["checkpoint", "checkpoint-incomplete"]);
    assert_eq!(names(home.path()), folders);
}

#[test]
fn weights_that_were_kept_alone_are_not_lost() {
    let weights = ["model-20.mpk", "model-20.mpk.sha256"];
    let (home, folder) = folder(&weights);
    assert_eq!(learner(&folder).resume_point().unwrap(), None);
    let aside = home.path().join("checkpoint-incomplete");
    assert_eq!(names(&aside), set(&weights));
    // Others, and the first ones stay.
    write(&folder, &["model-20.mpk", "optim-20.mpk"]);
    assert_eq!(learner(&folder).resume_point().unwrap(), None);
    assert_eq!(names(&aside), set(&weights));
    let second = home.path().join("checkpoint-incomplete-2");
    assert_eq!(names(&second), set(&["model-20.mpk", "optim-20.mpk"]));
    assert_eq!(learner(&folder).resume_point().unwrap(), None);
    assert_eq!(names(home.path()).len(), 3);
}

#[test]
fn other_files_are_not_touched() {
    let other = [
        "model-5.mpk.bak",
        "optim-5.mpk.bak",
        "scheduler-5.mpk.bak",
        "model-5.mpk.old.tmp",
        "model-05.mpk",
        "model-best.mpk",
        "optim-5.txt",
        "data.csv.sha256",
        "optim-6.txt.sha256",
    ];
    let (home, folder) = folder(&other);
    assert_eq!(learner(&folder).resume_point().unwrap(), None);
    assert_eq!(bpk(&folder).resume_point().unwrap(), None);
    assert_eq!(names(&folder), set(&other));
    assert_eq!(names(home.path()).len(), 1);
}

const PARTS: [&str; 2] = ["model.bin", "state.json"];

/// Epochs that a run has saved, in a folder that was not there.
fn saved(epochs: &[usize], run: &str) -> (TempDir, Checkpoints) {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join("checkpoint");
    let checkpoints = Checkpoints::new(folder, &PARTS).of_run(run);
    for epoch in epochs {
        let write = |part: &str, file: &Path| fs::write(file, format!("{part} of {epoch}"));
        checkpoints.save(*epoch, write).unwrap();
    }
    (home, checkpoints)
}

fn refusal(checkpoints: &Checkpoints) -> String {
    let error = checkpoints.resume_point().unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    error.to_string()
}

#[test]
fn the_two_newest_are_kept() {
    for epochs in [[1, 2, 3], [5, 10, 15], [1, 4, 5]] {
        let (_home, checkpoints) = saved(&epochs, "a run");
        let [_, before, last] = epochs;
        assert_eq!(checkpoints.resume_point().unwrap(), Some(last));
        let kept = [before, last].into_iter().flat_map(|epoch| {
            let files = [format!("model-{epoch}.bin"), format!("state-{epoch}.json")];
            files.map(|file| [file.clone(), format!("{file}.sha256")])
        });
        assert_eq!(names(&checkpoints.folder), kept.flatten().collect());
        let model = fs::read_to_string(checkpoints.file("model.bin", last));
        assert_eq!(model.unwrap(), format!("model.bin of {last}"));
        assert!(checkpoints.exist());
        checkpoints.clear().unwrap();
        assert!(!checkpoints.exist());
        assert!(names(&checkpoints.folder).is_empty());
    }
}

#[test]
fn a_full_disk_leaves_the_last_checkpoint_and_its_own_room() {
    let (_home, checkpoints) = saved(&[1, 2], "a run");
    let before = names(&checkpoints.folder);
    for full in PARTS {
        let error = checkpoints.save(3, |part, file| {
            fs::write(file, "as far as it goes")?;
            match part == full {
                true => Err(io::Error::from(io::ErrorKind::StorageFull)),
                false => Ok(()),
            }
        });
        assert_eq!(error.unwrap_err().kind(), io::ErrorKind::StorageFull);
        assert_eq!(names(&checkpoints.folder), before, "{full}");
        assert_eq!(checkpoints.resume_point().unwrap(), Some(2));
    }
}

#[test]
fn an_epoch_that_is_saved_again_is_of_one_save() {
    let (_home, checkpoints) = saved(&[1, 2], "a run");
    let contents = || {
        let names = names(&checkpoints.folder).into_iter();
        let content = |name| fs::read_to_string(checkpoints.folder.join(name)).unwrap();
        names.map(content).collect::<Vec<_>>()
    };
    let before = contents();
    for full in PARTS {
        let error = checkpoints.save(2, |part, file| match part == full {
            true => Err(io::Error::from(io::ErrorKind::StorageFull)),
            false => fs::write(file, "of the second save"),
        });
        assert_eq!(error.unwrap_err().kind(), io::ErrorKind::StorageFull);
        assert_eq!(contents(), before, "{full}");
    }
    // As good as killed.
    let unwound = std::panic::catch_unwind(|| {
        checkpoints.save(2, |part, file| {
            assert_ne!(part, PARTS[1]);
            fs::write(file, "of the third save")
        })
    });
    assert!(unwound.is_err());
    assert_eq!(checkpoints.resume_point().unwrap(), Some(2));
    assert_eq!(contents(), before);
    let write = |_: &str, file: &Path| fs::write(file, "of the last save");
    checkpoints.save(2, write).unwrap();
    assert_eq!(checkpoints.resume_point().unwrap(), Some(2));
    for part in PARTS {
        let saved = fs::read_to_string(checkpoints.file(part, 2));
        assert_eq!(saved.unwrap(), "of the last save");
    }
}

#[test]
fn a_file_that_is_not_as_it_was_saved_is_refused() {
    let (_home, checkpoints) = saved(&[1, 2], "a run");
    for part in PARTS {
        let file = checkpoints.file(part, 2);
        let whole = fs::read(&file).unwrap();
        let mut flipped = whole.clone();
        flipped[3] ^= 4;
        for bytes in [flipped, b"no record".to_vec(), Vec::new()] {
            fs::write(&file, bytes).unwrap();
            let text = refusal(&checkpoints);
            let begins = format!("{} is not as it was saved; ", file.display());
            assert!(text.starts_with(&begins), "{text}");
            assert!(
                text.contains("the checkpoint of epoch 1 is whole"),
                "{text}"
            );
        }
        fs::write(file, whole).unwrap();
    }
    // As the message says.
    for part in PARTS {
        fs::remove_file(checkpoints.file(part, 2)).unwrap();
    }
    assert_eq!(checkpoints.resume_point().unwrap(), Some(1));
}

#[test]
fn a_checkpoint_of_another_run_is_refused() {
    let (_home, checkpoints) = saved(&[1], "seed: 42");
    let other = checkpoints.clone().of_run("seed: 7");
    let text = refusal(&other);
    let says = "was saved by a run with other settings; there is no older checkpoint that is whole";
    assert!(text.contains(says), "{text}");
    assert_eq!(checkpoints.resume_point().unwrap(), Some(1));
}

#[test]
fn what_cannot_be_written_removed_or_moved_is_named() {
    let (_home, checkpoints) = saved(&[1, 2], "a run");
    let in_the_way = |file: &Path| {
        let _ = fs::remove_file(file);
        fs::create_dir(file).unwrap();
    };
    let model = checkpoints.file("model.bin", 1);
    in_the_way(&model);
    let orphan = checksum::path_of(&checkpoints.file("model.bin", 9));
    in_the_way(&orphan);
    // The name of the folder beside it is too long.
    let home = tempfile::tempdir().unwrap();
    let long = home.path().join("x".repeat(250));
    fs::create_dir(&long).unwrap();
    write(&long, &["model-20.mpk"]);
    let file = home.path().join("file");
    fs::write(&file, "").unwrap();
    let in_a_file = Checkpoints::new(&file, &PARTS).save(1, |_, _| Ok(()));
    for (error, file) in [
        (in_a_file.unwrap_err(), &file),
        (checkpoints.remove(1).unwrap_err(), &model),
        (checkpoints.resume_point().unwrap_err(), &orphan),
        (learner(&long).resume_point().unwrap_err(), &long),
    ] {
        let text = error.to_string();
        assert!(text.starts_with(&*file.to_string_lossy()), "{text}");
    }
}
