//! Input that the program refuses in one line, before anything is written.

use crate::program::{Home, fails, lean_vit, outcome, result};
use std::fs;
use tempfile::TempDir;
use vit_common::lock::Lock;

#[test]
fn bad_input_gets_one_line_and_leaves_nothing() {
    let home = TempDir::new().unwrap();
    let run = home.path().join("run");
    let cases: [(&[&str], &str); 12] = [
        (&["--weight-decay", "1"], "--weight-decay must be"),
        (
            &["--optimizer", "lion", "--weight-decay", "0.1"],
            "not for lion",
        ),
        (&["--data", "/nowhere/at/all"], "/nowhere/at/all"),
        (&["--batch-size", "0"], "batch-size"),
        (&["--lr", "0"], "--lr"),
        (&["--learning-rate", "NaN"], "--lr"),
        (&["--dropout", "1"], "--dropout"),
        (&["--optimizer", "muon"], "muon"),
        (&["--image-size", "9"], "patches"),
        (&["--checkpointing", "nonsense"], "nonsense"),
        (&["--device", "tpu"], "tpu"),
        (&["--resume", "--overwrite"], "cannot be used with"),
    ];
    for (args, text) in cases {
        let mut command = lean_vit();
        command.args(["train", "--artifact-dir"]).arg(&run);
        fails(command.args(args), &[text]);
        assert!(!run.exists(), "nothing should have been written: {args:?}");
    }
}

#[test]
fn huge_numbers_are_refused_with_words() {
    let home = TempDir::new().unwrap();
    let run = home.path().join("run");
    let huge = usize::MAX.to_string();
    let cases: [(&[&str], &str); 6] = [
        (&["--epochs", &huge], "are more than can be counted"),
        (&["--epochs", "99999999999999999999"], "--epochs"),
        (
            &["--image-size", "4294967300"],
            "--image-size must be at most",
        ),
        (&["--patch-size", &huge], "--patch-size must be at most"),
        (&["--batch-size", "99999999999999999999"], "--batch-size"),
        (&["--seed", "99999999999999999999"], "--seed"),
    ];
    for (args, text) in cases {
        let mut command = lean_vit();
        command.args(["train", "--artifact-dir"]).arg(&run);
        fails(command.args(args), &[text]);
        assert!(!run.exists(), "nothing should have been written: {args:?}");
    }
}

/// Attention between so many tokens has terabytes of scores.
#[test]
fn a_step_that_no_memory_holds_is_refused_with_words() {
    let home = Home::new();
    let mut command = home.train("run", 1);
    let texts = [
        "there is no memory to train on images of 1024x1024 in 262145 tokens",
        "choose a smaller --image-size or --batch-size, or another --patch-size",
    ];
    fails(command.args(["--image-size", "1024"]), &texts);
    assert!(!home.folder("run").exists());
}

/// A batch is at most all images, whatever is asked for.
#[test]
fn a_batch_of_more_images_than_there_are_is_all_of_them() {
    let home = Home::new();
    let batch = |name: &str, size: &str| {
        let mut command = lean_vit();
        command.args(["train", "--json", "--epochs", "1", "--data"]);
        command.arg(home.folder("")).arg("--artifact-dir");
        command.arg(home.folder(name)).args(["--batch-size", size]);
        result(&mut command)
    };
    let all = batch("all", "60");
    for (name, size) in [
        ("32 bits", "4294967296"),
        ("64 bits", "18446744073709551615"),
    ] {
        assert_eq!(outcome(&batch(name, size)), outcome(&all), "{name}");
    }
}

/// Exit code 74, whatever it is that keeps a file from being written.
#[test]
fn what_cannot_be_written_has_its_own_exit_code() {
    let home = Home::new();
    let train = |name: &str, more: &[&str], texts: &[&str]| {
        let mut command = home.train(name, 1);
        fails(command.args(more), texts);
        command.assert().code(74);
    };
    // A file in the place of a folder.
    fs::write(home.folder("file"), "").unwrap();
    train("file/run", &[], &["cannot write to ", "Not a directory"]);
    // A folder in the place of the lock, for a new run and for one that is there.
    fs::create_dir_all(home.folder("locked/lock")).unwrap();
    train("locked", &[], &["cannot lock ", "Is a directory"]);
    home.train("run", 1).assert().success();
    fs::remove_file(home.folder("run/lock")).unwrap();
    fs::create_dir(home.folder("run/lock")).unwrap();
    for how in ["--resume", "--overwrite"] {
        train("run", &[how], &["cannot lock ", "Is a directory"]);
    }
}

/// What another program has is no file that cannot be written.
#[test]
fn a_folder_in_use_is_an_ordinary_error() {
    let home = Home::new();
    fs::create_dir(home.folder("run")).unwrap();
    let _held = Lock::acquire(&home.folder("run")).unwrap();
    home.train("run", 1).assert().code(1);
}

#[cfg(not(feature = "cuda"))]
#[test]
fn a_device_that_is_not_compiled_in_is_named() {
    let home = TempDir::new().unwrap();
    let run = home.path().join("run");
    let mut command = lean_vit();
    command.args(["train", "--artifact-dir"]).arg(&run);
    let way_out = ["not compiled in", "--features cuda"];
    fails(command.args(["--device", "cuda"]), &way_out);
    assert!(!run.exists());
}

#[test]
fn the_folder_of_another_program_stays_as_it_is() {
    let home = TempDir::new().unwrap();
    let settings = home.path().join("config.json");
    fs::write(&settings, "{\"mine\": true}").unwrap();
    let mut command = lean_vit();
    command.args(["train", "--overwrite", "--artifact-dir"]);
    let way_out = ["of another program", "--artifact-dir"];
    fails(command.arg(home.path()), &way_out);
    assert_eq!(fs::read(&settings).unwrap(), b"{\"mine\": true}");
    assert_eq!(fs::read_dir(home.path()).unwrap().count(), 1);
}
