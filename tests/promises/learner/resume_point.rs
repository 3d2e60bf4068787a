//! Where a run is resumed, from what is in its folder.

use std::fs;

use burn_gradient_release_train::resume::resume_point;

use crate::harness::learner::Directory;

/// Files of a checkpoint.
const PARTS: [&str; 3] = ["model", "optim", "scheduler"];

/// The folder of a run that left these files behind.
fn folder(files: &[&str]) -> Directory {
    let directory = Directory::temporary();
    fs::create_dir(directory.path().join("checkpoint")).expect("new");
    for file in files {
        fs::write(directory.checkpoint(file), file).expect("writable");
    }
    directory
}

/// The files of whole checkpoints.
fn whole(epochs: &[usize]) -> Vec<String> {
    let mut files: Vec<_> = PARTS
        .iter()
        .flat_map(|part| {
            epochs
                .iter()
                .map(move |epoch| format!("{part}-{epoch}.mpk.gz"))
        })
        .collect();
    files.sort();
    files
}

/// The resume point of a folder with these files, and what it leaves.
fn resumes(whole_epochs: &[usize], others: &[&str]) -> (Option<usize>, Vec<String>) {
    let files = whole(whole_epochs);
    let files: Vec<_> = files
        .iter()
        .map(String::as_str)
        .chain(others.iter().copied())
        .collect();
    let directory = folder(&files);
    let point = resume_point(directory.path()).expect("readable");
    (point, directory.checkpoints())
}

#[test]
fn without_a_folder_there_is_nothing_to_resume() {
    let directory = Directory::temporary();
    assert_eq!(resume_point(directory.path()).expect("not an error"), None);
    let missing = directory.path().join("never made");
    assert_eq!(resume_point(missing).expect("not an error"), None);
    assert_eq!(resumes(&[], &[]), (None, vec![]));
}

#[test]
fn the_newest_whole_epoch_is_the_resume_point() {
    // As numbers: as text 9 comes after 10.
    assert_eq!(resumes(&[8, 9, 10], &[]), (Some(10), whole(&[8, 9, 10])));
}

#[test]
fn an_incomplete_newest_epoch_is_cleared() {
    let torn = ["model-3.mpk.gz", "scheduler-3.mpk.gz"];
    assert_eq!(resumes(&[1, 2], &torn), (Some(2), whole(&[1, 2])));
    assert_eq!(resumes(&[], &["model-1.mpk.gz"]), (None, vec![]));
}

/// A delete that was killed: no run resumes there, and the next delete of Burn's takes the rest.
#[test]
fn an_incomplete_older_epoch_is_left_alone() {
    let mut left = whole(&[2, 3]);
    left.insert(0, "model-1.mpk.gz".into());
    assert_eq!(resumes(&[2, 3], &["model-1.mpk.gz"]), (Some(3), left));
}

#[test]
fn unfinished_files_are_cleared() {
    let unfinished = ["unfinished-model-3.mpk.gz", "unfinished-optim-2.mpk.gz"];
    assert_eq!(resumes(&[1, 2], &unfinished), (Some(2), whole(&[1, 2])));
}

#[test]
fn foreign_files_are_left_alone() {
    let foreign = [
        "best-model.mpk.gz",
        "model-7-ema.mpk.gz",
        "model-best.mpk.gz",
        "model.mpk.gz",
        "notes.txt",
        "optim-9",
    ];
    let (point, left) = resumes(&[1, 2], &foreign);
    assert_eq!(point, Some(2));
    let mut expected = whole(&[1, 2]);
    expected.extend(foreign.map(String::from));
    expected.sort();
    assert_eq!(left, expected);
}
