//! `on_signal`, in a program of its own: this one once more.

#![cfg(unix)]

use lean_run_folder::{INTERRUPTED, on_signal};
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio, exit};
use std::sync::mpsc::channel;
use std::thread::sleep;
use std::time::Duration;

/// Set in the program that gets the signals.
const PROGRAM: &str = "GETS_SIGNALS";

/// The exit code of a program, started by another, that was sent these signals one after the other.
fn code(launcher: &[&str], signals: &[&str]) -> Option<i32> {
    let mut program = Command::new(launcher[0]);
    program
        .args(&launcher[1..])
        .arg(std::env::current_exe().unwrap());
    program.args(["--exact", "--nocapture", "signals_end_a_run"]);
    program
        .env(PROGRAM, "")
        .stdout(Stdio::piped())
        .stdin(Stdio::null());
    let mut running = program.spawn().unwrap();
    let mut said = BufReader::new(running.stdout.take().unwrap());
    let mut line = String::new();
    while !line.contains("ready") {
        line.clear();
        assert_ne!(said.read_line(&mut line).unwrap(), 0, "it has ended");
    }
    for signal in signals {
        let id = running.id().to_string();
        assert!(
            Command::new("kill")
                .args([*signal, id.as_str()])
                .status()
                .unwrap()
                .success()
        );
        sleep(Duration::from_millis(50));
    }
    said.read_to_end(&mut Vec::new()).unwrap();
    running.wait().unwrap().code()
}

#[test]
fn signals_end_a_run() {
    if std::env::var_os(PROGRAM).is_some() {
        let (stop, stopped) = channel();
        on_signal(move || stop.send(()).unwrap()).unwrap();
        println!("ready");
        // A batch that takes a while, after which the run ends; without a signal it ends otherwise.
        let was_asked = stopped.recv_timeout(Duration::from_secs(1)).is_ok();
        sleep(Duration::from_millis(500));
        exit(if was_asked { 3 } else { 4 });
    }
    // Whatever the test was started with.
    let heeds = ["env", "--default-signal=HUP"];
    assert_eq!(code(&heeds, &["-TERM"]), Some(3));
    assert_eq!(code(&heeds, &["-HUP", "-HUP", "-INT"]), Some(3));
    let at_once = Some(i32::from(INTERRUPTED));
    assert_eq!(code(&heeds, &["-TERM", "-INT"]), at_once, "a second one");
    // As `nohup program &`, whose terminal is closed.
    assert_eq!(code(&["nohup"], &["-HUP"]), Some(4));
}
