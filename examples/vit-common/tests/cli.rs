//! The program as a user runs it: its output, its files and its exit codes. What the folder of a run
//! promises is tested in `lean-run-folder`; here, that the program uses it.

use crate::PROGRAM;
use crate::program::{
    Home, IMAGES, fails, json, names, outcome, result, said, train, wait_for, write_images,
};
use serde_json::Value;
use std::collections::HashMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use tempfile::TempDir;

fn peak(result: &Value) -> u64 {
    result["peak_bytes"].as_u64().unwrap()
}

/// Without a terminal: an epoch is a line on stderr.
#[test]
fn a_run_says_how_it_went_and_saves_it() {
    let home = Home::new();
    let output = home.train("run", 2, "").output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    let stderr = String::from_utf8(output.stderr).unwrap();
    let epochs = stderr.lines().filter(|line| line.starts_with("epoch"));
    let epochs: Vec<_> = epochs.collect();
    assert_eq!(epochs.len(), 2, "{stderr}");
    for (line, number) in epochs.iter().zip(["1/2", "2/2"]) {
        for part in [number, "loss ", "validation loss", "accuracy", "peak"] {
            assert!(line.contains(part), "{line}");
        }
    }
    let result: Value = serde_json::from_slice(&output.stdout).unwrap();
    let mut keys: Vec<_> = result.as_object().unwrap().keys().collect();
    keys.sort();
    let expected =
        "epochs peak_bytes peak_reserved_bytes train_loss validation_accuracy weights_digest";
    assert!(keys.into_iter().eq(expected.split(' ')), "{result}");
    let loss = format!("  loss {:.4}  ", result["train_loss"].as_f64().unwrap());
    assert!(epochs[1].contains(&loss), "{}", epochs[1]);
    assert!(peak(&result) > 0 && result["peak_reserved_bytes"].is_null());
    assert_eq!(json(&home.folder("run/results.json")), result);
}

#[test]
fn modes_and_checkpointing_train_the_same_weights() {
    let home = Home::new();
    let run = |mode: &str, checkpointing: &str| {
        let options = format!("--mode {mode} --checkpointing {checkpointing} --patch-size 2");
        result(&mut home.train(&format!("{mode}-{checkpointing}"), 1, &options))
    };
    let kept = HashMap::from(["plain", "release"].map(|mode| (mode, run(mode, "none"))));
    assert_eq!(outcome(&kept["release"]), outcome(&kept["plain"]));
    for (mode, checkpointing, is_lower) in PROGRAM.checkpointing {
        let other = run(mode, checkpointing);
        let context = format!("{mode} {checkpointing}: {other}");
        assert_eq!(outcome(&other), outcome(&kept["plain"]), "{context}");
        if *is_lower {
            assert!(peak(&other) < peak(&kept[mode]), "{context}");
        }
    }
}

#[test]
fn every_optimizer_trains_alike_in_both_modes() {
    let home = Home::new();
    let digest = |optimizer: &str| {
        let [plain, release] = ["plain", "release"].map(|mode| {
            let options = format!("--optimizer {optimizer} --mode {mode}");
            result(&mut home.train(&format!("{optimizer}-{mode}"), 1, &options))
        });
        assert_eq!(outcome(&plain), outcome(&release), "{optimizer}");
        release["weights_digest"].clone()
    };
    let optimizers = ["adamw", "adamw-one-pass", "adamw-8bit", "adafactor", "sgd"];
    let [two_passes, one_pass, others @ ..] = optimizers.map(digest);
    // In one pass over memory it is the same optimizer.
    assert_eq!(two_passes, one_pass);
    assert!(!others.contains(&one_pass));
}

