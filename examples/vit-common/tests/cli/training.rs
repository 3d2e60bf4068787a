//! Runs that train to their end, or diverge.

use crate::PROGRAM;
use crate::program::{Home, json, outcome, result, said};
use serde_json::Value;
use std::collections::HashMap;

fn peak(result: &Value) -> u64 {
    result["peak_bytes"].as_u64().unwrap()
}

/// Without a terminal: an epoch is a line on stderr.
#[test]
fn a_run_says_how_it_went_and_saves_it() {
    let home = Home::new();
    let output = home.train("run", 2).output().unwrap();
    let stderr = String::from_utf8(output.stderr.clone()).unwrap();
    let epochs: Vec<_> = stderr
        .lines()
        .filter(|line| line.contains("epoch "))
        .collect();
    assert_eq!(epochs.len(), 2, "{stderr}");
    for (line, number) in epochs.iter().zip(["1/2", "2/2"]) {
        assert!(line.starts_with("epoch") && line.contains(number), "{line}");
        for part in ["loss", "validation loss", "accuracy", "peak"] {
            assert!(line.contains(part), "{line}");
        }
    }

    assert!(output.status.success(), "{}", said(&output));
    let result: Value = serde_json::from_slice(&output.stdout).unwrap();
    let keys: Vec<_> = result.as_object().unwrap().keys().collect();
    let expected = [
        "epochs",
        "peak_bytes",
        "peak_reserved_bytes",
        "train_loss",
        "validation_accuracy",
        "weights_digest",
    ];
    assert_eq!(keys, expected);
    assert!(peak(&result) > 0);
    assert_eq!(result["peak_reserved_bytes"], Value::Null);
    assert_eq!(json(&home.folder("run/results.json")), result);
    assert!(home.folder("run/config.json").exists());
}

#[test]
fn modes_and_checkpointing_train_the_same_weights() {
    let home = Home::new();
    let run = |mode: &str, checkpointing: &str| {
        let mut command = home.train(&format!("{mode}-{checkpointing}"), 2);
        command.args(["--mode", mode, "--checkpointing", checkpointing]);
        result(&mut command)
    };
    let kept = HashMap::from(["plain", "release"].map(|mode| (mode, run(mode, "none"))));
    assert_eq!(outcome(&kept["release"]), outcome(&kept["plain"]));
    for (mode, checkpointing, is_lower) in PROGRAM.checkpointing {
        let other = run(mode, checkpointing);
        let context = format!("{mode} {checkpointing}: {other}");
        assert_eq!(outcome(&other), outcome(&kept["plain"]), "{context}");
        if *is_lower {
            assert!(peak(&other) < peak(&kept[mode]), "{context}");
        }
    }
}

#[test]
fn every_optimizer_trains_alike_in_both_modes() {
    let home = Home::new();
    let digests: HashMap<&str, Value> = PROGRAM
        .optimizers
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
    // In one pass over memory it is the same optimizer.
    for optimizer in ["adam", "adamw"] {
        let one_pass = &digests[format!("{optimizer}-one-pass").as_str()];
        assert_eq!(&digests[optimizer], one_pass);
        assert_ne!(&digests[format!("{optimizer}-8bit").as_str()], one_pass);
    }
}

#[test]
fn a_loss_that_is_not_finite_ends_the_run() {
    let home = Home::new();
    let output = home
        .train("run", 50)
        .args(PROGRAM.diverging)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    let stderr = String::from_utf8(output.stderr).unwrap();
    let last = stderr.lines().last().unwrap();
    let epoch = last
        .strip_prefix("error: the loss is NaN in epoch ")
        .expect(&stderr);
    let epoch = epoch.strip_suffix(": try a smaller --lr").expect(last);
    assert!(output.stdout.is_empty());
    assert!(!home.folder("run/results.json").exists());
    for file in (PROGRAM.checkpoint)(epoch.parse().unwrap()) {
        assert!(!home.folder("run").join(file).exists());
    }
}
