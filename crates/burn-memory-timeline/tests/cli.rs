//! The program, from the command line.

mod synthetic;

use assert_cmd::Command;
use burn_memory_timeline::Snapshot;
use burn_memory_timeline::analysis::{Peak, Totals};
use burn_memory_timeline::snapshot::Category;
use std::fs;
use std::path::{Path, PathBuf};
use synthetic::{Sampled, Training};
use tempfile::TempDir;

fn burn_memory(arguments: &[&str], files: &[&Path]) -> Command {
    let mut command = Command::cargo_bin("burn-memory").expect("it is built with the tests");
    command.args(arguments).args(files);
    command
}

/// The output on stdout and stderr of a command that succeeds.
fn done(mut command: Command) -> (String, String) {
    let output = command.assert().success().get_output().clone();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (text(output.stdout), text(output.stderr))
}

/// The summary, which is at most 100 columns wide.
fn summary(files: &[&Path]) -> String {
    let (text, errors) = done(burn_memory(&["summary"], files));
    assert_eq!(errors, "");
    for line in text.lines() {
        assert!(line.chars().count() <= 100, "{line:?}");
        assert_eq!(line.trim_end(), line, "{line:?}");
    }
    text
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
        let folder = TempDir::new().unwrap();
        let save = |training: Training, name: &str| {
            let path = folder.path().join(name);
            training.snapshot().save(&path).unwrap();
            path
        };
        let plain = save(Training::plain(), "plain.memory");
        let release = save(Training::release(), "release.memory");
        Self {
            folder,
            plain,
            release,
        }
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
    let text = summary(&[&runs.plain]);
    let peak = peak(&runs.plain);
    assert!(text.starts_with("Transformer of 4 blocks, plain\n  backend   autodiff<flex>\n"));
    assert!(text.contains("54 parameters, 13.8 MiB"), "{text}");
    assert!(text.contains(&format!(
        "Peak: {} MiB, in the optimizer of step 2",
        mib(peak.bytes)
    )));
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
    assert!(
        text.contains("Adds up: what is named differs from what was in use by 0.14 % at most"),
        "{text}"
    );
}

#[test]
fn a_summary_of_plain_burn_estimates_gradient_release() {
    let runs = Runs::new();
    let text = summary(&[&runs.plain])
        .replace('\n', " ")
        .replace("  ", " ");
    assert!(
        text.contains("With gradient release (estimated from step 2): a peak of "),
        "{text}"
    );
    let real = mib(peak(&runs.release).bytes);
    assert!(
        text.contains(&format!("a peak of {real} to ")),
        "{real} {text}"
    );
    let released = summary(&[&runs.release]);
    assert!(
        released.contains("this is a recording of gradient release already"),
        "{released}"
    );
}