/// Each mode is resumed by the other.
#[test]
fn resuming_gives_the_weights_of_the_uninterrupted_run() {
    let home = Home::new();
    let whole = result(&mut home.train("whole", 3, ""));
    let kept = names(&home.folder("whole/checkpoint"));
    assert_eq!(kept.len(), 2 * 2 * PROGRAM.parts.len(), "{kept:?}");
    for (stop, before, after, continues) in [
        (3, "release", "plain", "begins anew"),
        (7, "plain", "release", "continues after epoch 1"),
        (11, "release", "plain", "continues after epoch 2"),
    ] {
        let name = format!("stopped at {stop}");
        let said = home.stop(&name, 3, stop, &format!("--mode {before}"));
        // The folder is as a shell takes it.
        let command = format!(
            "`{} train --resume --artifact-dir '{}'` {continues}",
            PROGRAM.name,
            home.folder(&name).display()
        );
        assert!(said.contains(&command), "{said:?} lacks {command:?}");
        let resumed = result(&mut home.resume(&name, &format!("--mode {after}")));
        assert_eq!(outcome(&resumed), outcome(&whole), "{name}");
        assert_eq!(names(&home.folder(&name).join("checkpoint")), kept);
        assert_eq!(home.settings(&name)["mode"], after);
    }
    // As if killed after the last epoch, before the results: nothing is left to train.
    fs::remove_file(home.folder("whole/results.json")).unwrap();
    let resumed = result(&mut home.resume("whole", ""));
    assert_eq!(outcome(&resumed), outcome(&whole));
}

/// The second program is refused while the first one trains, which is then killed.
#[test]
fn a_killed_run_gives_the_weights_of_the_uninterrupted_one() {
    let home = Home::new();
    let whole = result(&mut home.train("whole", 8, ""));
    for (epoch, mut run) in [(1, home.train("run", 8, "")), (3, home.resume("run", ""))] {
        run.stdout(Stdio::null()).stderr(Stdio::null());
        let mut running = run.spawn().unwrap();
        wait_for(&home.folder("run").join(PROGRAM.saved(epoch)));
        let holder = format!("another program (process {}", running.id());
        for mut second in [home.train("run", 1, "--overwrite"), home.resume("run", "")] {
            assert_eq!(fails(&mut second, &[&holder]), 1);
        }
        running.kill().unwrap();
        assert!(!running.wait().unwrap().success(), "it had ended before");
    }
    let held = ["holds a run that was interrupted", "resume it"];
    fails(&mut home.train("run", 8, ""), &held);
    let resumed = result(&mut home.resume("run", ""));
    assert_eq!(outcome(&resumed), outcome(&whole));
    fails(&mut home.train("run", 8, ""), &["holds a finished run"]);
}

#[test]
fn a_run_is_resumed_only_as_it_was() {
    let home = Home::new();
    let whole = result(&mut home.train("whole", 2, ""));
    home.stop("run", 2, 5, "");
    for (options, text) in [
        ("--epochs 9", "has --epochs 2, not 9"),
        ("--optimizer sgd", "the run to resume has --optimizer adam"),
    ] {
        fails(&mut home.resume("run", options), &[text]);
    }
    // A checkpoint of another run.
    home.stop("seed", 2, 5, "--seed 7");
    let [from, to] = ["run", "seed"].map(|run| home.folder(run).join("config.json"));
    fs::copy(from, to).unwrap();
    let text = "was saved by a run with other settings";
    fails(&mut home.resume("seed", ""), &[text]);
    // What the images are is compared, not where.
    let resume = |name: &str, seed| {
        write_images(&home.folder(name), seed, IMAGES);
        let mut command = home.resume("run", "--data");
        command.arg(home.folder(name));
        command
    };
    let text = "are not those that the run began with";
    fails(&mut resume("other", 2), &[text]);
    let resumed = result(&mut resume("elsewhere", 1));
    assert_eq!(outcome(&resumed), outcome(&whole));
    // What it went on with is what it is resumed with next.
    let elsewhere = home.folder("elsewhere");
    assert_eq!(home.settings("run")["data"], elsewhere.to_str().unwrap());
}

