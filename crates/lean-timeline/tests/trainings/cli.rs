//! The program, from the command line.

use crate::synthetic::{Sampled, Training};
use assert_cmd::{Command, cargo::cargo_bin};
use lean_timeline::Snapshot;
use lean_timeline::analysis::{Choice, Peak, Stepping, Totals};
use lean_timeline::snapshot::Category;
use std::path::{Path, PathBuf};
use std::{fs, io};
use tempfile::TempDir;

fn burn_memory(arguments: &[&str], files: &[&Path]) -> Command {
    let mut command = Command::cargo_bin("burn-memory").expect("it is built with the tests");
    command.args(arguments).args(files);
    command
}

/// The same, with a file for the picture or the page.
fn to(output: &Path, task: &str, files: &[&Path]) -> Command {
    let mut command = burn_memory(&[task, "--output"], &[output]);
    command.args(files);
    command
}

/// The output on stdout and stderr of a command that succeeds.
fn done(mut command: Command) -> (String, String) {
    let output = command.assert().success().get_output().clone();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (text(output.stdout), text(output.stderr))
}

/// The summary, which is at most 100 columns wide.
fn summary(file: &Path) -> String {
    let (text, errors) = done(burn_memory(&["summary"], &[file]));
    assert_eq!(errors, "");
    for line in text.lines() {
        assert!(line.chars().count() <= 100, "{line:?}");
        assert_eq!(line.trim_end(), line, "{line:?}");
    }
    text
}

#[track_caller]
fn mentions(text: &str, part: &str) {
    assert!(text.contains(part), "{part:?} in {text}");
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

struct Runs {
    folder: TempDir,
    plain: PathBuf,
    release: PathBuf,
}

impl Runs {
    fn new() -> Self {
        let mut runs = Self {
            folder: TempDir::new().unwrap(),
            plain: PathBuf::new(),
            release: PathBuf::new(),
        };
        runs.plain = runs.saved("plain.memory", Training::plain());
        runs.release = runs.saved("release.memory", Training::release());
        runs
    }

    fn saved(&self, name: &str, training: Training) -> PathBuf {
        let path = self.path(name);
        training.snapshot().save(&path).unwrap();
        path
    }

    /// The picture or page of some files.
    fn shown(&self, task: &str, files: &[&Path]) -> String {
        let output = self.path("shown");
        let (text, errors) = done(to(&output, task, files));
        assert_eq!(text, "");
        assert_eq!(errors, format!("written: {}\n", output.display()));
        fs::read_to_string(output).unwrap()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Saves a snapshot with a change.
    fn changed(&self, name: &str, change: impl FnOnce(&mut Snapshot)) -> PathBuf {
        let mut snapshot = Training::plain().snapshot();
        change(&mut snapshot);
        let path = self.path(name);
        snapshot.save(&path).unwrap();
        path
    }
}

fn mib(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / 1024.0 / 1024.0)
}

fn peak(file: &Path) -> Peak {
    let snapshot = Snapshot::load(file).unwrap();
    Peak::of(&snapshot, &Totals::of(&snapshot)).unwrap()
}

/// The cells of the row of a table whose first cell is `name`.
fn row<'a>(text: &'a str, name: &str) -> Vec<&'a str> {
    let rows = text.lines().filter(|line| line.starts_with('|'));
    let mut cells = rows.map(|line| line.trim_matches('|').split('|').map(str::trim).collect());
    cells
        .find(|cells: &Vec<&str>| cells[0] == name)
        .unwrap_or_else(|| panic!("{text}\nhas no row {name:?}"))
}

#[test]
fn a_summary_says_where_the_peak_is_and_what_is_in_it() {
    let runs = Runs::new();
    let text = summary(&runs.plain);
    let peak = peak(&runs.plain);
    assert!(text.starts_with("Transformer of 4 blocks, plain\n  backend   autodiff<flex>\n"));
    mentions(&text, "54 parameters, 13.8 MiB");
    mentions(
        &text,
        &format!("Peak: {} MiB, in the optimizer of step 2", mib(peak.bytes)),
    );
    for category in Category::ALL {
        let bytes = peak.bytes_of(category);
        let cells = row(&text, category.name());
        assert_eq!(cells[1], mib(bytes), "{category:?}");
        let share = format!("{:.1} %", 100.0 * bytes as f64 / peak.bytes as f64);
        assert_eq!(cells[2], share, "{category:?}");
    }
    assert_eq!(row(&text, "gradients")[3..], ["13.8", "backward 1"]);
    assert_eq!(row(&text, "sum")[1], mib(peak.bytes));
    let (_, largest) = text.split_once("The 10 largest of ").unwrap();
    let rows: Vec<&str> = largest
        .lines()
        .filter(|line| line.starts_with('|'))
        .collect();
    assert_eq!(rows.len(), 2 + 10, "{largest}");
    assert!(
        rows[2].contains("optimizer state") && rows[2].contains("mlp.fc"),
        "{}",
        rows[2]
    );
    let adds_up = "Adds up: what is named differs from what was in use by 0.14 % at most";
    mentions(&text, adds_up);
}

