//! The program as a user runs it: its measurements, its files, and what it leaves out.

mod burn;
#[path = "../../../tests/commands.rs"]
mod commands;
mod python;

use assert_cmd::Command;
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::{self, Stdio};
use tempfile::TempDir;

fn benchmarks() -> Command {
    Command::cargo_bin("benchmarks").expect("the binary is built with the tests")
}

/// A tiny suite on the CPU, with these options.
fn tiny(folder: &Path, options: &str) -> Command {
    let mut command = benchmarks();
    command
        .args("--preset tiny --backend flex --steps 2 --warm-up 2".split(' '))
        .args(options.split_whitespace())
        .arg("--output")
        .arg(folder)
        // Every thread that computes allocates and keeps a workspace, in a step that depends on the
        // scheduler; it is a large part of the memory of a model this small.
        .env("RAYON_NUM_THREADS", "1");
    command
}

/// What a suite prints, which is also in its file, and its results.
struct Outcome {
    table: String,
    json: Value,
}

impl Outcome {
    /// Of a suite that ends with this exit code.
    fn of(command: &mut Command, folder: &Path, code: i32) -> Self {
        let output = command.assert().code(code).get_output().clone();
        let table = String::from_utf8(output.stdout).unwrap();
        assert_eq!(table, fs::read_to_string(folder.join("table.md")).unwrap());
        let json = fs::read(folder.join("results.json")).unwrap();
        let json = serde_json::from_slice(&json).unwrap();
        Self { table, json }
    }

    fn runs(&self) -> &Vec<Value> {
        self.json["runs"].as_array().unwrap()
    }

    #[track_caller]
    fn mentions(&self, text: &str) {
        assert!(self.table.contains(text), "{text} in {}", self.table);
    }
}

/// A tiny suite of Burn with these options, in which nothing fails.
fn measured(options: &str) -> Outcome {
    let home = TempDir::new().unwrap();
    let mut command = tiny(home.path(), &format!("--no-pytorch {options}"));
    Outcome::of(&mut command, home.path(), 0)
}

/// Asserts that the program fails with one line that mentions `text`.
fn fails(command: &mut Command, text: &str) {
    let output = command.assert().failure().get_output().clone();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.starts_with("error: "), "{stderr:?}");
    assert_eq!(stderr.lines().count(), 1, "{stderr:?}");
    assert!(stderr.contains(text), "{stderr:?} should mention {text:?}");
    assert!(output.stdout.is_empty());
}

#[test]
fn the_results_say_how_they_were_made() {
    let outcome = measured(
        "--burn 0.21 --part vit --repeat 3 --mode plain,release --checkpointing none --batch-size 1",
    );
    let json = &outcome.json;
    assert_eq!(json["schema"], 2);
    assert_eq!(json["command"][0], "benchmarks");
    for key in ["burn", "burn_0_22", "cubecl", "compiler", "profile"] {
        assert!(json["versions"][key].is_string(), "{key}");
    }
    assert_ne!(json["machine"]["threads"], "0");
    assert_eq!(json["settings"]["repeat"], 3);
    outcome.mentions("release over plain (median of 3): ");
}

#[test]
fn bad_input_gets_one_line() {
    let home = TempDir::new().unwrap();
    for (options, text) in [
        ("--lr 0", "--lr"),
        ("--lr NaN", "--lr"),
        ("--steps 0", "--steps"),
        ("--within 0", "--within"),
        ("--batch-size 0", "batch-size"),
        ("--backend nonsense", "nonsense"),
        ("--burn 0.20", "0.20"),
        ("--checkpointing nonsense", "nonsense"),
        ("--loss-chunk nonsense", "nonsense"),
        ("--loss-chunk 0", "--loss-chunk"),
        ("--vocabulary 0", "--vocabulary"),
        ("--context 64", "--part gpt"),
        ("--output /proc/no/folder", "/proc/no/folder"),
        // Of the system, where not even root may write.
        ("--output /sys/kernel", "cannot lock /sys/kernel"),
    ] {
        let mut command = tiny(home.path(), "--burn 0.21 --no-pytorch --part vit");
        fails(command.args(options.split(' ')), text);
    }
    fails(benchmarks().args(["measure", "{}"]), "not a run");
    if cfg!(not(feature = "wgpu")) {
        let mut command = tiny(home.path(), "--backend wgpu");
        fails(&mut command, "-p benchmarks --features wgpu");
    }
}

#[test]
fn help_lists_what_is_measured() {
    let output = benchmarks().arg("--help").assert().success();
    let text = String::from_utf8(output.get_output().stdout.clone()).unwrap();
    for word in [
        "- encoder:",
        "- unarmed:",
        "- ideal:",
        "- automatic:",
        "- flat:",
        "- adamw-8bit:",
        "- hook-checkpoint:",
        "--loss-chunk",
        "MALLOC_MMAP_THRESHOLD_",
        "exit code",
    ] {
        assert!(text.contains(word), "{word} in {text}");
    }
    assert!(!text.contains("measure "), "{text}");
}

/// Progress goes to stderr, which somebody may have stopped reading.
#[test]
fn nobody_needs_to_read_what_a_suite_says() {
    let folder = TempDir::new().unwrap();
    let options = "--part vit --preset tiny --backend flex --burn 0.21 --mode plain --checkpointing none \
                   --batch-size 1 --steps 1 --warm-up 1 --no-pytorch --output";
    let mut suite = process::Command::new(env!("CARGO_BIN_EXE_benchmarks"))
        .args(options.split(' '))
        .arg(folder.path())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(suite.stderr.take());
    assert!(suite.wait().unwrap().success());
    let json = fs::read(folder.path().join("results.json")).unwrap();
    let json: Value = serde_json::from_slice(&json).unwrap();
    assert_eq!(json["runs"].as_array().unwrap().len(), 1);
}

#[test]
fn commands_of_the_pages_are_understood() {
    commands::are_parsed(&["benchmarks"], env!("CARGO_BIN_EXE_benchmarks"));
}
