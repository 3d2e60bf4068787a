//! Ctrl-C, hangups and the terminal.

#![cfg(unix)]

use crate::PROGRAM;
use crate::program::{Home, outcome, result, said, signal, wait_until};
use serde_json::Value;
use std::fs;
use std::io::Write;
use std::process::{Command, Output, Stdio};
use std::thread::sleep;
use std::time::Duration;

/// The exit code of a run that Ctrl-C has stopped.
const STOPPED: Option<i32> = Some(130);

/// Signals a run, one signal after the other, once `begun` returns true; what it prints.
fn signalled(run: &mut Command, begun: impl Fn() -> bool, signals: &[&str]) -> Output {
    run.stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = run.spawn().unwrap();
    wait_until("it does not begin", begun);
    for name in signals {
        signal(&child, name);
        sleep(Duration::from_millis(50));
    }
    child.wait_with_output().unwrap()
}

/// The same run, started by another program.
fn by(launcher: &[&str], run: &Command) -> Command {
    let mut command = Command::new(launcher[0]);
    command
        .args(&launcher[1..])
        .arg(run.get_program())
        .args(run.get_args());
    command
}

/// Whatever the test was started with.
const HEEDS_HANGUPS: [&str; 2] = ["env", "--default-signal=HUP"];

#[test]
fn ctrl_c_names_the_checkpoint_to_resume_from() {
    // The validation takes nearly all the time, so Ctrl-C interrupts it.
    let home = Home::with([8, 2000]);
    let folder = home.folder("run");
    let saved = folder.join(PROGRAM.saved(1));
    let mut run = home.train("run", 100_000);
    let begun = || {
        sleep(Duration::from_millis(50));
        saved.exists()
    };
    let output = signalled(run.args(["--mode", "plain"]), begun, &["-INT"]);
    assert_eq!(output.status.code(), STOPPED, "{}", said(&output));
    let stderr = String::from_utf8(output.stderr).unwrap();
    let said = stderr.lines().last().unwrap();
    let epoch = said.rsplit(' ').next().unwrap();
    assert!(said.contains("--resume"), "{said}");
    assert!(
        said.contains("continues from the checkpoint of epoch"),
        "{said}"
    );
    assert!(
        folder
            .join(format!("checkpoint/model-{epoch}.mpk"))
            .exists()
    );

    // A checkpoint is kept only if the validation of its epoch is complete.
    let losses = folder.join(format!("valid/epoch-{epoch}/Loss.log"));
    assert_eq!(fs::read_to_string(losses).unwrap().lines().count(), 250);
}

/// In a batch that takes a while, and for a run that may be stopping already.
#[test]
fn only_a_second_ctrl_c_does_not_wait_for_the_batch() {
    let home = Home::new();
    let new = ["--epochs", "1"];
    for (name, more, signals, code, waits) in [
        (
            "stops",
            ["--stop-after", "1"],
            &["-TERM"][..],
            Some(0),
            true,
        ),
        ("hangups", new, &["-HUP", "-HUP", "-TERM"], STOPPED, true),
        ("twice", new, &["-TERM", "-INT"], STOPPED, false),
    ] {
        let folder = home.folder(name);
        let slow = [
            "--preset",
            "small",
            "--patch-size",
            "2",
            "--batch-size",
            "64",
        ];
        let run = crate::program::train(&folder, &[&slow[..], &more].concat());
        let log = folder.join("experiment.log");
        let begun = || fs::read_to_string(&log).is_ok_and(|log| log.contains("Iteration 1"));
        let output = signalled(&mut by(&HEEDS_HANGUPS, &run), begun, signals);
        let said = said(&output);
        assert_eq!(output.status.code(), code, "{name}: {said}");
        let hint = format!(
            "stopped before the first checkpoint; `vit-0-21 train --resume --artifact-dir {}`",
            folder.display()
        );
        assert_eq!(said.contains(&hint), waits, "{name}: {said}");
    }
}

/// As `nohup vit-0-21 train &`, whose terminal is closed.
#[test]
fn a_run_that_ignores_a_hangup_outlives_its_terminal() {
    let home = Home::new();
    let whole = result(&mut home.train("whole", 12));
    for (launcher, outlives) in [(&["nohup"][..], true), (&HEEDS_HANGUPS, false)] {
        let name = launcher[0];
        let begun = || home.folder(name).join("train/epoch-2").exists();
        let output = signalled(&mut by(launcher, &home.train(name, 12)), begun, &["-HUP"]);
        if outlives {
            let result: Value = serde_json::from_slice(&output.stdout).unwrap();
            assert_eq!(outcome(&result), outcome(&whole));
        } else {
            assert_eq!(output.status.code(), STOPPED, "{}", said(&output));
            assert!(output.stdout.is_empty());
        }
    }
}

/// A command in a terminal of its own.
fn in_a_terminal(command: &str) -> Command {
    let mut script = Command::new("script");
    script.args(["--quiet", "--return", "--command", command, "/dev/null"]);
    script.stdin(Stdio::piped()).stdout(Stdio::piped());
    script
}

/// What a terminal UI begins and ends with.
const ENTERS: &str = "\x1b[?1049h";
const LEAVES: &str = "\x1b[?1049l";

/// Burn's terminal UI reads Ctrl-C as a key and does nothing.
#[test]
fn ctrl_c_stops_a_run_in_the_terminal_ui() {
    let home = Home::new();
    let folder = home.folder("run");
    let run = format!(
        "{} train --epochs 1000000 --artifact-dir {}",
        PROGRAM.path,
        folder.display()
    );
    for keys in [&b"\x03"[..], b"\x03\x03"] {
        let mut terminal = in_a_terminal(&run).spawn().unwrap();
        wait_until("it does not train", || {
            folder.join("train/epoch-2").exists()
        });
        let mut keyboard = terminal.stdin.take().unwrap();
        keyboard.write_all(keys).unwrap();
        keyboard.flush().unwrap();
        let output = terminal.wait_with_output().unwrap();
        drop(keyboard);
        assert_eq!(output.status.code(), STOPPED);
        let shown = String::from_utf8_lossy(&output.stdout);
        // It was the UI, and the terminal is left as it was.
        assert!(shown.contains(ENTERS) && shown.contains(LEAVES), "{shown}");
        if keys.len() == 1 {
            let after = shown.rsplit(LEAVES).next().unwrap();
            assert!(
                after.contains("continues from the checkpoint of epoch"),
                "{after}"
            );
        }
        fs::remove_dir_all(&folder).unwrap();
    }
}

/// As `vit-0-21 train &` in a shell: the terminal is that of the shell, and would stop a program that
/// takes it.
#[test]
fn a_run_in_the_background_leaves_the_terminal_alone() {
    let home = Home::new();
    let (data, folder) = (home.folder(""), home.folder("run"));
    let run = format!(
        "{} train --epochs 1 --batch-size 8 --data {} --artifact-dir {}",
        PROGRAM.path,
        data.display(),
        folder.display()
    );
    // Jobs of a shell that has job control have groups of their own.
    let shell = format!("timeout --foreground 60 bash -c 'set -m; {run} & wait'");
    let output = in_a_terminal(&shell)
        .spawn()
        .unwrap()
        .wait_with_output()
        .unwrap();
    let shown = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "it is stopped: {shown}");
    assert!(shown.contains("epoch   1/1"), "{shown}");
    assert!(!shown.contains(ENTERS), "{shown}");
    assert!(folder.join("results.json").exists());
}
