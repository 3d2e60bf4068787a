//! Interrupted runs and their resumption.

use crate::images;
use crate::program::{Home, fails, lines, outcome, result, resume};
use std::fs;
use std::path::Path;
use std::process::{Child, Command as Process, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

fn spawn(args: Vec<String>) -> Child {
    Process::new(assert_cmd::cargo::cargo_bin("lean-vit"))
        .args(args)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

fn wait_for(path: &Path) {
    let start = Instant::now();
    while !path.exists() {
        assert!(
            start.elapsed() < Duration::from_secs(120),
            "{}",
            path.display()
        );
        sleep(Duration::from_millis(1));
    }
}

#[test]
fn resuming_gives_the_weights_of_the_uninterrupted_run() {
    let home = Home::new();
    let whole = result(&mut home.train("whole", 3));
    // Each mode is resumed by the other.
    for (stop, before, after, continues) in [
        ("3", "release", "plain", "begins with the first epoch"),
        ("9", "plain", "release", "from the checkpoint of epoch 1"),
        ("21", "release", "plain", "from the checkpoint of epoch 2"),
    ] {
        let folder = home.folder(stop);
        let mut stopped = home.train(stop, 3);
        let said = lines(stopped.args(["--stop-after", stop, "--mode", before]));
        assert!(said.last().unwrap().contains(continues), "{said:?}");
        assert!(!folder.join("results.json").exists());

        let resumed = result(resume(&folder).args(["--mode", after]));
        assert_eq!(outcome(&resumed), outcome(&whole), "stopped at {stop}");
        assert!(!folder.join("checkpoint/epoch-1").exists());
        assert!(folder.join("checkpoint/epoch-3").exists());
    }
    // After the last epoch nothing is left to train.
    let again = result(&mut resume(&home.folder("whole")));
    assert_eq!(outcome(&again), outcome(&whole));
}

#[cfg(unix)]
#[test]
fn a_killed_run_gives_the_weights_of_the_uninterrupted_one() {
    use std::os::unix::process::ExitStatusExt;
    let home = Home::new();
    let whole = result(&mut home.train("whole", 4));
    let folder = home.folder("killed");
    for (checkpoint, is_first) in [("epoch-1", true), ("epoch-2", false)] {
        let mut args = home.args("killed", 4);
        if !is_first {
            args.push("--resume".into());
        }
        let mut child = spawn(args);
        wait_for(&folder.join("checkpoint").join(checkpoint));
        child.kill().unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(9));
    }
    // As if it had been killed while it saved.
    let unfinished = folder.join("checkpoint/unfinished");
    fs::create_dir_all(&unfinished).unwrap();
    fs::write(unfinished.join("model.bpk"), "half").unwrap();

    let resumed = result(&mut resume(&folder));
    assert_eq!(outcome(&resumed), outcome(&whole));
    assert!(!unfinished.exists());
}

#[test]
fn a_folder_is_used_by_one_program_at_a_time() {
    let home = Home::new();
    let folder = home.folder("run");
    let mut child = spawn(home.args("run", 5000));
    wait_for(&folder.join("config.json"));
    let way_out = ["another program (process ", "--artifact-dir"];
    fails(&mut home.train("run", 1), &way_out);
    fails(home.train("run", 1).arg("--overwrite"), &way_out);
    fails(&mut resume(&folder), &way_out);
    child.kill().unwrap();
    child.wait().unwrap();
    // The lock ends with its program.
    home.train("run", 1).arg("--overwrite").assert().success();
}

#[test]
fn a_damaged_checkpoint_is_named_with_the_way_out() {
    let home = Home::new();
    let folder = home.folder("run");
    let whole = result(&mut home.train("whole", 3));
    let mut stopped = home.train("run", 3);
    stopped.args(["--stop-after", "17"]).assert().success();
    let newest = folder.join("checkpoint/epoch-2");
    for (file, bytes) in [
        ("model.bpk", None),
        ("optim.bpk", Some("no record")),
        ("state.json", Some("{")),
    ] {
        let file = newest.join(file);
        let before = fs::read(&file).unwrap();
        let bytes = match bytes {
            Some(bytes) => bytes.as_bytes().to_vec(),
            // One flipped bit.
            None => {
                let mut bytes = before.clone();
                let middle = bytes.len() / 2;
                bytes[middle] ^= 1;
                bytes
            }
        };
        fs::write(&file, bytes).unwrap();
        let name = file.file_name().unwrap().to_str().unwrap();
        fails(
            &mut resume(&folder),
            &["epoch-2 is damaged", "after epoch 1", "--overwrite", name],
        );
        fs::write(&file, before).unwrap();
    }
    // As kept to save space. What was kept stays.
    fs::remove_file(newest.join("optim.bpk")).unwrap();
    let missing = ["epoch-2 is damaged", "after epoch 1", "optim.bpk"];
    fails(&mut resume(&folder), &missing);
    assert!(newest.join("model.bpk").exists());
    fs::remove_dir_all(newest).unwrap();
    let resumed = result(&mut resume(&folder));
    assert_eq!(outcome(&resumed), outcome(&whole));

    fs::write(folder.join("config.json"), "{}").unwrap();
    let unreadable = ["config.json cannot be read", "--artifact-dir"];
    fails(&mut resume(&folder), &unreadable);
}

#[test]
fn a_checkpoint_of_another_run_is_refused() {
    let home = Home::new();
    for (name, seed) in [("run", "42"), ("other", "7")] {
        let mut stopped = home.train(name, 2);
        stopped.args(["--stop-after", "9", "--seed", seed]);
        stopped.assert().success();
    }
    let checkpoint = |name: &str| home.folder(name).join("checkpoint/epoch-1");
    for entry in fs::read_dir(checkpoint("other")).unwrap() {
        let file = entry.unwrap();
        fs::copy(file.path(), checkpoint("run").join(file.file_name())).unwrap();
    }
    let refusal = [
        "epoch-1 was saved by a run with other settings",
        "--overwrite",
    ];
    fails(&mut resume(&home.folder("run")), &refusal);
    let output = resume(&home.folder("run")).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    // Nothing has happened to it.
    assert!(!said.contains("damaged"), "{said}");
}

/// As on another machine. What the images are is compared, not where.
#[test]
fn a_run_is_resumed_with_its_images_elsewhere() {
    let home = Home::new();
    let whole = result(&mut home.train("whole", 2));
    let mut stopped = home.train("run", 2);
    stopped.args(["--stop-after", "9"]).assert().success();
    let [folder, elsewhere, other] = ["run", "elsewhere", "other"].map(|name| home.folder(name));
    for (folder, seed) in [(&elsewhere, 1), (&other, 2)] {
        fs::create_dir(folder).unwrap();
        images::write(folder, seed, 60, 16);
    }
    let with = |data: &Path| {
        let mut command = resume(&folder);
        command.arg("--data").arg(data);
        command
    };
    let refusal = ["are not those that the run in", "began with"];
    fails(&mut with(&other), &refusal);
    assert_eq!(outcome(&result(&mut with(&elsewhere))), outcome(&whole));
    // What it went on with is what it is resumed with next.
    let settings = fs::read_to_string(folder.join("config.json")).unwrap();
    assert!(settings.contains("/elsewhere\""), "{settings}");
}

#[test]
fn the_command_that_goes_on_can_be_pasted_into_a_shell() {
    let home = Home::new();
    let said = lines(home.train("my run", 1).args(["--stop-after", "1"]));
    let folder = home.folder("my run");
    let command = format!(
        "`lean-vit train --resume --artifact-dir '{}'`",
        folder.display()
    );
    assert!(said.last().unwrap().contains(&command), "{said:?}");
}

/// Their fields and so their checkpoints are the same; their sums are not, in the last bits.
#[test]
fn a_run_is_resumed_with_other_operations() {
    let home = Home::new();
    let whole = result(&mut home.train("whole", 3));
    for (before, after) in [("default", "lean"), ("lean", "default")] {
        let mut stopped = home.train(before, 3);
        stopped.args(["--stop-after", "9", "--operations", before]);
        stopped.assert().success();
        let resumed = result(resume(&home.folder(before)).args(["--operations", after]));
        let [loss, of_whole] =
            [&resumed, &whole].map(|result| result["train_loss"].as_f64().unwrap());
        assert!(
            (loss - of_whole).abs() < 1e-3,
            "{before}: {resumed} {whole}"
        );
        // What it went on with is what it is resumed with next.
        let settings = fs::read_to_string(home.folder(before).join("config.json")).unwrap();
        assert!(
            settings.contains(&format!("\"operations\": \"{after}\"")),
            "{settings}"
        );
    }
}

#[test]
fn a_finished_run_is_overwritten_only_if_asked() {
    let home = Home::new();
    let folder = home.folder("run");
    let first = result(&mut home.train("run", 1));
    let files = || {
        let results = fs::read(folder.join("results.json")).unwrap();
        let settings = fs::read(folder.join("config.json")).unwrap();
        let weights = fs::read(folder.join("checkpoint/epoch-1/model.bpk")).unwrap();
        (results, settings, weights)
    };
    let before = files();
    let refusal = ["holds a finished run", "--overwrite", "--artifact-dir"];
    fails(home.train("run", 1).args(["--seed", "7"]), &refusal);
    assert!(files() == before, "the run should be as it was");
    let again = result(home.train("run", 1).args(["--seed", "7", "--overwrite"]));
    assert_ne!(outcome(&again), outcome(&first));
}

#[test]
fn a_run_is_resumed_only_with_its_own_settings() {
    let home = Home::new();
    let folder = home.folder("run");
    fails(&mut resume(&folder), &["nothing to resume"]);
    assert!(!folder.exists());

    let mut stopped = home.train("run", 2);
    stopped.args(["--stop-after", "9"]).assert().success();
    let before = fs::read(folder.join("config.json")).unwrap();
    for (args, text) in [
        (["--preset", "small"], "--preset tiny, not small"),
        (["--epochs", "9"], "--epochs 2, not 9"),
        (["--lr", "0.1"], "--lr 0.002, not 0.1"),
        (["--optimizer", "sgd"], "--optimizer adamw, not sgd"),
        (["--seed", "7"], "--seed 42, not 7"),
    ] {
        fails(resume(&folder).args(args), &[text]);
    }
    assert_eq!(fs::read(folder.join("config.json")).unwrap(), before);
    // A new run does not overwrite it.
    fails(&mut home.train("run", 2), &["--resume", "--overwrite"]);
}
