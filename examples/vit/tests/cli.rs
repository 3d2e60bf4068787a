//! The program as a user meets it: what it writes, where, and with which exit code.

use assert_cmd::Command;
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::{Command as Process, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};
use tempfile::TempDir;

fn vit() -> Command {
    Command::cargo_bin("vit").expect("the binary is built with the tests")
}

/// A short run on the bundled digits.
fn train(folder: &Path) -> Command {
    let mut command = vit();
    command
        .args(["train", "--json", "--epochs", "2", "--batch-size", "256"])
        .args(["--dropout", "0.1", "--artifact-dir"])
        .arg(folder);
    command
}

fn result(command: &mut Command) -> Value {
    let output = command.assert().success().get_output().stdout.clone();
    let text = String::from_utf8(output).unwrap();
    serde_json::from_str(text.lines().last().unwrap()).unwrap()
}

/// Fails with one line that mentions `text`, and leaves `untouched` as it never was.
fn fails(command: &mut Command, text: &str, untouched: &Path) {
    let output = command.assert().failure().get_output().clone();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.starts_with("error: "), "{stderr:?}");
    assert_eq!(stderr.lines().count(), 1, "{stderr:?}");
    assert!(stderr.contains(text), "{stderr:?} should mention {text:?}");
    assert!(output.stdout.is_empty());
    assert!(!untouched.exists(), "nothing should have been written");
}

fn idx(dims: &[u32], elements: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0, 0, 8, dims.len() as u8];
    for size in dims {
        bytes.extend(size.to_be_bytes());
    }
    bytes.extend(elements);
    bytes
}

/// Two images and their labels under MNIST's names, to train and to validate.
fn write_idx(folder: &Path) {
    for part in ["train", "t10k"] {
        let image = |what: &str| folder.join(format!("{part}-{what}-ubyte"));
        fs::write(image("images-idx3"), idx(&[2, 4, 4], &[7; 32])).unwrap();
        fs::write(image("labels-idx1"), idx(&[2], &[0, 1])).unwrap();
    }
}

fn write_png(file: &Path, level: u8) {
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    image::RgbImage::from_pixel(4, 4, image::Rgb([level, 0, 255 - level]))
        .save(file)
        .unwrap();
}

#[test]
fn resuming_gives_the_weights_of_the_uninterrupted_run() {
    let home = TempDir::new().unwrap();
    let whole = result(&mut train(&home.path().join("whole")));

    // In the middle of an epoch, and exactly at its end, before it was validated; in the other
    // mode too, which leaves the same weights.
    for (stop, mode) in [("3", "release"), ("6", "release"), ("9", "plain")] {
        let folder = home.path().join(stop);
        train(&folder)
            .args(["--stop-after", stop])
            .assert()
            .success();
        let resumed = result(
            vit()
                .args([
                    "train",
                    "--json",
                    "--resume",
                    "--mode",
                    mode,
                    "--artifact-dir",
                ])
                .arg(&folder),
        );
        for key in [
            "weights_digest",
            "validation_accuracy",
            "train_loss",
            "epochs",
        ] {
            assert_eq!(resumed[key], whole[key], "{key} after a stop at {stop}");
        }
        let left: Vec<_> = fs::read_dir(&folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| name.starts_with("unfinished") || name.starts_with("checkpoint"))
            .collect();
        assert_eq!(left, ["checkpoint-00000012"]);
    }
}

#[test]
fn both_modes_train_the_same_weights() {
    let home = TempDir::new().unwrap();
    let mut digests = Vec::new();
    for mode in ["plain", "release"] {
        let folder = home.path().join(mode);
        let result = result(train(&folder).args(["--mode", mode]));
        digests.push(result["weights_digest"].clone());
        assert!(folder.join("config.json").exists());
        assert!(folder.join("results.json").exists());
    }
    assert_eq!(digests[0], digests[1]);
}