#[test]
fn a_summary_of_two_is_side_by_side_with_the_difference() {
    let runs = Runs::new();
    let text = summary(&[&runs.plain, &runs.release]);
    let (one, other) = (peak(&runs.plain), peak(&runs.release));
    let difference = (other.bytes as f64 - one.bytes as f64) / 1024.0 / 1024.0;
    assert_eq!(
        row(&text, "peak")[1..],
        [mib(one.bytes), mib(other.bytes), format!("{difference:.1}")]
    );
    let gradients = row(&text, "at the peak: gradients");
    assert_eq!(gradients[1], mib(one.bytes_of(Category::Gradients)));
    assert_eq!(gradients[2], mib(other.bytes_of(Category::Gradients)));
    assert_eq!(row(&text, "most at once: parameters")[3], "0.0");
    for title in [
        "A: Transformer of 4 blocks, plain",
        "B: Transformer of 4 blocks, gradient",
    ] {
        assert!(text.contains(title), "{text}");
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
    let text = summary(&[&file]);
    assert!(text.contains("weight |"), "the end of a path stays: {text}");
    assert!(text.contains("?[31mred"), "{text}");
    summary(&[&file, &runs.release]);
}

#[test]
fn a_summary_owns_up_to_what_is_missing() {
    let runs = Runs::new();
    let unsampled = Training {
        sampled: Sampled::Nowhere,
        ..Training::plain()
    };
    let file = runs.path("unsampled.memory");
    unsampled.snapshot().save(&file).unwrap();
    assert!(summary(&[&file]).contains("How well it adds up is not known"));

    let file = runs.path("empty.memory");
    Snapshot::default().save(&file).unwrap();
    assert!(summary(&[&file]).contains("Nothing was recorded"));
    summary(&[&file, &runs.plain]);

    let file = runs.changed("lost.memory", |snapshot| {
        for sample in &mut snapshot.samples {
            sample.in_use /= 2;
            sample.peak /= 2;
        }
        snapshot.warnings.push("no device was found".into());
    });
    let text = summary(&[&file]);
    assert!(text.contains("warning   no device was found"), "{text}");
    assert!(row(&text, "held, not in use")[1].starts_with('-'), "{text}");
    assert!(
        text.contains("Does not add up: what is named differs"),
        "{text}"
    );
}

#[test]
fn a_picture_is_small_and_has_the_peak() {
    let runs = Runs::new();
    let output = runs.path("picture.svg");
    let mut command = burn_memory(&["svg"], &[&runs.plain, &runs.release]);
    command.arg("--output").arg(&output);
    let (text, errors) = done(command);
    assert_eq!(text, "");
    assert_eq!(errors, format!("written: {}\n", output.display()));
    let picture = fs::read_to_string(&output).unwrap();
    assert!(picture.len() < 60_000, "{}", picture.len());
    for file in [&runs.plain, &runs.release] {
        let label = format!("peak {} MiB", mib(peak(file).bytes));
        assert!(picture.contains(&label), "{label}");
    }
    for text in [
        "gradients",
        "optimizer state",
        "backward",
        "fwd",
        "gradient release",
    ] {
        assert!(picture.contains(text), "{text}");
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
    done(burn_memory(&["svg"], &[&file]));
    let picture = fs::read_to_string(runs.path("vast.svg")).unwrap();
    assert!(picture.len() < 60_000, "{}", picture.len());
    assert!(picture.contains("peak 1024.0 MiB"));
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
    let file = runs.path("long.memory");
    training.snapshot().save(&file).unwrap();
    done(burn_memory(&["svg"], &[&file, &runs.plain]));
    let picture = fs::read_to_string(runs.path("long-and-plain.svg")).unwrap();
    assert!(picture.len() < 60_000, "{}", picture.len());
    assert!(picture.contains("1,000 steps"), "{picture}");
}

#[test]
fn a_title_is_text_and_no_markup() {
    let runs = Runs::new();
    let file = runs.changed("title.memory", |snapshot| {
        snapshot.title = "\"<b>&\u{7}".into();
    });
    done(burn_memory(&["svg"], &[&file]));
    let picture = fs::read_to_string(runs.path("title.svg")).unwrap();
    assert!(
        !picture.contains("<b>") && !picture.contains('\u{7}'),
        "{picture}"
    );
    assert!(picture.contains("&lt;b&gt;&amp;?"), "{picture}");
}

#[test]
fn a_page_carries_its_snapshots() {
    let runs = Runs::new();
    done(burn_memory(&["html"], &[&runs.plain, &runs.release]));
    let page = fs::read_to_string(runs.path("plain-and-release.html")).unwrap();
    assert!(page.contains("Transformer of 4 blocks, plain"));
    assert!(page.contains("Transformer of 4 blocks, gradient release"));
}

#[test]
fn an_output_is_next_to_its_input_and_never_over_it() {
    let runs = Runs::new();
    for (task, name) in [("svg", "plain.svg"), ("html", "plain.html")] {
        let (_, errors) = done(burn_memory(&[task], &[&runs.plain]));
        assert_eq!(errors, format!("written: {}\n", runs.path(name).display()));
        assert!(runs.path(name).exists());
    }
    let before = fs::read(&runs.plain).unwrap();
    let around = runs.folder.path().join(".").join("plain.memory");
    for (files, output) in [
        (vec![&runs.plain], &runs.plain),
        (vec![&runs.plain], &around),
        (vec![&runs.release, &runs.plain], &runs.plain),
    ] {
        for task in ["svg", "html"] {
            let files: Vec<&Path> = files.iter().map(|file| file.as_path()).collect();
            let mut command = burn_memory(&[task], &files);
            command.arg("--output").arg(output);
            fails(command, 1, "choose another name for --output");
        }
    }
    // A snapshot with the default name of the picture.
    let named = runs.path("named.svg");
    fs::copy(&runs.plain, &named).unwrap();
    fails(
        burn_memory(&["svg"], &[&named]),
        1,
        "choose another name for --output",
    );
    assert_eq!(fs::read(&named).unwrap(), before);
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
    for task in ["summary", "svg", "html"] {
        fails(
            burn_memory(&[task], &[&missing]),
            1,
            "missing.memory: No such file",
        );
        fails(
            burn_memory(&[task], &[&foreign]),
            1,
            "foreign.txt is not a memory snapshot",
        );
        fails(
            burn_memory(&[task], &[&runs.plain, &short]),
            1,
            "short.memory ends early",
        );
    }
    fails(
        burn_memory(&["svg"], &[&empty]),
        1,
        "there is nothing to draw",
    );
    let mut nowhere = burn_memory(&["svg"], &[&runs.plain]);
    nowhere.arg("--output").arg(runs.path("no/such/folder.svg"));
    fails(nowhere, 1, "choose another place with --output");
}

#[test]
fn what_makes_no_sense_is_a_usage_error() {
    let runs = Runs::new();
    fails(burn_memory(&[], &[]), 2, "summary, html or svg");
    fails(burn_memory(&["draw"], &[]), 2, "draw");
    fails(burn_memory(&["summary"], &[]), 2, "<FILE>");
    fails(
        burn_memory(&["summary"], &[runs.plain.as_path(); 3]),
        2,
        "unexpected argument",
    );
    for asked in ["--help", "-h", "--version"] {
        let (text, errors) = done(burn_memory(&[asked], &[]));
        assert!(text.contains("burn-memory"), "{text}");
        assert_eq!(errors, "");
    }
}
