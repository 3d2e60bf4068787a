//! Runs that train to their end, or diverge.

use crate::program::{Home, lines, outcome, result};
use serde_json::Value;
use std::collections::HashMap;
use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

#[test]
fn the_results_have_the_keys_of_vit() {
    let home = Home::new();
    let result = result(&mut home.train("run", 1));
    let keys: Vec<_> = result.as_object().unwrap().keys().collect();
    let of_vit = [
        "epochs",
        "peak_bytes",
        "peak_reserved_bytes",
        "train_loss",
        "validation_accuracy",
        "weights_digest",
    ];
    assert_eq!(keys, of_vit);
    assert!(result["peak_bytes"].as_u64().unwrap() > 0);
    assert_eq!(result["peak_reserved_bytes"], Value::Null);
    let saved = fs::read(home.folder("run/results.json")).unwrap();
    assert_eq!(serde_json::from_slice::<Value>(&saved).unwrap(), result);
}

#[test]
fn an_epoch_is_a_line_on_stderr() {
    let home = Home::new();
    let stderr = lines(&mut home.train("run", 2));
    for (line, number) in stderr.iter().zip(["1/2", "2/2"]) {
        assert!(line.starts_with("epoch") && line.contains(number), "{line}");
        for part in ["loss", "validation loss", "accuracy", "peak"] {
            assert!(line.contains(part), "{line}");
        }
    }
}

#[test]
fn modes_and_checkpointing_train_the_same_weights() {
    let home = Home::new();
    let run = |mode: &str, checkpointing: &str| {
        let mut command = home.train(&format!("{mode}-{checkpointing}"), 2);
        command.args(["--mode", mode, "--checkpointing", checkpointing]);
        result(&mut command)
    };
    let peak = |result: &Value| result["peak_bytes"].as_u64().unwrap();
    let plain = run("plain", "none");
    for (mode, checkpointing) in [
        ("plain", "balanced"),
        ("plain", "blocks"),
        ("plain", "nested"),
        ("release", "none"),
        ("release", "balanced"),
        ("release", "blocks"),
        ("release", "nested"),
    ] {
        let other = run(mode, checkpointing);
        assert_eq!(outcome(&other), outcome(&plain), "{mode} {checkpointing}");
        if ["blocks", "nested"].contains(&checkpointing) {
            assert!(peak(&other) < peak(&plain), "{mode}: {other} {plain}");
        }
    }
}

#[test]
fn every_optimizer_trains_alike_in_both_modes() {
    let home = Home::new();
    let optimizers = "adam adam-one-pass adam-8bit adamw adamw-one-pass adamw-8bit stable-adamw radam \
                      adafactor adalomo came lion lamb sgd adagrad rmsprop adan";
    let digests: HashMap<&str, Value> = optimizers
        .split_whitespace()
        .map(|optimizer| {
            let [plain, release] = ["plain", "release"].map(|mode| {
                let mut command = home.train(&format!("{optimizer}-{mode}"), 1);
                result(command.args(["--optimizer", optimizer, "--mode", mode]))
            });
            assert_eq!(outcome(&plain), outcome(&release), "{optimizer}");
            (optimizer, release["weights_digest"].clone())
        })
        .collect();
    for in_one_pass in ["adam", "adamw"] {
        let same = &digests[format!("{in_one_pass}-one-pass").as_str()];
        assert_eq!(&digests[in_one_pass], same);
        assert_ne!(&digests[format!("{in_one_pass}-8bit").as_str()], same);
    }
}

#[test]
fn a_loss_that_is_not_finite_ends_the_run() {
    let home = Home::new();
    let mut command = home.train("run", 50);
    let diverging = command.args(["--optimizer", "lamb", "--lr", "1"]);
    let output = diverging.assert().failure().get_output().clone();
    let stderr = String::from_utf8(output.stderr).unwrap();
    let last = stderr.lines().last().unwrap();
    assert!(last.starts_with("error: the loss is"), "{last}");
    assert!(last.contains("--lr"), "{last}");
    assert!(output.stdout.is_empty());
    assert!(!home.folder("run/results.json").exists());
}

/// `2>&1 | head -1`, or a terminal that is closed: nobody reads any more.
#[cfg(unix)]
#[test]
fn a_run_goes_on_when_nobody_reads() {
    let home = Home::new();
    let whole = result(&mut home.train("whole", 3));
    let program = assert_cmd::cargo::cargo_bin("lean-vit");
    let program = program.display();
    let args = home.args("run", 3).join(" ");
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", &format!("{program} {args} 2>&1 | head -1")]);
    let said = String::from_utf8(shell.output().unwrap().stdout).unwrap();
    assert!(said.starts_with("epoch   1/3"), "{said}");
    assert_eq!(said.lines().count(), 1);
    // `head` has ended first.
    let results = home.folder("run/results.json");
    let begun = Instant::now();
    while !results.exists() && begun.elapsed() < Duration::from_secs(120) {
        sleep(Duration::from_millis(10));
    }
    let results = serde_json::from_slice(&fs::read(results).unwrap()).unwrap();
    assert_eq!(outcome(&results), outcome(&whole));
}
