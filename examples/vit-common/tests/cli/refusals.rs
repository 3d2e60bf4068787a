//! Options that the program refuses in one line, before anything is written.

use crate::PROGRAM;
use crate::program::{Home, fails, outcome, result, train};
use std::path::Path;
use tempfile::TempDir;

/// Options, and a part of what the program says.
pub(crate) type Refusals = &'static [(&'static str, &'static str)];

const OF_BOTH: Refusals = &[
    ("--batch-size 0", "batch-size"),
    ("--batch-size 99999999999999999999", "--batch-size"),
    ("--checkpointing nonsense", "nonsense"),
    ("--data /nowhere/at/all", "/nowhere/at/all"),
    ("--dropout 1", "--dropout"),
    ("--epochs 99999999999999999999", "--epochs"),
    (
        "--epochs 18446744073709551615",
        "are more than can be counted",
    ),
    ("--image-size 9", "patches"),
    (
        "--image-size 8192",
        "there is no memory for 1797 images of 8192x8192, which take 115008 MiB: choose a smaller \
         --image-size",
    ),
    (
        "--image-size 4294967300",
        "--image-size must be at most 8192",
    ),
    ("--lr 0", "--lr"),
    ("--lr NaN", "--lr"),
    ("--optimizer muon", "muon"),
    ("--optimizer lion --weight-decay 0.1", "not for lion"),
    (
        "--patch-size 4294967296",
        "--patch-size must be at most 8192",
    ),
    (
        "--patch-size 18446744073709551615",
        "--patch-size must be at most 8192",
    ),
    ("--resume --overwrite", "cannot be used with"),
    ("--seed 99999999999999999999", "--seed"),
    ("--weight-decay 1", "--weight-decay must be"),
];

/// Asserts that none of these options leaves anything.
pub(crate) fn are_refused(refusals: Refusals) {
    let home = TempDir::new().unwrap();
    let run = home.path().join("run");
    for (options, text) in refusals {
        let options: Vec<_> = options.split_whitespace().collect();
        println!("{options:?}");
        fails(&mut train(&run, &options), &[text]);
        assert!(!run.exists(), "nothing should have been written");
    }
}

#[test]
fn bad_options_get_one_line_and_leave_nothing() {
    are_refused(OF_BOTH);
    if !Path::new("/usr/share/datasets/fashion-mnist").exists() {
        are_refused(&[("--data fashion-mnist", "package dataset-fashion-mnist")]);
    }
}

#[cfg(not(feature = "cuda"))]
#[test]
fn a_device_that_is_not_compiled_in_is_named() {
    let home = TempDir::new().unwrap();
    let run = home.path().join("run");
    let way_out = ["not compiled in", "--features cuda"];
    fails(&mut train(&run, &PROGRAM.cuda), &way_out);
    assert!(!run.exists());
}

/// Attention between so many tokens has terabytes of scores.
#[test]
fn a_step_that_no_memory_holds_is_refused_with_words() {
    // Every image is made as large.
    let home = Home::with([2, 2]);
    let texts = [
        "there is no memory to train on images of 1024x1024 in 262145 tokens",
        "choose a smaller --image-size or --batch-size, or another --patch-size",
    ];
    fails(home.train("run", 1).args(["--image-size", "1024"]), &texts);
    assert!(!home.folder("run").exists());
}

#[test]
fn a_batch_of_more_images_than_there_are_is_all_of_them() {
    let home = Home::new();
    let run = |batch_size: &str| {
        let folder = home.folder(batch_size);
        let mut run = train(&folder, &["--epochs", "1", "--batch-size", batch_size]);
        result(run.arg("--data").arg(home.folder("")))
    };
    let all = run("60");
    for batch_size in ["4294967296", "18446744073709551615"] {
        assert_eq!(outcome(&run(batch_size)), outcome(&all), "{batch_size}");
    }
}