/// In a shell that lets no file get larger than so many blocks of 512 bytes, as on a full disk.
#[cfg(unix)]
#[test]
fn what_cannot_be_written_is_named_and_leaves_the_last_checkpoint() {
    let home = Home::new();
    let in_blocks = |blocks: usize, command: &Command| {
        let script = format!("trap '' XFSZ; ulimit -f {blocks}; exec \"$0\" \"$@\"");
        let mut shell = Command::new("sh");
        shell.args(["-c", &script]).arg(command.get_program());
        shell.args(command.get_args());
        shell
    };
    // Not even the lock.
    let mut cannot = in_blocks(0, &home.train("other", 2, ""));
    assert_eq!(fails(&mut cannot, &["cannot ", "File too large"]), 74);
    // The weights, and not the states of the optimizer.
    home.stop("run", 2, 5, "");
    let checkpoints = home.folder("run/checkpoint");
    let before = names(&checkpoints);
    let output = in_blocks(2000, &home.resume("run", "")).output().unwrap();
    let said = said(&output);
    assert_eq!(output.status.code(), Some(74), "{said}");
    let last = said.lines().last().unwrap();
    assert!(last.starts_with("error: cannot "), "{last}");
    assert!(last.contains("File too large"), "{last}");
    let after = names(&checkpoints);
    let are_kept = before.iter().all(|file| after.contains(file));
    assert!(before.len() == 6 && are_kept, "{after:?}");
    assert_eq!(result(&mut home.resume("run", ""))["epochs"], 2);
}

/// As `2>&1 | head -1`, or in a terminal that is closed.
#[test]
fn a_run_goes_on_when_nobody_reads() {
    let home = Home::new();
    let whole = result(&mut home.train("whole", 3, ""));
    let mut run = home.train("run", 3, "");
    run.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut run = run.spawn().unwrap();
    drop(run.stdout.take());
    let mut first = String::new();
    let mut stderr = BufReader::new(run.stderr.take().unwrap());
    stderr.read_line(&mut first).unwrap();
    assert!(first.starts_with("epoch   1/3"), "{first}");
    drop(stderr);
    run.wait().unwrap();
    let saved = json(&home.folder("run/results.json"));
    assert_eq!(outcome(&saved), outcome(&whole));
}

#[test]
fn a_loss_that_is_not_finite_ends_the_run() {
    let home = Home::new();
    let texts = ["the loss is NaN in epoch ", ": try a smaller --lr"];
    let code = fails(&mut home.train("run", 20, PROGRAM.diverging), &texts);
    assert_eq!(code, 1);
    assert!(!home.folder("run/results.json").exists());
}

#[test]
fn bad_options_get_one_line_and_leave_nothing() {
    let home = TempDir::new().unwrap();
    let run = home.path().join("run");
    let of_both = [
        ("--batch-size 0", "--batch-size"),
        ("--checkpointing nonsense", "nonsense"),
        ("--data /nowhere/at/all", "/nowhere/at/all"),
        ("--dropout 1", "--dropout"),
        ("--epochs 4294967296", "--epochs"),
        ("--image-size 9", "patches"),
        ("--lr 0", "--lr"),
        ("--lr NaN", "--lr"),
        ("--optimizer muon", "muon"),
        ("--optimizer sgd --weight-decay 0.1", "not for sgd"),
        ("--patch-size 8193", "--patch-size"),
        ("--resume --overwrite", "cannot be used with"),
        ("--resume", "nothing to resume"),
    ];
    for (options, text) in of_both.iter().chain(PROGRAM.refused) {
        println!("{options}");
        fails(&mut train(&run, options), &[text]);
        assert!(!run.exists(), "nothing should have been written");
    }
    if cfg!(not(feature = "cuda")) {
        let way_out = ["not compiled in", "--features cuda"];
        fails(&mut train(&run, PROGRAM.cuda), &way_out);
    }
    assert!(!run.exists());
}