/// As with `2>&1 | head -0`.
#[test]
fn nobody_needs_to_read_stderr() {
    let runs = Runs::new();
    for (file, code) in [(runs.plain.clone(), 0), (runs.path("missing"), 1)] {
        let (reader, stderr) = io::pipe().unwrap();
        drop(reader);
        let mut command = std::process::Command::new(cargo_bin("burn-memory"));
        command.args(["html", "--output"]);
        command.args([&runs.path("page.html"), &file]);
        let status = command.stderr(stderr).status().unwrap();
        assert_eq!(status.code(), Some(code), "{}", file.display());
    }
}

#[test]
fn long_names_stay_within_a_hundred_columns() {
    let runs = Runs::new();
    let file = runs.changed("long.memory", |snapshot| {
        snapshot.title = "title ".repeat(50);
        snapshot.backend = "fusion<".repeat(50);
        for parameter in &mut snapshot.parameters {
            parameter.path = format!("model.{}{}", "encoder.inner.".repeat(20), parameter.path);
        }
        for operation in &mut snapshot.operations {
            *operation = operation.repeat(20);
        }
        snapshot
            .warnings
            .push("could not see what it should see ".repeat(9));
        snapshot.warnings.push("\u{1b}[31mred".into());
    });
    let text = summary(&file);
    mentions(&text, "weight");
    mentions(&text, "?[31mred");
}

#[test]
fn a_summary_owns_up_to_what_is_missing() {
    let runs = Runs::new();
    let file = runs.saved(
        "unsampled.memory",
        Training::plain().sampled(Sampled::Nowhere),
    );
    assert!(summary(&file).contains("How well it adds up is not known"));

    let file = runs.path("empty.memory");
    Snapshot::default().save(&file).unwrap();
    assert!(summary(&file).contains("Nothing was recorded"));

    let file = runs.changed("lost.memory", |snapshot| {
        for sample in &mut snapshot.samples {
            sample.in_use /= 2;
            sample.peak /= 2;
        }
        snapshot.warnings.push("no device was found".into());
    });
    let text = summary(&file);
    mentions(&text, "warning   no device was found");
    assert!(row(&text, "held, not in use")[1].starts_with('-'), "{text}");
    mentions(&text, "Does not add up: what is named differs");
}

#[test]
fn a_picture_is_small_and_has_the_peak() {
    let runs = Runs::new();
    let picture = runs.shown("svg", &[&runs.plain, &runs.release]);
    assert!(picture.len() < 60_000, "{}", picture.len());
    for file in [&runs.plain, &runs.release] {
        let label = format!("peak {} MiB", mib(peak(file).bytes));
        mentions(&picture, &label);
    }
    for text in [
        "gradients",
        "optimizer state",
        "backward",
        "fwd",
        "gradient release",
    ] {
        mentions(&picture, text);
    }
}

#[test]
fn a_picture_of_a_million_events_is_small_and_has_a_peak_of_one_event() {
    let runs = Runs::new();
    let mut snapshot = Training::vast().snapshot();
    assert!(snapshot.times.len() > 1_000_000);
    let spike = 600_000;
    snapshot.samples[spike].peak = 1 << 30;
    let file = runs.path("vast.memory");
    snapshot.save(&file).unwrap();
    let picture = runs.shown("svg", &[&file]);
    assert!(picture.len() < 60_000, "{}", picture.len());
    mentions(&picture, "peak 1024.0 MiB");
    // The layers reach up to the mark of the peak.
    let (_, circle) = picture.split_once("<circle ").unwrap();
    let at = |name: &str| -> &str {
        let (_, value) = circle.split_once(&format!("{name}=\"")).unwrap();
        value.split_once('"').unwrap().0
    };
    let point = format!("{},{}", at("cx"), at("cy"));
    let areas = picture.lines().filter(|line| line.starts_with("<polygon"));
    let reach = areas.filter(|area| area.split(' ').any(|at| at == point));
    assert_eq!(reach.count(), 1, "temporaries alone reach {point}");
}

#[test]
fn a_picture_of_a_thousand_steps_is_small_and_counts_them() {
    let runs = Runs::new();
    let training = Training {
        parameters: 18,
        iterations: 1_000,
        ..Training::plain()
    };
    let file = runs.saved("long.memory", training);
    let picture = runs.shown("svg", &[&file, &runs.plain]);
    assert!(picture.len() < 60_000, "{}", picture.len());
    mentions(&picture, "1,000 steps");
}

#[test]
fn a_title_is_text_and_no_markup() {
    let runs = Runs::new();
    let file = runs.changed("title.memory", |snapshot| {
        snapshot.title = "\"<b>&\u{7}".into();
    });
    let picture = runs.shown("svg", &[&file]);
    let is_clean = !picture.contains("<b>") && !picture.contains('\u{7}');
    assert!(is_clean, "{picture}");
    mentions(&picture, "&lt;b&gt;&amp;?");
}