#[cfg(unix)]
#[test]
fn ctrl_c_leaves_a_checkpoint() {
    let home = TempDir::new().unwrap();
    let folder = home.path().join("run");
    let mut child = Process::new(assert_cmd::cargo::cargo_bin("vit"))
        .args(["train", "--epochs", "1000", "--artifact-dir"])
        .arg(&folder)
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let start = Instant::now();
    while !folder.join("config.json").exists() {
        assert!(start.elapsed() < Duration::from_secs(60));
        sleep(Duration::from_millis(20));
    }
    let kill = Process::new("kill")
        .args(["-INT", &child.id().to_string()])
        .status()
        .unwrap();
    assert!(kill.success());
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let names: Vec<_> = fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(
        names
            .iter()
            .filter(|n| n.starts_with("checkpoint-"))
            .count(),
        1
    );
    assert!(!names.iter().any(|name| name.starts_with("unfinished")));

    // It is not lost by forgetting --resume.
    vit()
        .args(["train", "--artifact-dir"])
        .arg(&folder)
        .assert()
        .failure();
}

#[test]
fn bench_measures_each_mode() {
    let output = vit()
        .args([
            "bench",
            "--steps",
            "3",
            "--batch-size",
            "1",
            "--repeat",
            "2",
            "--json",
        ])
        .assert()
        .success()
        .get_output()
        .stdout
        .clone();
    let runs: Vec<Value> = String::from_utf8(output)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let modes: Vec<_> = runs
        .iter()
        .map(|run| run["mode"].as_str().unwrap())
        .collect();
    assert_eq!(modes, ["plain", "release", "plain", "release"]);
    for run in &runs {
        assert_eq!(run["weights_digest"], runs[0]["weights_digest"]);
        assert_eq!(run["final_loss"], runs[0]["final_loss"]);
        assert_eq!(run["step_seconds"].as_array().unwrap().len(), 3);
        let bytes = |key: &str| run[key].as_u64().unwrap();
        assert!(bytes("optimizer_state_bytes") >= 2 * bytes("parameter_bytes"));
        assert!(bytes("activation_bytes") > 0);
        assert!(bytes("peak_bytes") > bytes("parameter_bytes") + bytes("optimizer_state_bytes"));
        assert!(bytes("largest_gradient_bytes") < bytes("parameter_bytes"));
    }
    let peak = |run: usize| runs[run]["peak_bytes"].as_u64().unwrap();
    assert!(peak(1) < peak(0), "release {} plain {}", peak(1), peak(0));
}

#[test]
fn bench_has_a_table_and_balanced_checkpointing() {
    let output = vit()
        .args([
            "bench",
            "--steps",
            "2",
            "--batch-size",
            "2",
            "--checkpointing",
            "balanced",
        ])
        .assert()
        .success()
        .get_output()
        .stdout
        .clone();
    let text = String::from_utf8(output).unwrap();
    assert!(text.contains("ideal peak"), "{text}");
    assert!(text.contains("median of paired runs"), "{text}");
}

#[test]
fn every_optimizer_trains_alike_in_both_modes() {
    for optimizer in ["adam", "adamw", "sgd", "adagrad", "rmsprop", "adan"] {
        let output = vit()
            .args(["bench", "--steps", "2", "--batch-size", "2", "--json"])
            .args(["--optimizer", optimizer])
            .assert()
            .success()
            .get_output()
            .stdout
            .clone();
        let text = String::from_utf8(output).unwrap();
        let digests: Vec<Value> = text
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).unwrap()["weights_digest"].clone())
            .collect();
        assert_eq!(digests.len(), 2);
        assert_eq!(digests[0], digests[1], "{optimizer}");
    }
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
        let run = home.path().join("run");
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

