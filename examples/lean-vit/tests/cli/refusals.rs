//! Input that the program refuses in one line, before anything is written.

use crate::program::{fails, lean_vit};
use std::fs;
use tempfile::TempDir;

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