#[test]
fn a_page_carries_its_snapshots() {
    let runs = Runs::new();
    let page = runs.shown("html", &[&runs.plain, &runs.release]);
    for training in ["plain", "gradient release"] {
        mentions(&page, &format!("Transformer of 4 blocks, {training}"));
    }
}

#[test]
fn an_output_is_never_over_an_input() {
    let runs = Runs::new();
    let before = fs::read(&runs.plain).unwrap();
    let around = runs.folder.path().join(".").join("plain.memory");
    let way_out = "choose another name for --output";
    for (files, output) in [
        (&[runs.plain.as_path()][..], &runs.plain),
        (&[&runs.plain], &around),
        (&[&runs.release, &runs.plain], &runs.plain),
    ] {
        for task in ["svg", "html"] {
            fails(to(output, task, files), 1, way_out);
        }
    }
    assert_eq!(fs::read(&runs.plain).unwrap(), before);
}

#[test]
fn what_cannot_be_done_is_said_in_one_line() {
    let runs = Runs::new();
    let missing = runs.path("missing.memory");
    let foreign = runs.path("foreign.txt");
    fs::write(&foreign, "a text\nof two lines").unwrap();
    let short = runs.path("short.memory");
    fs::write(&short, &fs::read(&runs.plain).unwrap()[..500]).unwrap();
    let empty = runs.path("empty.memory");
    Snapshot::default().save(&empty).unwrap();
    let output = runs.path("shown");
    for (file, text) in [
        (&missing, "missing.memory: No such file"),
        (&foreign, "foreign.txt is not a memory snapshot"),
        (&short, "short.memory ends early"),
    ] {
        fails(burn_memory(&["summary"], &[file]), 1, text);
        for task in ["svg", "html"] {
            fails(to(&output, task, &[&runs.plain, file]), 1, text);
        }
    }
    let nothing = "there is nothing to draw";
    fails(to(&output, "svg", &[&empty]), 1, nothing);
    assert!(!output.exists());
    let nowhere = to(&runs.path("no/such/folder.svg"), "svg", &[&runs.plain]);
    fails(nowhere, 1, "choose another place with --output");
}

#[test]
fn what_makes_no_sense_is_a_usage_error() {
    let runs = Runs::new();
    let two = [runs.plain.as_path(); 2];
    for (arguments, files, text) in [
        (&[][..], &[][..], "summary, savings, html or svg"),
        (&["draw"], &[], "draw"),
        (&["summary"], &[], "<FILE>"),
        (&["svg"], &two[..1], "--output"),
        (&["summary"], &two, "unexpected argument"),
    ] {
        fails(burn_memory(arguments, files), 2, text);
    }
    for asked in ["--help", "-h", "--version"] {
        let (text, errors) = done(burn_memory(&[asked], &[]));
        mentions(&text, "burn-memory");
        assert_eq!(errors, "");
    }
}

/// The synthetic training has moments in 32 bits.
#[test]
fn savings_are_estimated_and_chosen_from() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("plain.json.gz");
    let plain = Training::plain().sampled(Sampled::Everywhere).snapshot();
    plain.save(&file).unwrap();
    let all = Choice::all(&plain, &Totals::of(&plain)).unwrap();
    let exact = all
        .iter()
        .map(|choice| choice.stepping != Stepping::EightBit);
    assert!(exact.is_sorted_by(|before, after| before >= after));
    assert_eq!(all.len(), 6);
    let (text, errors) = done(burn_memory(&["savings"], &[&file]));
    assert_eq!(errors, "");
    assert_eq!(text.lines().count(), 2 + all.len());
    for choice in &all {
        let peak = format!("{:.1} |", choice.peak as f64 / f64::from(1 << 20));
        assert!(text.contains(&peak), "{peak} {text}");
    }

    let released = all[1];
    assert!(released.release && released.peak < all[0].peak);
    let kib = released.peak.div_ceil(1024);
    let (text, _) = done(burn_memory(
        &["savings", "--fit", &format!("{kib}KiB")],
        &[&file],
    ));
    assert!(
        text.contains("gradient release on, optimizer as recorded"),
        "{text}"
    );
    let fails = |memory: &str, code, part| {
        fails(
            burn_memory(&["savings", "--fit", memory], &[&file]),
            code,
            part,
        );
    };
    fails("1KiB", 1, "nothing that is estimated fits into 0.0 MiB");
    for text in ["1", "0MiB", "infMiB", "1e300GiB"] {
        fails(text, 2, "give a number and a unit");
    }
}

#[path = "../../../../tests/commands.rs"]
mod commands;

#[test]
fn commands_of_the_pages_are_understood() {
    commands::are_parsed(
        &["burn-memory", "lean-timeline"],
        env!("CARGO_BIN_EXE_burn-memory"),
    );
}
