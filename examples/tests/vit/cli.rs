//! The program as a user runs it: its output and its files. What the folder of a run promises is
//! tested in `lean-run-folder`; here, that the program uses it.

use crate::PROGRAM;
use crate::program::{Home, fails, json, outcome, result, said, train, wait_for, write_images};
use serde_json::Value;
use std::collections::HashMap;
#[cfg(unix)]
use std::process::Command;
use std::process::Stdio;

#[path = "../../../tests/commands.rs"]
mod commands;

#[test]
fn commands_of_the_pages_are_understood() {
    commands::are_parsed(&[env!("CARGO_PKG_NAME")], PROGRAM.path);
}

#[test]
fn modes_and_checkpointing_train_the_same_weights() {
    let home = Home::new();
    let run = |mode: &str, checkpointing: &str| {
        let options = format!("--mode {mode} --checkpointing {checkpointing}");
        result(&mut home.train(&format!("{mode}-{checkpointing}"), 1, &options))
    };
    let kept = HashMap::from(["plain", "release"].map(|mode| (mode, run(mode, "none"))));
    assert_eq!(outcome(&kept["release"]), outcome(&kept["plain"]));
    let peak = |result: &Value| result["peak_bytes"].as_u64().unwrap();
    let small = ["plain", "release"].map(|mode| {
        let options = format!("--optimizer adamw-8bit --mode {mode}");
        result(&mut home.train(&format!("8bit-{mode}"), 1, &options))
    });
    assert_eq!(outcome(&small[0]), outcome(&small[1]));
    for (mode, checkpointing, is_lower) in PROGRAM.checkpointing {
        let other = run(mode, checkpointing);
        let context = format!("{mode} {checkpointing}: {other}");
        assert_eq!(outcome(&other), outcome(&kept["plain"]), "{context}");
        if *is_lower {
            assert!(peak(&other) < peak(&kept[mode]), "{context}");
        }
    }
}

/// Each mode is resumed by the other.
#[test]
fn resuming_gives_the_weights_of_the_uninterrupted_run() {
    let home = Home::new();
    let whole = result(&mut home.train("whole", 2, ""));
    for (after, before, resumes) in [(0, "release", "plain"), (1, "plain", "release")] {
        result(&mut home.train(before, 2, &format!("--mode {before}")));
        home.forget(before, after);
        let mut resumed = home.resume(before, &format!("--mode {resumes}"));
        assert_eq!(outcome(&result(&mut resumed)), outcome(&whole), "{before}");
        assert_eq!(home.settings(before)["mode"], resumes);
    }
    // As if killed after the last epoch, before the results: nothing is left to train.
    home.forget("whole", 2);
    let resumed = result(&mut home.resume("whole", ""));
    assert_eq!(outcome(&resumed), outcome(&whole));
    // A run that has ended stays as it is.
    let before = ["config.json", "results.json"].map(|file| home.folder("whole").join(file));
    let before = before.map(|file| (json(&file), file));
    let output = home.resume("whole", "--mode plain").output().unwrap();
    let is_said = said(&output).contains("holds a finished run: nothing is left to train");
    assert!(output.status.success() && is_said, "{}", said(&output));
    for (value, file) in before {
        assert_eq!(json(&file), value);
    }
}

/// A limit on the size of files stands for a full disk.
#[cfg(unix)]
#[test]
fn a_checkpoint_that_cannot_be_written_has_its_own_exit_code() {
    let home = Home::new();
    let run = home.train("run", 1, "");
    let mut limited = Command::new("sh");
    // The signal would end the program.
    limited.args(["-c", "trap '' XFSZ; ulimit -f 64; exec \"$0\" \"$@\""]);
    limited.arg(run.get_program()).args(run.get_args());
    let output = limited.output().unwrap();
    assert!(
        said(&output).contains("File too large"),
        "{}",
        said(&output)
    );
    assert_eq!(output.status.code(), Some(74), "{}", said(&output));
    result(&mut home.resume("run", ""));
}

/// The second program is refused while the first one trains, which is then killed.
#[test]
fn a_killed_run_gives_the_weights_of_the_uninterrupted_one() {
    let home = Home::new();
    let whole = result(&mut home.train("whole", 8, ""));
    let mut run = home.train("run", 8, "");
    run.stdout(Stdio::null()).stderr(Stdio::null());
    let mut running = run.spawn().unwrap();
    wait_for(&home.folder("run/checkpoint").join(PROGRAM.saved));
    let holder = format!("another program (process {}", running.id());
    fails(&mut home.train("run", 1, "--overwrite"), &holder);
    running.kill().unwrap();
    assert!(!running.wait().unwrap().success(), "it had ended before");
    let resumed = result(&mut home.resume("run", ""));
    assert_eq!(outcome(&resumed), outcome(&whole));
}

#[test]
fn a_run_is_resumed_only_as_it_was() {
    let home = Home::new();
    let whole = result(&mut home.train("run", 2, ""));
    home.forget("run", 1);
    let text = "the run to resume has --epochs 2, not 9";
    fails(&mut home.resume("run", "--epochs 9"), text);
    // What the images are is compared, not where.
    let resume = |name: &str, seed| {
        write_images(&home.folder(name), seed, 40);
        let mut command = home.resume("run", "--data");
        command.arg(home.folder(name));
        command
    };
    let text = "are not those that the run began with";
    fails(&mut resume("other", 2), text);
    let resumed = result(&mut resume("elsewhere", 1));
    assert_eq!(outcome(&resumed), outcome(&whole));
}

#[test]
fn bad_options_get_one_line_and_leave_nothing() {
    let home = Home::new();
    let run = home.folder("run");
    let of_both = [
        ("--backend tpu", "tpu"),
        ("--batch-size 0", "--batch-size"),
        ("--lr NaN", "it must be above 0"),
        ("--dropout 1", "it must be at least 0 and below 1"),
        ("--data /nowhere/at/all", "/nowhere/at/all"),
        ("--image-size 9", "patches"),
        ("--memory-timeline /nowhere/a.json", "cannot write /nowhere"),
        ("--optimizer muon", "muon"),
        ("--resume", "nothing to resume"),
    ];
    for (options, text) in of_both.iter().chain(PROGRAM.refused) {
        println!("{options}");
        fails(&mut train(&run, options), text);
        assert!(!run.exists(), "nothing should have been written");
    }
    if cfg!(not(feature = "cuda")) {
        let way_out = "not compiled in: build with `--features cuda`";
        fails(&mut train(&run, "--backend cuda"), way_out);
    }
    assert!(!run.exists());
}
