//! Ctrl-C and hangups.

#![cfg(unix)]

use crate::program::{Home, outcome, result, said, train, wait_for};
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::thread::sleep;
use std::time::Duration;

/// The exit code of a run that Ctrl-C has stopped.
const STOPPED: Option<i32> = Some(130);

/// Signals a run, one signal after the other, once there is a file; what it prints.
fn signalled(run: &mut Command, file: &Path, signals: &[&str]) -> Output {
    run.stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = run.spawn().unwrap();
    wait_for(file);
    for name in signals {
        let mut kill = Command::new("kill");
        kill.arg(name).arg(child.id().to_string());
        assert!(kill.status().unwrap().success());
        sleep(Duration::from_millis(50));
    }
    child.wait_with_output().unwrap()
}

/// The same run, started by another program.
fn by(launcher: &[&str], run: &Command) -> Command {
    let mut command = Command::new(launcher[0]);
    command.args(&launcher[1..]);
    command.arg(run.get_program()).args(run.get_args());
    command
}

/// Whatever the test was started with.
const HEEDS_HANGUPS: [&str; 2] = ["env", "--default-signal=HUP"];

/// In a batch that takes a while.
#[test]
fn only_a_second_ctrl_c_does_not_wait_for_the_batch() {
    let home = Home::new();
    for (name, signals, waits) in [
        ("hangups", &["-HUP", "-HUP", "-TERM"][..], true),
        ("twice", &["-TERM", "-INT"], false),
    ] {
        let folder = home.folder(name);
        let slow = "--batch-size 128 --epochs 1";
        let run = train(&folder, slow);
        let log = folder.join("metrics/train/epoch-1/Loss.log");
        let output = signalled(&mut by(&HEEDS_HANGUPS, &run), &log, signals);
        let said = said(&output);
        assert_eq!(output.status.code(), STOPPED, "{name}: {said}");
        let hint = format!(
            "stopped before the first checkpoint; `vit-0-21 train --resume --artifact-dir {}`",
            folder.display()
        );
        assert_eq!(said.contains(&hint), waits, "{name}: {said}");
    }
}

/// As `nohup vit-0-21 train &`, whose terminal is closed. The run that is stopped is resumed.
#[test]
fn a_run_that_ignores_a_hangup_outlives_its_terminal() {
    let home = Home::new();
    let whole = result(&mut home.train("whole", 5, ""));
    for (launcher, outlives) in [(&["nohup"][..], true), (&HEEDS_HANGUPS, false)] {
        let name = launcher[0];
        let begun = home.folder(name).join("metrics/train/epoch-2");
        let output = signalled(
            &mut by(launcher, &home.train(name, 5, "")),
            &begun,
            &["-HUP"],
        );
        if outlives {
            let result: Value = serde_json::from_slice(&output.stdout).unwrap();
            assert_eq!(outcome(&result), outcome(&whole));
        } else {
            let said = said(&output);
            assert_eq!(output.status.code(), STOPPED, "{said}");
            assert!(said.contains("continues after epoch "), "{said}");
            assert_eq!(
                outcome(&result(&mut home.resume(name, ""))),
                outcome(&whole)
            );
        }
    }
}