#[test]
fn damaged_idx_files_are_named() {
    let home = TempDir::new().unwrap();
    let images = "train-images-idx3-ubyte";
    let labels = "train-labels-idx1-ubyte";
    let cases: [(&str, Option<Vec<u8>>, &str); 5] = [
        (images, None, "has no file train-images-idx3-ubyte"),
        (
            images,
            Some(idx(&[2, 4, 4], &[7; 31])),
            "cut short: 31 of 32",
        ),
        (labels, Some(idx(&[3], &[0, 1, 0])), "has 2 images but"),
        (
            images,
            Some(idx(&[2], &[0, 1])),
            "labels where images belong",
        ),
        (labels, Some(vec![0x1f, 0x8b, 8, 0]), "gzip"),
    ];
    for (file, content, text) in cases {
        write_idx(home.path());
        let file = home.path().join(file);
        match content {
            Some(content) => fs::write(file, content).unwrap(),
            None => fs::remove_file(file).unwrap(),
        }
        let run = home.path().join("run");
        fails(train(&run).arg("--data").arg(home.path()), text, &run);
    }
}

#[test]
fn bad_input_gets_one_line_and_leaves_nothing() {
    let home = TempDir::new().unwrap();
    let run = home.path().join("run");
    let cases: [(&[&str], &str); 8] = [
        (&["--data", "/nowhere/at/all"], "/nowhere/at/all"),
        (&["--batch-size", "0"], "batch-size"),
        (&["--lr", "0"], "--lr"),
        (&["--lr", "NaN"], "--lr"),
        (&["--dropout", "1"], "--dropout"),
        (&["--optimizer", "muon"], "muon"),
        (&["--image-size", "9"], "patches"),
        (&["--data", "synthetic"], "bench"),
    ];
    for (args, text) in cases {
        let mut command = vit();
        command.args(["train", "--artifact-dir"]).arg(&run);
        fails(command.args(args), text, &run);
    }

    if !Path::new("/usr/share/datasets/fashion-mnist").exists() {
        let fashion = &mut train(&run);
        fashion.args(["--data", "fashion-mnist"]);
        fails(fashion, "package dataset-fashion-mnist", &run);
    }

    let picture = home.path().join("classes/a/1.png");
    write_png(&picture, 1);
    write_png(&home.path().join("classes/b/1.png"), 2);
    fs::write(&picture, "no picture").unwrap();
    let classes = home.path().join("classes");
    fails(train(&run).arg("--data").arg(classes), "a/1.png", &run);
}

#[cfg(not(feature = "cuda"))]
#[test]
fn a_backend_that_is_not_compiled_in_is_named() {
    let home = TempDir::new().unwrap();
    let run = home.path().join("run");
    fails(
        train(&run).args(["--backend", "cuda"]),
        "--features cuda",
        &run,
    );
    let bench = &mut vit();
    fails(
        bench.args(["bench", "--backend", "cuda"]),
        "--features cuda",
        &run,
    );
}

#[test]
fn a_run_is_resumed_only_as_what_it_was() {
    let home = TempDir::new().unwrap();
    let run = home.path().join("run");
    let missing = &mut train(&run);
    fails(missing.arg("--resume"), "nothing to resume", &run);

    train(&run).args(["--stop-after", "1"]).assert().success();
    let before = fs::read(run.join("config.json")).unwrap();
    let other = home.path().join("other");
    let preset = &mut train(&run);
    preset.args(["--resume", "--preset", "small"]);
    fails(preset, "--preset tiny, not small", &other);
    let epochs = &mut vit();
    epochs.args(["train", "--resume", "--epochs", "9", "--artifact-dir"]);
    fails(epochs.arg(&run), "--epochs 2, not 9", &other);
    assert_eq!(fs::read(run.join("config.json")).unwrap(), before);
}

#[test]
fn help_says_what_each_number_is() {
    let output = vit().args(["bench", "--help"]).assert().success();
    let text = String::from_utf8(output.get_output().stdout.clone()).unwrap();
    for word in [
        "activation_bytes",
        "ideal_peak_bytes",
        "MALLOC_MMAP_THRESHOLD_",
    ] {
        assert!(text.contains(word), "{word}");
    }
}
