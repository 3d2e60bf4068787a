//! The program as a user runs it: its measurements, its files, and what it leaves out.

mod arithmetic;
mod burn_0_22;
mod python;
mod stderr;

use assert_cmd::Command;
use burn_gradient_release_timeline::Snapshot;
use burn_gradient_release_timeline::analysis::{Peak, Totals};
use burn_gradient_release_timeline::snapshot::{Category, PhaseKind};
use serde_json::Value;
use std::fs;
use std::path::Path;
use tempfile::TempDir;

fn benchmarks() -> Command {
    Command::cargo_bin("benchmarks").expect("the binary is built with the tests")
}

/// A tiny suite on the CPU, with these options.
fn tiny(folder: &Path, options: &str) -> Command {
    let mut command = benchmarks();
    command
        .args("--preset tiny --backend flex --steps 2 --warm-up 2".split(' '))
        .args(options.split(' '))
        .arg("--output")
        .arg(folder)
        // Every thread that computes allocates and keeps a workspace, in a step that depends on the
        // scheduler; it is a large part of the memory of a model this small.
        .env("RAYON_NUM_THREADS", "1");
    command
}

/// A tiny suite of plain Burn and of this Python.
fn tiny_with_python(folder: &Path, python: &str, options: &str) -> Command {
    let plain = "--burn 0.21 --part vit --mode plain --checkpointing none";
    let mut command = tiny(folder, &format!("{plain} {options}"));
    command.args(["--python", python]);
    command
}

struct Outcome {
    table: String,
    json: Value,
}

fn outcome(command: &mut Command, folder: &Path) -> Outcome {
    let output = command.assert().success().get_output().clone();
    let table = String::from_utf8(output.stdout).unwrap();
    assert_eq!(table, fs::read_to_string(folder.join("table.md")).unwrap());
    let json = fs::read(folder.join("results.json")).unwrap();
    Outcome {
        table,
        json: serde_json::from_slice(&json).unwrap(),
    }
}

/// A tiny suite with these options, which measures everything.
fn measured(folder: &Path, options: &str) -> Outcome {
    outcome(&mut tiny(folder, options), folder)
}

#[track_caller]
fn mentions(table: &str, text: &str) {
    assert!(table.contains(text), "{text} in {table}");
}

fn runs(json: &Value) -> &Vec<Value> {
    json["runs"].as_array().unwrap()
}

/// Every mode of a model is the same training, checkpointing or not.
fn is_same_training(run: &Value, plain: &Value) {
    let subject = &run["subject"];
    assert_eq!(run["weights_digest"], plain["weights_digest"], "{subject}");
    assert_eq!(run["final_loss"], plain["final_loss"], "{subject}");
    assert_eq!(run["step_seconds"].as_array().unwrap().len(), 2);
}

