//! Input that the program refuses in one line, before anything is written.

use crate::images::{idx, write_idx, write_png};
use crate::program::{fails, outcome, result, train, vit};
use std::fs;
use std::path::Path;
use tempfile::TempDir;

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
    let cases: [(&[&str], &str); 28] = [
        // 112 GiB of pixels.
        (
            &["--image-size", "8192"],
            "there is no memory for 1797 images of 8192x8192, which take 115008 MiB: choose a \
             smaller --image-size",
        ),
        (
            &["--epochs", "18446744073709551615"],
            "--epochs 18446744073709551615 of 45 batches each are more than can be counted",
        ),
        (
            &["--epochs", "18446744073709551615", "--batch-size", "1438"],
            "--epochs 18446744073709551615 of 1 batches each are more than can be counted",
        ),
        (
            &["--memory-timeline", "/dev/full"],
            "--memory-timeline takes a file, and /dev/full is none",
        ),
        (
            &["--image-size", "4294967300"],
            "--image-size must be at most 8192",
        ),
        (
            &["--patch-size", "4294967296"],
            "--patch-size must be at most 8192",
        ),
        (
            &["--memory-timeline", "/"],
            "--memory-timeline takes a file, and / is a folder",
        ),
        (
            &["--clip-grad-norm", "0"],
            "--clip-grad-norm must be above 0",
        ),
        (&["--weight-decay", "1"], "--weight-decay must be"),
        (
            &["--optimizer", "lion", "--weight-decay", "0.1"],
            "not for lion",
        ),
        (
            &["--optimizer", "sgd", "--no-decay-on-norms"],
            "not for sgd",
        ),
        (
            &["--mode", "plain", "--clip-grad-norm", "1"],
            "use --mode release",
        ),
        (&["--data", "/nowhere/at/all"], "/nowhere/at/all"),
        (&["--batch-size", "0"], "batch-size"),
        (&["--lr", "0"], "--lr"),
        (&["--lr", "NaN"], "--lr"),
        (&["--dropout", "1"], "--dropout"),
        (&["--optimizer", "muon"], "muon"),
        (&["--image-size", "9"], "patches"),
        (&["--grads-accumulation", "46"], "45 batches"),
        (&["--no-fusion"], "flex never fuses"),
        (&["--checkpointing", "nonsense"], "nonsense"),
        (
            &["--mode", "plain", "--checkpointing", "blocks"],
            "use --mode release, or --checkpointing balanced",
        ),
        (
            &["--mode", "plain", "--checkpointing", "automatic"],
            "use --mode release, or --checkpointing balanced",
        ),
        (
            &["--activation-budget", "1GiB"],
            "--activation-budget is for --checkpointing automatic, not for none",
        ),
        (
            &["--checkpointing", "blocks", "--activation-budget", "1GiB"],
            "--activation-budget is for --checkpointing automatic, not for blocks",
        ),
        (
            &[
                "--checkpointing",
                "automatic",
                "--activation-budget",
                "much",
            ],
            "--activation-budget",
        ),
        (
            &["--checkpointing", "automatic", "--activation-budget", "-1"],
            "-1",
        ),
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
}

/// Attention between so many tokens has terabytes of scores.
#[test]
fn a_step_that_no_memory_holds_is_refused_with_words() {
    let home = TempDir::new().unwrap();
    write_idx(home.path());
    let run = home.path().join("run");
    let mut command = train(&run);
    command.arg("--data").arg(home.path());
    let text = "there is no memory to train on images of 1024x1024 in 262145 tokens";
    fails(command.args(["--image-size", "1024"]), text, &run);
}

/// A batch of all images.
#[test]
fn a_batch_may_be_larger_than_the_data() {
    let home = TempDir::new().unwrap();
    let [all, more] = ["1438", "4294967296"].map(|size| {
        let mut command = vit();
        command
            .args(["train", "--json", "--epochs", "1", "--batch-size", size])
            .arg("--artifact-dir")
            .arg(home.path().join(size));
        result(&mut command)
    });
    assert_eq!(outcome(&all), outcome(&more));
}

/// Nobody writes to it: to open it would wait for ever.
#[cfg(unix)]
#[test]
fn a_pipe_is_no_image() {
    let home = TempDir::new().unwrap();
    let data = home.path().join("data");
    for class in ["a", "b"] {
        fs::create_dir_all(data.join(class)).unwrap();
        let pipe = data.join(class).join("1.png");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status();
        assert!(made.unwrap().success());
    }
    let run = home.path().join("run");
    fails(
        train(&run).arg("--data").arg(&data),
        "1.png is not a file",
        &run,
    );
}

#[cfg(unix)]
#[test]
fn a_pipe_is_no_idx_file() {
    let home = TempDir::new().unwrap();
    let data = home.path().join("data");
    fs::create_dir(&data).unwrap();
    write_idx(&data);
    let pipe = data.join("train-images-idx3-ubyte");
    fs::remove_file(&pipe).unwrap();
    let made = std::process::Command::new("mkfifo").arg(&pipe).status();
    assert!(made.unwrap().success());
    let run = home.path().join("run");
    fails(
        train(&run).arg("--data").arg(&data),
        "train-images-idx3-ubyte is not a file",
        &run,
    );
}

/// In a folder of the system where nobody may write, not even root.
#[cfg(target_os = "linux")]
#[test]
fn where_nobody_may_write_is_told_by_its_own_exit_code() {
    for (folder, text) in [
        ("/sys/vit/run", "error: cannot write to /sys/vit/run: "),
        ("/sys/kernel", "error: cannot lock /sys/kernel/lock: "),
    ] {
        let output = train(Path::new(folder)).assert().code(74);
        let said = String::from_utf8(output.get_output().stderr.clone()).unwrap();
        assert!(said.starts_with(text), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
}

#[test]
fn a_finished_run_is_not_overwritten() {
    let home = TempDir::new().unwrap();
    let results = home.path().join("results.json");
    result(&mut train(home.path()));
    let before = fs::read(&results).unwrap();
    let output = train(home.path()).assert().failure().get_output().clone();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        said.contains("holds a finished run") && said.contains("--overwrite"),
        "{said}"
    );
    assert_eq!(fs::read(&results).unwrap(), before);
    result(train(home.path()).arg("--overwrite"));
}

/// As a run of `lean-vit`, whose checkpoints are folders.
#[test]
fn the_run_of_another_program_stays() {
    let home = TempDir::new().unwrap();
    let settings = home.path().join("config.json");
    let other = r#"{"preset":"tiny","engine":{"device":"cpu","mode":"release"},"epochs":3}"#;
    fs::write(&settings, other).unwrap();
    let checkpoint = home.path().join("checkpoint/epoch-3/model.bpk");
    fs::create_dir_all(checkpoint.parent().unwrap()).unwrap();
    fs::write(&checkpoint, "weights").unwrap();
    let text = "config.json is of another program: choose another --artifact-dir";
    let lock = home.path().join("lock");
    fails(&mut train(home.path()), text, &lock);
    fails(train(home.path()).arg("--overwrite"), text, &lock);
    assert_eq!(fs::read_to_string(&settings).unwrap(), other);
    assert_eq!(fs::read(&checkpoint).unwrap(), b"weights");
}
