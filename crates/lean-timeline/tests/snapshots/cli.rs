//! The program, from the command line.

use std::path::Path;
use std::{fs, io};

use assert_cmd::{Command, cargo::cargo_bin};
use lean_timeline::Snapshot;
use tempfile::TempDir;

use crate::example::{sample, step};

#[path = "../../../../tests/commands.rs"]
mod commands;

fn burn_memory(arguments: &[&str], files: &[&Path]) -> Command {
    let mut command = Command::cargo_bin("burn-memory").expect("it is built with the tests");
    command.args(arguments).args(files);
    command
}

/// What a command that succeeds prints.
fn said(mut command: Command) -> String {
    let output = command.assert().success().get_output().clone();
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
    String::from_utf8(output.stdout).unwrap()
}

/// Fails with `code` and one line that mentions `text`.
fn fails(mut command: Command, code: i32, text: &str) {
    let output = command.assert().code(code).get_output().clone();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(errors.starts_with("error: "), "{errors:?}");
    assert_eq!(errors.lines().count(), 1, "{errors:?}");
    assert!(errors.contains(text), "{errors:?} should mention {text:?}");
    assert!(output.stdout.is_empty());
}

/// Saves the example a million times as large, with a change.
fn saved(folder: &TempDir, name: &str, change: impl FnOnce(&mut Snapshot)) -> std::path::PathBuf {
    let mut snapshot = step();
    for held in &mut snapshot.holders {
        held.bytes <<= 20;
    }
    change(&mut snapshot);
    let path = folder.path().join(name);
    snapshot.save(&path).unwrap();
    path
}

#[track_caller]
fn mentions(text: &str, part: &str) {
    assert!(text.contains(part), "{part:?} in {text}");
}

#[test]
fn a_summary_says_where_the_peak_is_and_what_is_in_it() {
    let folder = TempDir::new().unwrap();
    let file = saved(&folder, "plain.json", |snapshot| {
        let mib = 1 << 20;
        snapshot.samples = vec![
            sample(6, 160 * mib, 160 * mib),
            sample(7, 186 * mib, 300 * mib),
        ];
        snapshot.warnings.push("\u{1b}[31mred".into());
    });
    let text = said(burn_memory(&["summary"], &[&file]));
    assert!(
        text.starts_with("two weights\n  backend   none\n  model     2 parameters"),
        "{text}"
    );
    for part in [
        "warning   ?[31mred",
        "Peak: 300.0 MiB (314572800 bytes), in the optimizer of step 1, stepping two.weight (event 7, at 0.1 ms)",
        "| gradients       |            80.0 | 26.7 % |             80.0 | backward of step 1  |",
        "| temporaries     |           140.0 | 46.7 % |            140.0 | optimizer of step 1 |",
        "| sum             |           300.0 | 100.0 % |",
        "The 5 largest of 5 in the peak, 100.0 % of it",
        "| 115.0 | temporaries | two.weight | within add | optimizer of step 1 |",
        "|  40.0 | gradients   | two.weight | add           | backward of step 1  |",
        "Adds up: what is named differs from what was in use by 0.54 % at most",
    ] {
        let flat = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        mentions(&flat(&text), &flat(part));
    }
}

#[test]
fn a_summary_owns_up_to_what_is_missing() {
    let folder = TempDir::new().unwrap();
    let file = saved(&folder, "long.json", |snapshot| {
        snapshot.title = "title ".repeat(50);
        snapshot.parameters[1].path = format!("model.{}", "encoder.inner.".repeat(20));
        snapshot.operations[0] = "add".repeat(60);
    });
    let text = said(burn_memory(&["summary"], &[&file]));
    mentions(&text, "How well it adds up is not known");
    assert!(
        text.lines().all(|line| line.chars().count() <= 104),
        "{text}"
    );

    let empty = folder.path().join("empty.json");
    Snapshot::default().save(&empty).unwrap();
    mentions(
        &said(burn_memory(&["summary"], &[&empty])),
        "Nothing was recorded",
    );

    let lost = saved(&folder, "lost.json", |snapshot| {
        snapshot.samples = vec![sample(7, 90 << 20, 90 << 20)];
    });
    let text = said(burn_memory(&["summary"], &[&lost]));
    mentions(&text, "Does not add up: what is named differs");
}

/// Of the states that the example has, the moments of Adam.
#[test]
fn savings_are_estimated_and_chosen_from() {
    let folder = TempDir::new().unwrap();
    let file = saved(&folder, "plain.json", |_| ());
    let text = said(burn_memory(&["savings"], &[&file]));
    assert_eq!(text.lines().count(), 2 + 2, "{text}");
    mentions(
        &text,
        "|     220.0 |   0.0 | off              | as recorded | the same |",
    );
    mentions(
        &text,
        "|     245.0 | -25.0 | on               | as recorded | the same |",
    );
    let text = said(burn_memory(&["savings", "--fit", "220MiB"], &[&file]));
    mentions(
        &text,
        "The first that fits into 220.0 MiB: gradient release off, optimizer as recorded",
    );
    let fit = |memory| burn_memory(&["savings", "--fit", memory], &[&file]);
    fails(
        fit("1KiB"),
        1,
        "nothing that is estimated fits into 0.0 MiB: the least is 220.0 MiB",
    );
    for memory in ["1", "0MiB", "infMiB", "1e300GiB"] {
        fails(fit(memory), 2, "give a number and a unit");
    }
}

#[test]
fn what_cannot_be_done_is_said_in_one_line() {
    let folder = TempDir::new().unwrap();
    let (plain, foreign, short) = (
        saved(&folder, "plain.json", |_| ()),
        folder.path().join("foreign.txt"),
        folder.path().join("short.json"),
    );
    fs::write(&foreign, "a text\nof two lines").unwrap();
    fs::write(&short, &fs::read(&plain).unwrap()[..500]).unwrap();
    let foreign_trace = folder.path().join("pytorch.json");
    fs::write(&foreign_trace, r#"{"segments": [], "device_traces": [[]]}"#).unwrap();
    let missing = folder.path().join("missing.json");
    for (task, file, text) in [
        ("summary", &missing, "missing.json: No such file"),
        ("summary", &foreign, "foreign.txt is not a memory snapshot"),
        ("savings", &short, "short.json ends early"),
        (
            "savings",
            &foreign_trace,
            "nothing can be estimated: no training step",
        ),
    ] {
        fails(burn_memory(&[task], &[file]), 1, text);
    }
    for (arguments, files, text) in [
        (&[][..], &[][..], "summary or savings"),
        (&["draw"], &[], "draw"),
        (&["summary"], &[], "<FILE>"),
        (&["summary"], &[&*plain, &*plain], "unexpected argument"),
    ] {
        fails(burn_memory(arguments, files), 2, text);
    }
    for asked in ["--help", "-h", "--version"] {
        mentions(&said(burn_memory(&[asked], &[])), "burn-memory");
    }
    // Nobody reads what it says, as with `2>&1 | head -0`.
    let (reader, stderr) = io::pipe().unwrap();
    drop(reader);
    let mut command = std::process::Command::new(cargo_bin("burn-memory"));
    command.arg("summary").arg(missing).stderr(stderr);
    assert_eq!(command.status().unwrap().code(), Some(1));
}

#[test]
fn commands_of_the_pages_are_understood() {
    commands::are_parsed(
        &["burn-memory", "lean-timeline"],
        env!("CARGO_BIN_EXE_burn-memory"),
    );
}
