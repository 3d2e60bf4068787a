//! The program, from the command line.

use std::path::PathBuf;
use std::{fs, io};

use assert_cmd::Command;
use lean_timeline::Snapshot;
use tempfile::TempDir;

use crate::example::{MIB, sample, step};

#[path = "../../../../tests/commands.rs"]
mod commands;

fn burn_memory(arguments: &str) -> Command {
    let mut command = Command::cargo_bin("burn-memory").expect("it is built with the tests");
    command.args(arguments.split_whitespace());
    command
}

/// Checks what a command that succeeds prints, but for spaces.
#[track_caller]
fn says(arguments: &str, parts: &[&str]) {
    let output = burn_memory(arguments)
        .assert()
        .success()
        .get_output()
        .clone();
    let flat = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let text = String::from_utf8(output.stdout).unwrap();
    for part in parts {
        assert!(flat(&text).contains(&flat(part)), "{part:?} in {text}");
    }
    assert!(
        text.lines().all(|line| line.chars().count() <= 120),
        "{text}"
    );
    assert!(output.stderr.is_empty());
}

/// Fails with `code` and one line that mentions `text`.
#[track_caller]
fn fails(arguments: &str, code: i32, text: &str) {
    let output = burn_memory(arguments)
        .assert()
        .code(code)
        .get_output()
        .clone();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(
        errors.starts_with("error: ") && errors.lines().count() == 1,
        "{errors:?}"
    );
    assert!(errors.contains(text), "{errors:?} should mention {text:?}");
    assert!(output.stdout.is_empty());
}

/// Saves the example with MiB in place of bytes, and a change.
fn saved(folder: &TempDir, name: &str, change: impl FnOnce(&mut Snapshot)) -> String {
    let mut snapshot = step();
    snapshot
        .holders
        .iter_mut()
        .for_each(|held| held.bytes *= MIB);
    change(&mut snapshot);
    let path = folder.path().join(name);
    snapshot.save(&path).unwrap();
    path.display().to_string()
}

#[test]
fn a_summary_says_where_the_peak_is_and_what_is_in_it() {
    let folder = TempDir::new().unwrap();
    let file = saved(&folder, "plain.json", |snapshot| {
        snapshot.samples = vec![
            sample(6, 160 * MIB, 160 * MIB),
            sample(7, 186 * MIB, 300 * MIB),
        ];
        snapshot.warnings.push("\u{1b}[31mred".into());
    });
    let parts = [
        "two weights backend none model 2 parameters, 0.0 MiB",
        "warning ?[31mred",
        "Peak: 300.0 MiB (314572800 bytes), in the optimizer of step 1, stepping two.weight (event 7, at 0.1 ms)",
        "| gradients | 80.0 | 26.7 % | 80.0 | backward of step 1 |",
        "| temporaries | 140.0 | 46.7 % | 140.0 | optimizer of step 1 |",
        "| sum | 300.0 | 100.0 % |",
        "The 5 largest of 5 in the peak, 100.0 % of it",
        "| 115.0 | temporaries | two.weight | within add | optimizer of step 1 |",
        "| 40.0 | gradients | two.weight | add | backward of step 1 |",
        "Adds up: what is named differs from what was in use by 0.54 % at most",
    ];
    says(&format!("summary {file}"), &parts);
}

#[test]
fn a_summary_owns_up_to_what_is_missing() {
    let folder = TempDir::new().unwrap();
    let long = saved(&folder, "long.json", |snapshot| {
        snapshot.title = "title ".repeat(50);
        snapshot.parameters[1].path = format!("model.{}", "encoder.inner.".repeat(20));
        snapshot.operations[0] = "add".repeat(60);
    });
    says(
        &format!("summary {long}"),
        &["How well it adds up is not known"],
    );
    let empty = saved(&folder, "empty.json", |snapshot| {
        *snapshot = Snapshot::default()
    });
    says(&format!("summary {empty}"), &["Nothing was recorded"]);
    let lost = saved(&folder, "lost.json", |snapshot| {
        snapshot.samples = vec![sample(7, 90 * MIB, 90 * MIB)];
    });
    says(
        &format!("summary {lost}"),
        &["Does not add up: what is named differs"],
    );
}

#[test]
fn savings_are_estimated_and_chosen_from() {
    let folder = TempDir::new().unwrap();
    let file = saved(&folder, "plain.json", |_| ());
    let rows = [
        "| 220.0 | 0.0 | off | as recorded | the same |",
        "| 245.0 | -25.0 | on | as recorded | the same |",
    ];
    says(&format!("savings {file}"), &rows);
    let first = "The first that fits into 220.0 MiB: gradient release off, optimizer as recorded";
    says(&format!("savings {file} --fit 220MiB"), &[first, rows[0]]);
    let least = "nothing that is estimated fits into 0.0 MiB: the least is 220.0 MiB";
    fails(&format!("savings {file} --fit 1KiB"), 1, least);
    for memory in ["1", "0MiB", "infMiB", "1e300GiB"] {
        fails(
            &format!("savings {file} --fit {memory}"),
            2,
            "give a number and a unit",
        );
    }
}

#[test]
fn what_cannot_be_done_is_said_in_one_line() {
    let folder = TempDir::new().unwrap();
    let plain = saved(&folder, "plain.json", |_| ());
    let cut = fs::read_to_string(&plain).unwrap()[..500].to_owned();
    let written = |text: &str| {
        let path: PathBuf = folder.path().join("file");
        fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    for (task, text, error) in [
        (
            "summary",
            "a text\nof two lines",
            "is not a memory snapshot",
        ),
        ("savings", &cut, "ends early"),
        (
            "savings",
            r#"{"device_traces": [[]]}"#,
            "nothing can be estimated: no training step",
        ),
    ] {
        fails(&format!("{task} {}", written(text)), 1, error);
    }
    fails("summary missing.json", 1, "missing.json: No such file");
    for (arguments, error) in [
        ("", "summary or savings"),
        ("draw", "draw"),
        ("summary", "<FILE>"),
        ("summary one two", "unexpected argument"),
    ] {
        fails(arguments, 2, error);
    }
    for asked in ["--help", "-h", "--version"] {
        says(asked, &["burn-memory"]);
    }
    // Nobody reads what it says, as with `2>&1 | head -0`.
    let (reader, stderr) = io::pipe().unwrap();
    drop(reader);
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_burn-memory"));
    let status = command
        .args(["summary", "missing.json"])
        .stderr(stderr)
        .status();
    assert_eq!(status.unwrap().code(), Some(1));
}

#[test]
fn commands_of_the_pages_are_understood() {
    let program = env!("CARGO_BIN_EXE_burn-memory");
    commands::are_parsed(&["burn-memory", "lean-timeline"], program);
}