/// The bytes of a run, by what they are for and by the part of a step.
fn is_itemised(run: &Value) {
    let subject = &run["subject"];
    let bytes = |name: &str| run["memory"][name].as_i64().unwrap();
    let item = |name: &str| run["items"][name].as_i64().unwrap();
    assert!(item("optimizer_state") >= 2 * item("parameters"));
    assert!(item("activations") > 0);
    // The backward pass leaves every gradient alive, or none. The containers of the gradients count
    // too, and the batch is freed: some percent of a model this small.
    let gradients = item("gradients") as f64 / item("all_gradients") as f64;
    let expected = f64::from(subject["mode"] != "release");
    let is_near = (gradients - expected).abs() < 0.15;
    assert!(is_near, "{subject}: {gradients}");
    // The heap needs no synchronization: the observed step is like the others.
    let highest = ["peak_in_forward", "peak_in_backward", "peak_in_step"].map(bytes);
    let highest = *highest.iter().max().unwrap() as f64;
    assert!((highest / bytes("peak_bytes") as f64 - 1.0).abs() < 0.02);
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
fn every_mode_is_measured_and_itemised() {
    let home = TempDir::new().unwrap();
    let options = "--burn 0.21 --no-pytorch --part vit,gpt,encoder --batch-size 2 --mode \
         plain,release,unarmed,ideal --checkpointing none,balanced,blocks,automatic";
    let Outcome { table, json } = measured(home.path(), options);
    // Plain Burn has two kinds of checkpointing, the unarmed optimizer three and the armed ones
    // four.
    assert_eq!(runs(&json).len(), 3 * (2 + 3 + 2 * 4));
    for run in runs(&json) {
        let subject = &run["subject"];
        let of = |checkpointing: &Value, mode: &str| {
            let found = runs(&json).iter().find(|other| {
                other["case"] == run["case"]
                    && other["subject"]["checkpointing"] == *checkpointing
                    && other["subject"]["mode"] == mode
            });
            found.unwrap()
        };
        is_same_training(run, of(&Value::from("none"), "plain"));
        if subject["mode"] == "ideal" {
            assert!(run["items"].is_null() && run["step_milliseconds"].is_null());
            continue;
        }
        is_itemised(run);
        let item = |name: &str| run["items"][name].as_i64().unwrap();
        let sum = item("parameters") + item("optimizer_state") + item("held");
        assert_eq!(sum + item("temporaries"), run["memory"]["peak_bytes"]);
        assert_eq!(item("parameters"), 4 * run["parameters"].as_i64().unwrap());
        assert!(item("largest_gradient") < item("all_gradients"));
    }
    for text in [
        "release over plain",
        "unarmed over plain",
        "release, blocks over plain",
        "release, automatic over plain",
        "the same weights",
        "Burn 0.21: plain, automatic: ",
        "--no-pytorch",
    ] {
        mentions(&table, text);
    }
}

#[test]
fn the_files_are_complete() {
    let home = TempDir::new().unwrap();
    let options = "--burn 0.21 --no-pytorch --part vit,vocabulary --repeat 3 --mode plain,release \
         --checkpointing none --batch-size 1";
    let Outcome { table, json } = measured(home.path(), options);
    assert_eq!(json["schema"], 1);
    assert_eq!(json["command"][0], "benchmarks");
    for key in ["burn", "burn_0_22", "cubecl", "rustc", "profile"] {
        assert!(json["versions"][key].is_string(), "{key}");
    }
    assert!(json["machine"]["threads"].as_u64().unwrap() > 0);
    assert_eq!(json["settings"]["repeat"], 3);
    let order: Vec<_> = runs(&json)
        .iter()
        .map(|run| {
            (
                run["subject"]["mode"].as_str().unwrap(),
                run["repetition"].as_u64().unwrap(),
            )
        })
        .collect();
    let turn = |modes: [&'static str; 2], repetition| modes.map(|mode| (mode, repetition));
    // Every second turn is in reverse.
    let turns = [
        turn(["plain", "release"], 0),
        turn(["release", "plain"], 1),
        turn(["plain", "release"], 2),
    ];
    assert_eq!(order, turns.concat());
    mentions(&table, "median of 3");

    let vocabulary = &json["vocabulary"][0];
    let number = |name: &str| vocabulary[name].as_u64().unwrap();
    assert!(number("release_vocabulary") >= number("vocabulary"));
    assert!(!vocabulary["measured"].as_array().unwrap().is_empty());

    // Timelines are not recorded by default.
    assert!(!home.path().join("timelines").exists());
    assert!(!table.contains("timeline"), "{table}");
    assert!(runs(&json).iter().all(|run| run["timeline"].is_null()));

    let plot = fs::read_to_string(home.path().join("memory.svg")).unwrap();
    assert!(plot.starts_with("<svg") && plot.trim_end().ends_with("</svg>"));
    for text in ["ViT tiny, batch 1", "release", "temporaries", "MiB"] {
        assert!(plot.contains(text), "{text}");
    }
}

#[test]
fn memory_timelines_say_where_the_gradients_are() {
    let home = TempDir::new().unwrap();
    let options = "--burn 0.21 --no-pytorch --part vit,gpt --batch-size 1 --mode \
         plain,release,unarmed,ideal --steps 4 --repeat 2 --memory-timeline --checkpointing \
         none,balanced,blocks,automatic";
    let Outcome { table, json } = measured(home.path(), options);
    mentions(&table, "burn-memory html");
    let mut files = Vec::new();
    for run in runs(&json) {
        let timeline = &run["timeline"];
        let subject = &run["subject"];
        if run["repetition"] == 1 || subject["mode"] == "ideal" {
            assert!(timeline.is_null(), "{subject}");
            continue;
        }
        let mode = subject["mode"].as_str().unwrap();
        let (word, title) = match subject["checkpointing"].as_str().unwrap() {
            "none" => (String::new(), String::new()),
            other => (format!("{other}-"), format!(", {other}")),
        };
        let model = run["case"]["model"]["kind"].as_str().unwrap();
        let file = format!("timelines/{model}-tiny-batch-1-flex-{word}{mode}.json.gz");
        assert_eq!(timeline["file"], file);
        // Recording does not change the training.
        assert_eq!(timeline["weights_digest"], run["weights_digest"], "{file}");
        for steps in ["recorded_step_seconds", "unrecorded_step_seconds"] {
            assert_eq!(timeline[steps].as_array().unwrap().len(), 2, "{steps}");
        }

        let snapshot = Snapshot::load(home.path().join(&file)).unwrap();
        let name = run["case"]["name"].as_str().unwrap();
        assert_eq!(snapshot.title, format!("{name}, batch 1, {mode}{title}"));
        assert!(snapshot.warnings.is_empty(), "{:?}", snapshot.warnings);
        let all: u64 = snapshot.parameters.iter().map(|one| one.bytes).sum();
        assert_eq!(all, 4 * run["parameters"].as_u64().unwrap());
        let totals = Totals::of(&snapshot);
        let gradients = totals.layer(Category::Gradients);
        let phases = |kind| snapshot.phases.iter().filter(move |one| one.kind == kind);
        assert_eq!(phases(PhaseKind::Forward).count(), 2);
        assert_eq!(phases(PhaseKind::Backward).count(), 2);
        for backward in phases(PhaseKind::Backward) {
            let left = gradients[backward.until - 1];
            assert_eq!(left, if mode == "release" { 0 } else { all }, "{file}");
        }
        if mode == "release" {
            let largest = 4 * run["largest_parameter"].as_u64().unwrap();
            let most = *gradients.iter().max().unwrap();
            // The same operation makes the gradient of the bias.
            assert!(most > 0 && most < largest + largest / 4, "{file}: {most}");
        }
        // What is recomputed is there with its operation and its parameter: the linear layers of
        // the blocks, once in each backward pass.
        let mut again = snapshot.holders.iter().filter(|holder| {
            let mut backwards = phases(PhaseKind::Backward);
            snapshot.operations[holder.operation] == "linear"
                && backwards.any(|phase| (phase.from..phase.until).contains(&holder.from))
        });
        assert!(again.clone().all(|holder| holder.parameter.is_some()));
        let depth = run["case"]["model"]["depth"].as_u64().unwrap() as usize;
        match subject["checkpointing"].as_str().unwrap() {
            "blocks" => assert_eq!(again.count(), 2 * 6 * depth, "{file}"),
            "automatic" => assert!(again.next().is_some(), "{file}"),
            _ => assert!(again.next().is_none(), "{file}"),
        }
        // The peak is the same, too.
        let peak = Peak::of(&snapshot, &totals).unwrap().bytes as f64;
        let measured = run["memory"]["peak_bytes"].as_f64().unwrap();
        assert!(
            (peak / measured - 1.0).abs() < 0.05,
            "{file}: {peak} {measured}"
        );
        files.push(file);
    }
    // Of each model two of plain Burn, four of gradient release and three with nothing armed.
    assert_eq!(files.len(), 2 * (2 + 4 + 3));
    let written = fs::read_dir(home.path().join("timelines")).unwrap();
    assert_eq!(written.count(), files.len());
}

#[test]
fn what_is_missing_is_named() {
    let home = TempDir::new().unwrap();
    let mut command = tiny_with_python(home.path(), "/nowhere/python", "--batch-size 1");
    let Outcome { table, json } = outcome(&mut command, home.path());
    let left_out = &json["left_out"][0];
    assert_eq!(left_out["what"], "PyTorch and optimi");
    let why = left_out["why"].as_str().unwrap();
    assert!(why.contains("/nowhere/python"), "{why}");
    mentions(&table, "Left out:\n- PyTorch and optimi");
    assert_eq!(runs(&json).len(), 1);
}

#[test]
fn bad_input_gets_one_line() {
    let home = TempDir::new().unwrap();
    for (options, text) in [
        ("--lr 0", "--lr"),
        ("--lr NaN", "--lr"),
        ("--batch-size 0", "batch-size"),
        ("--backend nonsense", "nonsense"),
        ("--burn 0.20", "0.20"),
        ("--checkpointing nonsense", "nonsense"),
        ("--operations nonsense", "nonsense"),
        ("--linear nonsense", "nonsense"),
        ("--loss-chunk nonsense", "nonsense"),
        ("--loss-chunk 0", "--loss-chunk"),
        ("--image-size 9", "patches of 2x2"),
        ("--vocabulary 0", "--vocabulary"),
        ("--context 0", "--context"),
        ("--context 64", "--part gpt"),
        ("--output /proc/no/folder", "/proc/no/folder"),
        ("--steps 1 --memory-timeline", "at least --steps 2"),
    ] {
        let mut command = tiny(home.path(), "--burn 0.21 --no-pytorch --part vit");
        fails(command.args(options.split(' ')), text);
    }
    for (arguments, text) in [
        ("--no-pytorch --image-size 64", "--preset"),
        ("measure {}", "not a run"),
    ] {
        fails(benchmarks().args(arguments.split(' ')), text);
    }
}

#[cfg(not(feature = "wgpu"))]
#[test]
fn a_backend_that_is_not_compiled_in_is_named() {
    let home = TempDir::new().unwrap();
    let mut command = benchmarks();
    command
        .args(["--backend", "wgpu", "--output"])
        .arg(home.path());
    fails(&mut command, "-p benchmarks --features wgpu");
}

#[test]
fn help_explains_what_is_not_obvious() {
    let output = benchmarks().arg("--help").assert().success();
    let text = String::from_utf8(output.get_output().stdout.clone()).unwrap();
    for word in [
        "--mode unarmed",
        "--mode ideal",
        "--burn",
        "--checkpointing blocks",
        "--linear flat",
        "--loss-chunk",
        "--pytorch checkpoint,hook-checkpoint",
        "MALLOC_MMAP_THRESHOLD_",
        "exit code",
    ] {
        assert!(text.contains(word), "{word}");
    }
    assert!(!text.contains("measure "), "{text}");
}
