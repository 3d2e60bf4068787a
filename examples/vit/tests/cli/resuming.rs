//! Interrupted runs and their resumption.

use crate::images::Noise;
use crate::program::{fails, lines, names, outcome, result, resume, train, vit};
use serde_json::Value;
use std::cell::OnceCell;
use std::fs;
use std::io::Write;
use std::process::{Command as Process, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tempfile::TempDir;

#[test]
fn resuming_gives_the_weights_of_the_uninterrupted_run() {
    let noise = Noise::new();
    let whole = result(&mut noise.train("whole", 3));

    // Stops in the middle of the first epoch, at its end before the validation, and in the middle
    // of later ones; each mode is resumed by the other.
    for (stop, before, after, continues) in [
        ("3", "release", "release", "begins with the first epoch"),
        ("8", "plain", "release", "begins with the first epoch"),
        ("13", "release", "plain", "from the checkpoint of epoch 1"),
        ("21", "plain", "release", "from the checkpoint of epoch 2"),
    ] {
        let folder = noise.folder(stop);
        let mut stopped = noise.train(stop, 3);
        let said = lines(stopped.args(["--stop-after", stop, "--mode", before]));
        assert!(said.last().unwrap().contains(continues), "{said:?}");
        assert!(!folder.join("results.json").exists());

        let resumed = result(resume(&folder).args(["--mode", after]));
        assert_eq!(outcome(&resumed), outcome(&whole), "stopped at {stop}");
        let checkpoints = names(&folder.join("checkpoint"));
        let newest = ["model", "optim", "scheduler"]
            .map(|part| [2, 3].map(|epoch| format!("{part}-{epoch}.mpk")));
        let with_checksum = |file: &String| [file.clone(), format!("{file}.sha256")];
        let newest: Vec<_> = newest
            .as_flattened()
            .iter()
            .flat_map(with_checksum)
            .collect();
        assert_eq!(checkpoints, newest);

        // The logs have every entry once.
        for log in ["train", "valid"] {
            for file in ["Loss.log", "Accuracy.log"] {
                for epoch in ["epoch-1", "epoch-2", "epoch-3"] {
                    let log = |run: &str| noise.folder(run).join(log).join(epoch).join(file);
                    let [resumed, whole] = [stop, "whole"].map(|run| fs::read(log(run)).unwrap());
                    assert_eq!(resumed, whole, "{epoch}/{file} after a stop at {stop}");
                }
            }
        }
    }
}

/// As the papers train a vision transformer: decay groups and clipping by the global norm.
#[test]
fn decay_groups_and_clipping_are_resumed() {
    let noise = Noise::new();
    let recipe = [
        "--weight-decay",
        "0.3",
        "--no-decay-on-norms",
        "--clip-grad-norm",
        "0.5",
    ];
    let digest = |args: &[&str]| result(noise.train("other", 2).args(args).arg("--overwrite"));
    let whole = result(noise.train("whole", 2).args(recipe));
    // Each of the three does something.
    for left_out in [&recipe[..2], &recipe[..3], &recipe[2..], &recipe[3..]] {
        assert_ne!(
            digest(left_out)["weights_digest"],
            whole["weights_digest"],
            "{left_out:?}"
        );
    }
    let norms = noise.folder("whole/train/epoch-1/Gradient_Norm.log");
    assert_eq!(fs::read_to_string(norms).unwrap().lines().count(), 8);

    let folder = noise.folder("stopped");
    noise
        .train("stopped", 2)
        .args(recipe)
        .args(["--stop-after", "13"])
        .assert()
        .success();
    let resumed = result(&mut resume(&folder));
    assert_eq!(outcome(&resumed), outcome(&whole));

    let mut other = resume(&folder);
    other.args(["--clip-grad-norm", "2"]);
    let output = other.assert().failure().get_output().clone();
    let stderr = String::from_utf8(output.stderr).unwrap();
    let refusal = "has --clip-grad-norm 0.5, not 2";
    assert!(stderr.contains(refusal), "{stderr}");
}

#[test]
fn accumulation_is_resumed_in_either_mode() {
    let noise = Noise::new();
    let train = |name: &str, mode: &str| {
        let mut command = noise.train(name, 2);
        command.args(["--grads-accumulation", "3", "--mode", mode]);
        command
    };
    let plain = result(&mut train("plain", "plain"));
    let release = result(&mut train("release", "release"));
    assert_eq!(outcome(&plain), outcome(&release));
    let mut automatic = train("automatic", "release");
    automatic.args(["--checkpointing", "automatic"]);
    assert_eq!(outcome(&result(&mut automatic)), outcome(&plain));
    let every_batch = result(&mut noise.train("every-batch", 2));
    assert_ne!(plain["weights_digest"], every_batch["weights_digest"]);

    for (before, after) in [("plain", "release"), ("release", "plain")] {
        let name = format!("from-{before}");
        let mut stopped = train(&name, before);
        stopped.args(["--stop-after", "12"]).assert().success();
        let resumed = result(resume(&noise.folder(&name)).args(["--mode", after]));
        assert_eq!(outcome(&resumed), outcome(&plain));
    }
}

#[test]
fn a_run_is_resumed_with_any_checkpointing() {
    let noise = Noise::new();
    let whole = result(&mut noise.train("whole", 3));
    let engine = |name: &str| {
        let settings = fs::read(noise.folder(name).join("config.json")).unwrap();
        let settings: Value = serde_json::from_slice(&settings).unwrap();
        settings["engine"].clone()
    };
    let automatic = "--checkpointing automatic --activation-budget 1MiB";
    for (name, before, after, checkpointing, budget) in [
        // Without an option it keeps its own.
        ("kept", automatic, "", "automatic", Some(1 << 20)),
        (
            "another",
            automatic,
            "--activation-budget 2MiB",
            "automatic",
            Some(2 << 20),
        ),
        (
            "none",
            automatic,
            "--activation-budget 0",
            "automatic",
            None,
        ),
        (
            "to-blocks",
            automatic,
            "--checkpointing blocks",
            "blocks",
            None,
        ),
        (
            "to-automatic",
            "--mode plain --checkpointing balanced",
            "--mode release --checkpointing automatic",
            "automatic",
            None,
        ),
        (
            "to-plain",
            "--checkpointing blocks",
            "--mode plain --checkpointing none",
            "none",
            None,
        ),
    ] {
        let mut stopped = noise.train(name, 3);
        stopped.args(["--stop-after", "13"]);
        stopped.args(before.split_whitespace()).assert().success();
        let resumed = result(resume(&noise.folder(name)).args(after.split_whitespace()));
        assert_eq!(outcome(&resumed), outcome(&whole), "{name}");
        let engine = engine(name);
        assert_eq!(engine["checkpointing"], checkpointing, "{name}");
        assert_eq!(engine["activation_budget"].as_u64(), budget, "{name}");
    }

    // Plain Burn cannot go on with what it cannot do.
    let mut stopped = noise.train("blocks", 3);
    stopped.args(["--stop-after", "13", "--checkpointing", "blocks"]);
    stopped.assert().success();
    let before = fs::read(noise.folder("blocks/config.json")).unwrap();
    let mut plain = resume(&noise.folder("blocks"));
    let way_out = "--checkpointing balanced with --mode plain";
    fails(
        plain.args(["--mode", "plain"]),
        way_out,
        &noise.folder("other"),
    );
    let after = fs::read(noise.folder("blocks/config.json")).unwrap();
    assert_eq!(after, before);
}

#[cfg(unix)]
#[test]
fn a_run_killed_again_and_again_gives_the_weights_of_the_uninterrupted_one() {
    let noise = Noise::new();
    let start = Instant::now();
    let whole = result(&mut noise.train("whole", 8));
    let epoch_time = start.elapsed() / 8;
    let folder = noise.folder("killed");
    let clock = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let mut delays = Vec::new();
    for epoch in 1..=4 {
        // A random time within the next epoch.
        let delay = epoch_time.mul_f64(f64::from(clock.subsec_nanos() % (40 + epoch)) / 44.0);
        delays.push(delay);
        let saved = folder.join(format!("checkpoint/scheduler-{epoch}.mpk"));
        let seen = OnceCell::new();
        let killed = noise.kill("killed", 8, epoch == 1, || {
            saved.exists() && seen.get_or_init(Instant::now).elapsed() > delay
        });
        assert!(killed, "it had ended {delay:?} after epoch {epoch}");
    }
    let resumed = result(&mut resume(&folder));
    assert_eq!(
        outcome(&resumed),
        outcome(&whole),
        "killed after {delays:?}"
    );
}

#[cfg(unix)]
#[test]
fn a_run_killed_while_it_saves_gives_the_weights_of_the_uninterrupted_one() {
    let noise = Noise::new();
    let whole = result(&mut noise.train("whole", 4));
    for part in ["model", "optim"] {
        let folder = noise.folder(part);
        let checkpoints = folder.join("checkpoint");
        let unfinished = checkpoints.join(format!("unfinished-{part}-2.mpk"));
        // The file exists for a short time: not every attempt sees it.
        let killed = (0..20).any(|_| {
            let _ = fs::remove_dir_all(&folder);
            noise.kill(part, 4, true, || unfinished.exists()) && unfinished.exists()
        });
        assert!(killed, "never while {part} was being saved");
        let resumed = result(&mut resume(&folder));
        assert_eq!(outcome(&resumed), outcome(&whole));
        let left = names(&checkpoints);
        assert!(left.iter().all(|name| !name.starts_with("unfinished")));
    }
}

#[test]
fn a_damaged_checkpoint_is_an_error_in_one_line() {
    let noise = Noise::new();
    let mut stopped = noise.train("run", 2);
    stopped.args(["--stop-after", "12"]).assert().success();
    fs::write(noise.folder("run/checkpoint/optim-1.mpk"), "no record").unwrap();
    let output = resume(&noise.folder("run")).assert().failure();
    let stderr = String::from_utf8(output.get_output().stderr.clone()).unwrap();
    let lines: Vec<_> = stderr.lines().collect();
    assert_eq!(lines.len(), 1, "{stderr}");
    assert!(lines[0].starts_with("error: "), "{stderr}");
    assert!(
        lines[0].contains("optim-1.mpk is not as it was saved"),
        "{stderr}"
    );
}

#[test]
fn a_resumed_run_continues_its_early_stopping() {
    let noise = Noise::new();
    let train = |name: &str| {
        let mut command = noise.train(name, 30);
        command.args(["--early-stopping", "2", "--lr", "0.01"]);
        command
    };
    let whole = result(&mut train("whole"));
    let epochs = whole["epochs"].as_u64().unwrap();
    assert!((3..30).contains(&epochs), "{epochs} epochs");

    // Stops in the last epoch: the best one is before the checkpoint.
    let stop = (8 * epochs - 2).to_string();
    let mut stopped = train("stopped");
    stopped.args(["--stop-after", &stop]).assert().success();
    let resumed = result(&mut resume(&noise.folder("stopped")));
    assert_eq!(outcome(&resumed), outcome(&whole));

    // As if killed after the last epoch, before the results: no further epoch is trained.
    fs::remove_file(noise.folder("whole").join("results.json")).unwrap();
    let again = result(&mut resume(&noise.folder("whole")));
    assert_eq!(outcome(&again), outcome(&whole));
}

#[cfg(unix)]
#[test]
fn ctrl_c_names_the_checkpoint_to_resume_from() {
    // The validation takes nearly all the time, so Ctrl-C interrupts it.
    let noise = Noise::with(8, 2000);
    let folder = noise.folder("run");
    let child = Process::new(assert_cmd::cargo::cargo_bin("vit"))
        .args(noise.args("run", 100_000))
        .args(["--mode", "plain"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let start = Instant::now();
    while !folder.join("checkpoint/scheduler-1.mpk").exists() {
        assert!(start.elapsed() < Duration::from_secs(60));
        sleep(Duration::from_millis(5));
    }
    sleep(Duration::from_millis(50));
    let kill = Process::new("kill")
        .args(["-INT", &child.id().to_string()])
        .status()
        .unwrap();
    assert!(kill.success());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    let stderr = String::from_utf8(output.stderr).unwrap();
    let said = stderr.lines().last().unwrap();
    let epoch = said.rsplit(' ').next().unwrap();
    assert!(said.contains("--resume"), "{said}");
    assert!(
        said.contains("continues from the checkpoint of epoch"),
        "{said}"
    );
    assert!(
        folder
            .join(format!("checkpoint/model-{epoch}.mpk"))
            .exists()
    );

    // A checkpoint is kept only if the validation of its epoch is complete.
    let losses = folder.join(format!("valid/epoch-{epoch}/Loss.log"));
    assert_eq!(fs::read_to_string(losses).unwrap().lines().count(), 250);

    // Without --resume the program refuses to overwrite it.
    vit()
        .args(["train", "--artifact-dir"])
        .arg(&folder)
        .assert()
        .failure();
}

#[test]
fn a_run_is_resumed_only_with_its_own_settings() {
    let home = TempDir::new().unwrap();
    let run = home.path().join("run");
    let missing = &mut train(&run);
    fails(missing.arg("--resume"), "nothing to resume", &run);

    train(&run)
        .args(["--stop-after", "1", "--early-stopping", "3"])
        .assert()
        .success();
    let before = fs::read(run.join("config.json")).unwrap();
    let other = home.path().join("other");
    let preset = &mut train(&run);
    preset.args(["--resume", "--preset", "small"]);
    fails(preset, "--preset tiny, not small", &other);
    let epochs = &mut vit();
    epochs.args(["train", "--resume", "--epochs", "9", "--artifact-dir"]);
    fails(epochs.arg(&run), "--epochs 2, not 9", &other);
    for (flag, text) in [
        ("--grads-accumulation", "--grads-accumulation 1, not 2"),
        ("--early-stopping", "--early-stopping 3, not 2"),
    ] {
        fails(resume(&run).args([flag, "2"]), text, &other);
    }
    assert_eq!(fs::read(run.join("config.json")).unwrap(), before);
}

/// As on another machine. What the images are is compared, not where.
#[test]
fn a_run_is_resumed_with_its_images_elsewhere() {
    let noise = Noise::new();
    let whole = result(&mut noise.train("whole", 2));
    let mut stopped = noise.train("run", 2);
    stopped.args(["--stop-after", "13"]).assert().success();
    let (folder, other) = (noise.folder("run"), Noise::with(60, 8));
    let elsewhere = Noise::new();
    let with = |data: &Noise| {
        let mut command = resume(&folder);
        command.arg("--data").arg(data.folder(""));
        command
    };
    let refusal = "are not those that the run in";
    fails(&mut with(&other), refusal, &noise.folder("nothing"));
    assert_eq!(outcome(&result(&mut with(&elsewhere))), outcome(&whole));
    // What it went on with is what it is resumed with next.
    let settings = fs::read(folder.join("config.json")).unwrap();
    let settings: Value = serde_json::from_slice(&settings).unwrap();
    assert_eq!(settings["data"], elsewhere.folder("").to_str().unwrap());
}

/// The states of the optimizer take most of the room.
#[test]
fn weights_that_were_kept_alone_are_not_lost() {
    let noise = Noise::new();
    let whole = result(&mut noise.train("run", 2));
    let folder = noise.folder("run");
    let checkpoints = folder.join("checkpoint");
    for name in names(&checkpoints) {
        if !name.starts_with("model-2") {
            fs::remove_file(checkpoints.join(name)).unwrap();
        }
    }
    let weights = fs::read(checkpoints.join("model-2.mpk")).unwrap();
    let copy = checkpoints.join("model-2.mpk.bak");
    fs::write(&copy, &weights).unwrap();
    assert_eq!(outcome(&result(&mut resume(&folder))), outcome(&whole));
    let aside = folder.join("checkpoint-incomplete");
    assert_eq!(names(&aside), ["model-2.mpk", "model-2.mpk.sha256"]);
    assert_eq!(fs::read(aside.join("model-2.mpk")).unwrap(), weights);
    assert_eq!(fs::read(copy).unwrap(), weights);
}

/// Burn's terminal UI reads Ctrl-C as a key and does nothing.
#[cfg(unix)]
#[test]
fn ctrl_c_stops_a_run_in_the_terminal_ui() {
    let noise = Noise::new();
    let folder = noise.folder("run");
    let vit = env!("CARGO_BIN_EXE_vit");
    let train = format!(
        "{vit} train --epochs 1000000 --artifact-dir {}",
        folder.display()
    );
    for keys in [&b"\x03"[..], b"\x03\x03"] {
        // Gives the program a terminal, of which it is the keyboard.
        let mut script = Process::new("script")
            .args(["--quiet", "--return", "--command", &train, "/dev/null"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let begun = Instant::now();
        while !folder.join("train/epoch-2").exists() {
            assert!(begun.elapsed() < Duration::from_secs(120));
            sleep(Duration::from_millis(50));
        }
        let mut keyboard = script.stdin.take().unwrap();
        keyboard.write_all(keys).unwrap();
        keyboard.flush().unwrap();
        let output = script.wait_with_output().unwrap();
        drop(keyboard);
        assert_eq!(output.status.code(), Some(130));
        let shown = String::from_utf8_lossy(&output.stdout);
        // It was the UI, and the terminal is left as it was.
        let leaves = "\x1b[?1049l";
        assert!(
            shown.contains("\x1b[?1049h") && shown.contains(leaves),
            "{shown}"
        );
        if keys.len() == 1 {
            let after = shown.rsplit(leaves).next().unwrap();
            assert!(
                after.contains("continues from the checkpoint of epoch"),
                "{after}"
            );
        }
        fs::remove_dir_all(&folder).unwrap();
    }
}

/// As `nohup vit train &`, whose terminal is closed.
#[cfg(unix)]
#[test]
fn a_run_that_ignores_a_hangup_outlives_its_terminal() {
    let noise = Noise::new();
    let epochs = 12;
    let whole = result(&mut noise.train("whole", epochs));
    for (launcher, outlives) in [
        (&["nohup"][..], true),
        // Whatever the test was started with.
        (&["env", "--default-signal=HUP"], false),
    ] {
        let name = if outlives { "nohup" } else { "terminal" };
        let program = assert_cmd::cargo::cargo_bin("vit");
        let program = program.to_str().unwrap();
        let words = [launcher, &[program]].concat();
        let child = Process::new(words[0])
            .args(&words[1..])
            .args(noise.args(name, epochs))
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let begun = Instant::now();
        while !noise.folder(name).join("train/epoch-2").exists() {
            assert!(begun.elapsed() < Duration::from_secs(60));
            sleep(Duration::from_millis(1));
        }
        let id = child.id().to_string();
        let kill = Process::new("kill").args(["-HUP", &id]).status();
        assert!(kill.unwrap().success());
        let output = child.wait_with_output().unwrap();
        let ended = String::from_utf8(output.stdout).unwrap();
        match outlives {
            true => {
                let result: Value = serde_json::from_str(ended.trim()).unwrap();
                assert_eq!(outcome(&result), outcome(&whole));
            }
            false => {
                assert_eq!(output.status.code(), Some(130));
                assert_eq!(ended, "");
            }
        }
    }
}

/// As `vit train &` in a shell: the terminal is that of the shell, and would stop a program that
/// takes it.
#[cfg(unix)]
#[test]
fn a_run_in_the_background_leaves_the_terminal_alone() {
    let noise = Noise::new();
    let folder = noise.folder("run");
    let vit = env!("CARGO_BIN_EXE_vit");
    let (data, to) = (noise.folder(""), folder.display());
    let train = format!(
        "{vit} train --epochs 1 --batch-size 8 --data {} --artifact-dir {to}",
        data.display()
    );
    let mut script = Process::new("script")
        .args(["--quiet", "--return", "--command"])
        // Jobs of a shell that has job control have groups of their own.
        .arg(format!("bash -c 'set -m; {train} & wait'"))
        .arg("/dev/null")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let begun = Instant::now();
    let is_done = loop {
        if script.try_wait().unwrap().is_some() {
            break true;
        }
        if begun.elapsed() > Duration::from_secs(60) {
            break false;
        }
        sleep(Duration::from_millis(20));
    };
    if !is_done {
        script.kill().unwrap();
    }
    let output = script.wait_with_output().unwrap();
    let shown = String::from_utf8_lossy(&output.stdout);
    assert!(is_done, "it is stopped: {shown}");
    assert!(shown.contains("epoch   1/1"), "{shown}");
    assert!(!shown.contains("\x1b[?1049h"), "{shown}");
    assert!(folder.join("results.json").exists());
}

/// In a batch that takes a while, and for a run that may be stopping already.
#[cfg(unix)]
#[test]
fn only_a_second_ctrl_c_does_not_wait_for_the_batch() {
    let home = TempDir::new().unwrap();
    let new = ["--epochs", "1"];
    for (name, more, signals, code, waits) in [
        (
            "stops already",
            ["--stop-after", "1"],
            &["-TERM"][..],
            0,
            true,
        ),
        ("hangups", new, &["-HUP", "-HUP", "-TERM"], 130, true),
        ("twice", new, &["-TERM", "-INT"], 130, false),
    ] {
        let folder = home.path().join("a run").join(name);
        // Whatever the test was started with.
        let child = Process::new("env")
            .args(["--default-signal=HUP", env!("CARGO_BIN_EXE_vit"), "train"])
            .args(["--json", "--preset", "small", "--patch-size", "2"])
            .args(["--batch-size", "64"])
            .args(more)
            .arg("--artifact-dir")
            .arg(&folder)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let begun = Instant::now();
        let log = || fs::read_to_string(folder.join("experiment.log")).unwrap_or_default();
        while !log().contains("Iteration 1") {
            assert!(begun.elapsed() < Duration::from_secs(120));
            sleep(Duration::from_millis(5));
        }
        for signal in signals {
            let id = child.id().to_string();
            let kill = Process::new("kill").args([signal, id.as_str()]).status();
            assert!(kill.unwrap().success());
            sleep(Duration::from_millis(50));
        }
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{name}: {said}");
        // As a shell takes it.
        let hint = format!(
            "stopped before the first checkpoint; `vit train --resume --artifact-dir '{}'`",
            folder.display()
        );
        assert_eq!(said.contains(&hint), waits, "{name}: {said}");
    }
}
