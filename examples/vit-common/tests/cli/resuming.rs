//! Interrupted runs and their resumption.

use crate::PROGRAM;
use crate::program::{Home, fails, files, names, outcome, result, spawn, write_images};
use std::cell::OnceCell;
use std::fs;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

#[test]
fn resuming_gives_the_weights_of_the_uninterrupted_run() {
    let home = Home::new();
    let whole = result(&mut home.train("whole", 3));
    let kept = names(&home.folder("whole/checkpoint"));
    for epoch in 1..=3 {
        for file in (PROGRAM.checkpoint)(epoch) {
            let is_kept = home.folder("whole").join(&file).exists();
            assert_eq!(is_kept, epoch > 1, "{file}");
        }
    }

    // They have every entry once.
    let logs = |run: &str| -> Vec<String> {
        let logs = files(&home.folder(run)).into_iter();
        let logs = logs.filter(|(file, _)| PROGRAM.logs.iter().any(|log| file.ends_with(log)));
        logs.map(|(_, bytes)| String::from_utf8(bytes).unwrap())
            .collect()
    };
    assert_eq!(logs("whole").len(), 2 * 3 * PROGRAM.logs.len());

    // Stops in the middle of the first epoch, at its end, and in the middle
    // of later ones; each mode is resumed by the other.
    for (stop, before, after, continues) in [
        (3, "release", "release", "begins with the first epoch"),
        (8, "plain", "release", PROGRAM.after_an_epoch),
        (
            13,
            "release",
            "plain",
            "continues from the checkpoint of epoch 1",
        ),
        (
            21,
            "plain",
            "release",
            "continues from the checkpoint of epoch 2",
        ),
    ] {
        let name = format!("stopped at {stop}");
        let said = home.stop(&name, 3, stop, &["--mode", before]);
        // The folder is as a shell takes it.
        let command = format!(
            "`{} train --resume --artifact-dir '{}'` {continues}",
            PROGRAM.name,
            home.folder(&name).display()
        );
        assert!(
            said.contains(&command),
            "{said:?} should mention {command:?}"
        );
        let resumed = result(home.resume(&name).args(["--mode", after]));
        assert_eq!(outcome(&resumed), outcome(&whole), "{name}");
        assert_eq!(names(&home.folder(&name).join("checkpoint")), kept);
        assert_eq!(logs(&name), logs("whole"), "{name}");
    }

    // As if killed after the last epoch, before the results: nothing is left to train.
    fs::remove_file(home.folder("whole/results.json")).unwrap();
    let again = result(&mut home.resume("whole"));
    assert_eq!(outcome(&again), outcome(&whole));
}

/// Starts or resumes a run, and kills it as soon as `now` returns true. Returns whether it was
/// killed before it ended.
#[cfg(unix)]
fn kill(run: &mut Command, now: impl Fn() -> bool) -> bool {
    use std::os::unix::process::ExitStatusExt;
    let mut run = spawn(run);
    while !now() && run.try_wait().unwrap().is_none() {
        sleep(Duration::from_micros(50));
    }
    let _ = run.kill();
    run.wait().unwrap().signal() == Some(9)
}

#[cfg(unix)]
#[test]
fn a_run_killed_again_and_again_gives_the_weights_of_the_uninterrupted_one() {
    let home = Home::new();
    let start = Instant::now();
    let whole = result(&mut home.train("whole", 8));
    let epoch_time = start.elapsed() / 8;
    let clock = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let mut delays = Vec::new();
    for epoch in 1..=3 {
        // A random time within the next epoch.
        let delay = epoch_time.mul_f64(f64::from(clock.subsec_nanos() % (40 + epoch)) / 44.0);
        delays.push(delay);
        let saved = home.folder("run").join(PROGRAM.saved(epoch as usize));
        let seen = OnceCell::new();
        let mut run = home.train("run", 8);
        run.args((epoch > 1).then_some("--resume"));
        let killed = kill(&mut run, || {
            saved.exists() && seen.get_or_init(Instant::now).elapsed() > delay
        });
        assert!(killed, "it had ended {delay:?} after epoch {epoch}");
    }
    let resumed = result(&mut home.resume("run"));
    assert_eq!(
        outcome(&resumed),
        outcome(&whole),
        "killed after {delays:?}"
    );
}

