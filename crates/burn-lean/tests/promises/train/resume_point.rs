//! Where a killed run is picked up.

use std::fs;

use burn_lean::train::resume::resume_point;

use super::harness::Directory;

fn folder(files: &[&str]) -> Directory {
    let directory = Directory::temporary();
    fs::create_dir(directory.path().join("checkpoint")).unwrap();
    for file in files {
        fs::write(directory.checkpoint(file), "").unwrap();
    }
    directory
}

#[test]
fn no_checkpoint_at_all() {
    let directory = Directory::temporary();
    assert_eq!(resume_point(directory.path()).unwrap(), None);
    assert_eq!(resume_point(folder(&[]).path()).unwrap(), None);
}

#[test]
fn the_newest_epoch_that_is_whole() {
    let kept = [
        "model-2.bpk",
        "model-9.bpk",
        "notes.txt",
        "optim-2.bpk",
        "optim-9.bpk",
        "other-12.bpk.1-2.tmp",
        "scheduler-9.bpk",
    ];
    let removed = [
        "model-10.bpk",
        "optim-10.bpk",
        "scheduler-10.bpk.4711-3.tmp",
        "model-11.bpk",
        "model-9.bpk.4711-0.tmp",
    ];
    let directory = folder(&[&kept[..], &removed[..]].concat());
    assert_eq!(resume_point(directory.path()).unwrap(), Some(9));
    assert_eq!(directory.checkpoints(), kept);
}
