//! Runs that train to their end, or diverge.

use crate::images::{Noise, write_idx, write_png};
use crate::program::{fails, lines, outcome, result, train, vit};
use serde_json::Value;
use std::fs;
use tempfile::TempDir;

#[test]
fn both_modes_train_the_same_weights() {
    let home = TempDir::new().unwrap();
    let mut digests = Vec::new();
    for mode in ["plain", "release"] {
        let folder = home.path().join(mode);
        let result = result(train(&folder).args(["--mode", mode]));
        digests.push(result["weights_digest"].clone());
        assert!(result["peak_bytes"].as_u64().unwrap() > 0);
        assert!(folder.join("config.json").exists());
        let saved: Value =
            serde_json::from_slice(&fs::read(folder.join("results.json")).unwrap()).unwrap();
        assert_eq!(saved, result);
    }
    assert_eq!(digests[0], digests[1]);
}

#[test]
fn without_a_terminal_an_epoch_is_a_line_on_stderr() {
    let noise = Noise::new();
    let stderr = lines(&mut noise.train("run", 2));
    let epochs: Vec<_> = stderr
        .iter()
        .filter(|line| line.contains("epoch "))
        .collect();
    assert_eq!(epochs.len(), 2, "{stderr:?}");
    for (line, number) in epochs.iter().zip(["1/2", "2/2"]) {
        assert!(line.starts_with("epoch") && line.contains(number), "{line}");
        for part in ["loss", "validation loss", "accuracy", "peak"] {
            assert!(line.contains(part), "{line}");
        }
    }
}

#[test]
fn every_parameter_is_released_at_the_scheduled_rate() {
    let noise = Noise::new();
    noise.train("run", 1).assert().success();
    let log = |name: &str| {
        let file = noise.folder("run/train/epoch-1").join(name);
        fs::read_to_string(file).unwrap()
    };
    assert_eq!(log("Released.log"), "100,1\n".repeat(8));
    assert_eq!(log("Applied_Learning_Rate.log"), log("Learning_Rate.log"));
    assert!(log("Peak_Memory.log").lines().count() == 8);
}

#[test]
fn a_loss_that_is_not_finite_ends_the_run() {
    let noise = Noise::new();
    let mut command = noise.train("run", 50);
    let diverging = command.args(["--optimizer", "sgd", "--lr", "1"]);
    let output = diverging.assert().failure().get_output().clone();
    let stderr = String::from_utf8(output.stderr).unwrap();
    let last = stderr.lines().last().unwrap();
    assert!(
        last.starts_with("error: the loss is NaN in epoch"),
        "{last}"
    );
    assert!(last.contains("--lr"), "{last}");
    assert!(output.stdout.is_empty());
    assert!(!noise.folder("run/results.json").exists());
    let epoch = last.split("epoch ").nth(1).unwrap();
    let epoch = epoch.split(':').next().unwrap();
    let checkpoint = format!("run/checkpoint/model-{epoch}.mpk");
    assert!(!noise.folder(&checkpoint).exists());
}

#[test]
fn every_checkpointing_trains_the_same_weights() {
    let noise = Noise::new();
    let train = |name: &str, args: &[&str]| {
        let result = result(noise.train(name, 2).args(args));
        let settings = fs::read(noise.folder(name).join("config.json")).unwrap();
        let settings: Value = serde_json::from_slice(&settings).unwrap();
        (result, settings["engine"].clone())
    };
    let peak = |result: &Value| result["peak_bytes"].as_u64().unwrap();
    let (plain, _) = train("plain", &["--mode", "plain"]);
    let (kept, _) = train("none", &[]);
    for checkpointing in ["balanced", "blocks", "automatic"] {
        let (result, engine) = train(checkpointing, &["--checkpointing", checkpointing]);
        assert_eq!(outcome(&result), outcome(&plain), "{checkpointing}");
        assert_eq!(engine["checkpointing"], checkpointing);
        assert_eq!(engine["activation_budget"], Value::Null);
        assert!(peak(&result) < peak(&kept), "{checkpointing}: {result}");
    }
    let budget = ["--checkpointing", "automatic", "--activation-budget"];
    let (lowest, engine) = train("no-budget", &[&budget[..], &["0"]].concat());
    assert_eq!(engine["activation_budget"], Value::Null);
    let (ample, engine) = train("budget", &[&budget[..], &["0.5 GiB"]].concat());
    assert_eq!(engine["activation_budget"], 1 << 29);
    assert_eq!(outcome(&ample), outcome(&plain));
    // It has room for every activation.
    assert!(peak(&ample) > peak(&lowest), "{ample} {lowest}");
}

#[test]
fn every_optimizer_trains_alike_in_both_modes() {
    let noise = Noise::new();
    let train = |optimizer: &str, mode: &str| {
        let mut command = noise.train(&format!("{optimizer}-{mode}"), 1);
        result(command.args(["--optimizer", optimizer, "--mode", mode]))
    };
    let optimizers = "adam adam-8bit adamw adamw-8bit stable-adamw radam lion adafactor adalomo came sgd adagrad \
                      rmsprop adan";
    for optimizer in optimizers.split_whitespace() {
        let [plain, release] = ["plain", "release"].map(|mode| train(optimizer, mode));
        assert_eq!(outcome(&plain), outcome(&release), "{optimizer}");
        // In one pass over memory it is the same optimizer.
        if ["adam", "adamw"].contains(&optimizer) {
            let one_pass = train(&format!("{optimizer}-one-pass"), "release");
            assert_eq!(outcome(&plain), outcome(&one_pass), "{optimizer}");
        }
    }
}

#[test]
fn moments_in_8_bits_are_refused_where_there_is_no_pass_for_them() {
    let home = TempDir::new().unwrap();
    let folder = home.path().join("run");
    let mut command = train(&folder);
    command.args(["--optimizer", "adam-8bit", "--backend", "ndarray"]);
    let text = "--optimizer adam-8bit is not for --backend ndarray";
    fails(&mut command, text, &folder);
}

#[test]
fn folders_of_both_kinds_train() {
    let home = TempDir::new().unwrap();
    let idx = home.path().join("idx");
    fs::create_dir(&idx).unwrap();
    write_idx(&idx);
    let classes = home.path().join("classes");
    for number in 0..5u8 {
        write_png(&classes.join(format!("red/{number}.png")), 200 + number);
        write_png(&classes.join(format!("blue/{number}.png")), number);
    }
    for data in [idx, classes] {
        let run = data.with_extension("run");
        let result = result(
            vit()
                .args(["train", "--epochs", "1", "--json", "--data"])
                .arg(&data)
                .arg("--artifact-dir")
                .arg(&run),
        );
        assert_eq!(result["epochs"], 1);
    }
}