#[cfg(unix)]
#[test]
fn a_run_killed_while_it_saves_gives_the_weights_of_the_uninterrupted_one() {
    let home = Home::new();
    let whole = result(&mut home.train("whole", 3));
    let folder = home.folder("run");
    for unfinished in PROGRAM.unfinished {
        let unfinished = folder.join(unfinished);
        // The file exists for a short time: not every attempt sees it.
        let killed = (0..20).any(|_| {
            let _ = fs::remove_dir_all(&folder);
            kill(&mut home.train("run", 3), || unfinished.exists()) && unfinished.exists()
        });
        assert!(killed, "never while there was {}", unfinished.display());
        let resumed = result(&mut home.resume("run"));
        assert_eq!(outcome(&resumed), outcome(&whole));
        let left = names(&folder.join("checkpoint"));
        assert_eq!(left, names(&home.folder("whole/checkpoint")));
    }
}

#[test]
fn a_file_that_is_not_as_it_was_saved_is_not_trained_on() {
    let home = Home::new();
    let folder = home.folder("run");
    let whole = result(&mut home.train("whole", 3));
    home.stop("run", 3, 17, &[]);
    let newest = (PROGRAM.checkpoint)(2).map(|file| folder.join(file));
    let flip_a_bit = |bytes: &[u8]| {
        let mut bytes = bytes.to_vec();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 4;
        bytes
    };
    for file in &newest {
        let whole = fs::read(file).unwrap();
        for bytes in [
            flip_a_bit(&whole),
            b"no record".to_vec(),
            b"{".to_vec(),
            Vec::new(),
        ] {
            fs::write(file, bytes).unwrap();
            let name = file.file_name().unwrap().to_str().unwrap();
            let way_out = [name, "the checkpoint of epoch 1 is whole"];
            let texts = [&way_out[..], PROGRAM.damaged].concat();
            fails(&mut home.resume("run"), &texts);
        }
        fs::write(file, whole).unwrap();
    }
    // As the message says.
    for file in newest {
        fs::remove_file(file).unwrap();
    }
    let _ = fs::remove_dir(folder.join("checkpoint/epoch-2"));
    assert_eq!(outcome(&result(&mut home.resume("run"))), outcome(&whole));
}

#[test]
fn a_checkpoint_of_another_run_is_refused() {
    let home = Home::new();
    home.stop("run", 2, 9, &[]);
    for more in [["--seed", "7"], ["--optimizer", "adam"], ["--pool", "mean"]] {
        let other = home.folder(more[0]);
        home.stop(more[0], 2, 9, &more);
        for (file, bytes) in files(&other.join("checkpoint")) {
            let file = file.strip_prefix(&other).unwrap();
            fs::write(home.folder("run").join(file), bytes).unwrap();
        }
        let texts = ["was saved by a run with other settings", "start anew"];
        let (_, said) = fails(&mut home.resume("run"), &texts);
        // Nothing has happened to it.
        assert!(!said.contains("damaged"), "{said}");
    }
}

/// As on another machine. What the images are is compared, not where.
#[test]
fn a_run_is_resumed_with_its_images_elsewhere() {
    let home = Home::new();
    let whole = result(&mut home.train("whole", 2));
    home.stop("run", 2, 9, &[]);
    let resume = |name: &str, seed| {
        let folder = home.folder(name);
        write_images(&folder, seed, [60, 16]);
        let mut command = home.resume("run");
        command.arg("--data").arg(folder);
        command
    };
    fails(
        &mut resume("other", 2),
        &["are not those that the run in", "began with"],
    );
    assert_eq!(
        outcome(&result(&mut resume("elsewhere", 1))),
        outcome(&whole)
    );
    // What it went on with is what it is resumed with next.
    let elsewhere = home.folder("elsewhere");
    assert_eq!(home.settings("run")["data"], elsewhere.to_str().unwrap());
}

#[test]
fn a_run_is_resumed_only_with_its_own_settings() {
    let home = Home::new();
    home.stop("run", 2, 9, &[]);
    let before = files(&home.folder("run"));
    for (args, text) in [
        (["--preset", "small"], "--preset tiny, not small"),
        (["--epochs", "9"], "--epochs 2, not 9"),
        (["--lr", "0.1"], "--lr 0.002, not 0.1"),
        (["--optimizer", "sgd"], "--optimizer adamw, not sgd"),
        (["--seed", "7"], "--seed 42, not 7"),
    ] {
        fails(home.resume("run").args(args), &[text]);
    }
    fails(&mut home.resume("new"), &["nothing to resume"]);
    assert!(!home.folder("new").exists());
    assert!(files(&home.folder("run")) == before, "it is as it was");
}
