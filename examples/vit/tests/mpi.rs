//! Training in several processes.
//!
//! Counts as ignored where no processes can be started together.

use burn_memory_timeline::Snapshot;
use libtest_mimic::{Arguments, Failed, Trial};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Output, Stdio};
use std::sync::{OnceLock, mpsc};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use vit_common::launching::{self, digest, result, said};
use vit_common::small_disk::SmallDisk;

fn main() -> ExitCode {
    let tests: [(&str, fn()); 17] = [
        ("replicas_train_as_one_process_does", replicas_train_as_one),
        ("a_sharded_run_is_resumed", a_sharded_run_is_resumed),
        (
            "an_interruption_of_one_stops_all",
            an_interruption_stops_all,
        ),
        (
            "an_interruption_of_a_finished_run_has_no_effect",
            an_interruption_comes_too_late,
        ),
        ("a_killed_process_ends_all", a_killed_process_ends_all),
        ("clipping_and_accumulation", clipping_and_accumulation),
        ("what_cannot_be_shared_is_refused", what_cannot_be_shared),
        ("no_terminal_is_needed", no_terminal_is_needed),
        ("unequal_shares_are_recomputed", unequal_shares),
        (
            "sharded_states_lower_the_peak",
            sharded_states_lower_the_peak,
        ),
        ("who_fails_says_why", who_fails_says_why),
        ("other_settings_are_refused", other_settings_are_refused),
        (
            "a_run_is_not_overwritten_by_another",
            a_run_is_not_overwritten,
        ),
        (
            "a_process_that_is_stopped_is_not_awaited_for_ever",
            a_stopped_process_is_not_awaited,
        ),
        (
            "an_error_is_printed_before_the_others_answer",
            an_error_is_printed_at_once,
        ),
        (
            "a_memory_timeline_is_that_of_the_first_process",
            a_memory_timeline_of_the_first,
        ),
        (FULL_DISK, a_full_disk_is_told),
    ];
    let is_missing = cfg!(not(feature = "mpi")) || !launching::has_mpirun();
    let tests = tests.map(|(name, test)| {
        let is_missing = is_missing || (name == FULL_DISK && !SmallDisk::can_mount());
        let trial = Trial::test(name, move || -> Result<(), Failed> {
            test();
            Ok(())
        });
        trial.with_ignored_flag(is_missing)
    });
    libtest_mimic::run(&Arguments::from_args(), tests.into()).exit_code()
}

/// The test that also wants to mount a disk.
const FULL_DISK: &str = "a_full_disk_is_told_from_ctrl_c";

fn train(processes: usize, folder: &Path, more: &[&str]) -> Command {
    launching::train(env!("CARGO_BIN_EXE_vit"), processes, folder, more)
}

/// A short run on the bundled digits, whose dropout does not depend on how many processes there
/// are.
const NEW: [&str; 6] = ["--epochs", "2", "--batch-size", "128", "--dropout", "0"];

fn accuracy(result: &Value) -> f64 {
    result["validation_accuracy"].as_f64().unwrap()
}

fn log_of(folder: &Path, name: &str) -> Vec<f64> {
    let text = fs::read_to_string(folder.join("train/epoch-2").join(name)).unwrap();
    let numbers = text
        .lines()
        .map(|line| line.split(',').next().unwrap().parse().unwrap());
    numbers.collect()
}

fn replicas_train_as_one() {
    let home = TempDir::new().unwrap();
    let folder = |name: &str| home.path().join(name);
    let one = result(train(0, &folder("one"), &NEW));
    let alone = result(train(1, &folder("alone"), &NEW));
    assert_eq!(digest(&alone), digest(&one));
    let two = result(train(2, &folder("two"), &NEW));
    let sharded = result(train(2, &folder("sharded"), &sharded()));
    assert_eq!(digest(&sharded), digest(&two));
    // Sums in another order: the last bits are others, and after two epochs a few predictions.
    assert!(
        (accuracy(&two) - accuracy(&one)).abs() < 0.03,
        "{two} {one}"
    );
    let loss = |result: &Value| result["train_loss"].as_f64().unwrap();
    assert!((loss(&two) - loss(&one)).abs() < 0.02, "{two} {one}");
    // The metrics are those of whole batches.
    for metric in ["Loss.log", "Accuracy.log"] {
        let [one, two] = ["one", "two"].map(|run| log_of(&folder(run), metric));
        assert_eq!(one.len(), two.len());
        let near = |(one, two): (&f64, &f64)| (one - two).abs() <= 0.05 * one.abs();
        assert!(one.iter().zip(&two).all(near), "{metric}: {one:?} {two:?}");
    }
}

/// An uninterrupted run of four replicas with sharded states.
fn whole() -> &'static Value {
    static WHOLE: OnceLock<Value> = OnceLock::new();
    WHOLE.get_or_init(|| {
        let home = TempDir::new().unwrap();
        result(train(4, &home.path().join("whole"), &sharded()))
    })
}

fn sharded() -> Vec<&'static str> {
    [NEW.as_slice(), &["--shard-optimizer"]].concat()
}

fn a_sharded_run_is_resumed() {
    let home = TempDir::new().unwrap();
    let folder = |name: &str| home.path().join(name);
    let whole = whole();
    for (name, processes, more) in [
        ("four", 4, &["--shard-optimizer"][..]),
        ("two", 2, &["--shard-optimizer"]),
        ("one", 0, &[]),
        ("plain", 0, &["--mode", "plain"]),
    ] {
        let stopped = [sharded().as_slice(), &["--stop-after", "17"]].concat();
        let output = train(4, &folder(name), &stopped).output().unwrap();
        assert!(output.status.success(), "{}", said(&output));
        assert!(
            said(&output).contains("from the checkpoint of epoch 1"),
            "{}",
            said(&output)
        );
        let resumed = result(train(
            processes,
            &folder(name),
            &[&["--resume"], more].concat(),
        ));
        if processes == 4 {
            assert_eq!(digest(&resumed), digest(whole));
        }
        assert!(
            (accuracy(&resumed) - accuracy(whole)).abs() < 0.03,
            "{name}: {resumed} {whole}"
        );
    }
}

/// Signals one of four sharded replicas once there is a file.
fn signalled(signal: &str, rank: usize, folder: &Path, file: &str) -> (Duration, Output) {
    launching::signalled(
        train(4, folder, &sharded()),
        signal,
        rank,
        &folder.join(file),
    )
}

fn an_interruption_stops_all() {
    let home = TempDir::new().unwrap();
    let folder = |name: &str| home.path().join(name);
    let whole = whole();
    for rank in [0, 2] {
        let folder = folder(&rank.to_string());
        let (took, output) = signalled("-INT", rank, &folder, "checkpoint/scheduler-1.mpk");
        assert!(took < Duration::from_secs(10), "{took:?}");
        assert!(!folder.join("results.json").exists());
        assert!(
            said(&output).contains("vit train --resume"),
            "{}",
            said(&output)
        );
        let resumed = result(train(4, &folder, &["--resume", "--shard-optimizer"]));
        assert_eq!(digest(&resumed), digest(whole));
    }
}

/// Of the second process, while the first one validates for the last time.
fn an_interruption_comes_too_late() {
    let home = TempDir::new().unwrap();
    let data = home.path().join("data");
    write_images(&data, [16, 4000], 1);
    let run = |name: &str, more: &[&str]| {
        let mut run = train(2, &home.path().join(name), &["--batch-size", "16"]);
        run.args(more).arg("--data").arg(&data);
        run
    };
    let early = ["--epochs", "30", "--early-stopping", "1", "--lr", "0.01"];
    let last = result(run("whole", &early))["epochs"].as_u64().unwrap();
    assert!(last < 30, "it is stopped early");
    for (name, more, last) in [("all", &["--epochs", "1"][..], 1), ("early", &early, last)] {
        let folder = home.path().join(name);
        let file = folder.join(format!("valid/epoch-{last}/Loss.log"));
        let (_, output) = launching::signalled(run(name, more), "-TERM", 1, &file);
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
        let results = fs::read(folder.join("results.json")).unwrap();
        let results: Value = serde_json::from_slice(&results).unwrap();
        assert_eq!(results["epochs"], last, "{name}");
    }
}

fn a_killed_process_ends_all() {
    let home = TempDir::new().unwrap();
    let folder = |name: &str| home.path().join(name);
    let whole = whole();
    // In the middle of an epoch, and the one that saves while it saves.
    for (rank, file) in [
        (3, "checkpoint/scheduler-1.mpk"),
        (0, "checkpoint/model-2.mpk"),
    ] {
        let folder = folder(&rank.to_string());
        let (took, output) = signalled("-KILL", rank, &folder, file);
        assert!(took < Duration::from_secs(10), "{took:?}");
        assert!(!output.status.success());
        let resumed = result(train(4, &folder, &["--resume", "--shard-optimizer"]));
        assert_eq!(digest(&resumed), digest(whole), "rank {rank}");
    }
}

fn clipping_and_accumulation() {
    let home = TempDir::new().unwrap();
    let folder = |name: &str| -> PathBuf { home.path().join(name) };
    let more = [
        "--clip-grad-norm",
        "0.5",
        "--grads-accumulation",
        "2",
        "--no-decay-on-norms",
    ];
    let settings = [NEW.as_slice(), &more].concat();
    let one = result(train(0, &folder("one"), &settings));
    let two = result(train(2, &folder("two"), &settings));
    assert!(
        (accuracy(&two) - accuracy(&one)).abs() < 0.03,
        "{two} {one}"
    );
    let sharded = [settings.as_slice(), &["--shard-optimizer"]].concat();
    let sharded = result(train(2, &folder("sharded"), &sharded));
    assert_eq!(digest(&sharded), digest(&two));
}

fn what_cannot_be_shared() {
    let home = TempDir::new().unwrap();
    let folder = home.path().join("run");
    for (more, text) in [
        (
            &["--mode", "plain"][..],
            "--data-parallel needs gradient release",
        ),
        // 1438 images: the last batch has two.
        (&["--batch-size", "359"], "choose another --batch-size"),
    ] {
        let output = train(4, &folder, more).output().unwrap();
        assert!(!output.status.success());
        assert!(said(&output).contains(text), "{}", said(&output));
        assert!(!folder.exists());
    }
}

/// As a batch job: `mpirun` gives every process a terminal to write to, and there is none to read
/// keys from.
fn no_terminal_is_needed() {
    let home = TempDir::new().unwrap();
    let output = Command::new("setsid")
        .args(["--wait", "mpirun", "--oversubscribe", "-n", "2"])
        .args([env!("CARGO_BIN_EXE_vit"), "train", "--data-parallel"])
        .args(["--artifact-dir", &home.path().join("run").to_string_lossy()])
        .args(NEW)
        .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
        .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", said(&output));
    for text in ["epoch   2/2", "validation accuracy"] {
        assert!(said(&output).contains(text), "{}", said(&output));
    }
}

/// Asserts that a run fails with this exit code and says this.
fn fails(mut command: Command, code: i32, text: &str) {
    let output = command.output().unwrap();
    assert!(said(&output).contains(text), "{}", said(&output));
    assert_eq!(output.status.code(), Some(code), "{}", said(&output));
}

fn who_fails_says_why() {
    let home = TempDir::new().unwrap();
    let file = home.path().join("file");
    fs::write(&file, "").unwrap();
    // The first process fails, and the others wait for it.
    fails(train(3, &file, &NEW), 1, "file is not a folder");
    let unlike = |second: &[&str]| {
        launching::train_unlike(
            env!("CARGO_BIN_EXE_vit"),
            &home.path().join("run"),
            &NEW,
            second,
        )
    };
    fails(
        unlike(&["--data", "/nowhere"]),
        1,
        "error: there is no folder /nowhere",
    );
    fails(unlike(&["--lr", "7"]), 1, "--lr must be above 0");
}

fn other_settings_are_refused() {
    let home = TempDir::new().unwrap();
    // Of the same number, size and classes.
    let [some, other] = ["some", "other"].map(|name| {
        let folder = home.path().join(name);
        write_images(&folder, [32, 16], name.len());
        folder.to_str().unwrap().to_string()
    });
    for (first, second, text) in [
        (
            ["--optimizer", "adam"],
            ["--optimizer", "sgd"],
            "engine.optimizer: \"sgd\"",
        ),
        (
            ["--weight-decay", "0.05"],
            ["--weight-decay", "0.1"],
            "regularization.weight_decay: 0.1",
        ),
        (["--seed", "42"], ["--seed", "43"], "seed: 43"),
        (
            ["--pool", "class-token"],
            ["--pool", "mean"],
            "model.pool: \"mean\"",
        ),
        (
            ["--dropout", "0.1"],
            ["--dropout", "0.2"],
            "model.dropout: 0.2",
        ),
        (["--data", &some], ["--data", &other], "data_digest: \""),
    ] {
        let folder = home.path().join("run");
        let new = ["--epochs", "2", "--batch-size", "16"];
        let [first, second] = [first, second].map(|own| [&new[..], &own].concat());
        let program = env!("CARGO_BIN_EXE_vit");
        let command = launching::train_each(program, &folder, [&first, &second]);
        fails(command, 1, &format!("rank 1: the setting {text}"));
    }
}

/// Random images of 8x8 and labels, so many for training and for validation.
fn write_images(folder: &Path, counts: [u32; 2], seed: usize) {
    fs::create_dir_all(folder).unwrap();
    let mut state = seed as u32;
    let mut random = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    let header = |sizes: &[u32]| {
        let sizes_in_bytes = sizes.iter().flat_map(|size| size.to_be_bytes());
        let kind = [0, 0, 8, sizes.len() as u8].into_iter();
        kind.chain(sizes_in_bytes).collect::<Vec<_>>()
    };
    for (part, count) in ["train", "t10k"].into_iter().zip(counts) {
        let file = |what: &str| folder.join(format!("{part}-{what}-ubyte"));
        let mut pixels = header(&[count, 8, 8]);
        pixels.extend((0..count * 64).map(|_| random()));
        fs::write(file("images-idx3"), pixels).unwrap();
        let mut labels = header(&[count]);
        labels.extend((0..count).map(|at| (at % 4) as u8));
        fs::write(file("labels-idx1"), labels).unwrap();
    }
}

fn a_run_is_not_overwritten() {
    let home = TempDir::new().unwrap();
    let folder = home.path().join("run");
    let finished = result(train(2, &folder, &NEW));
    fails(train(2, &folder, &NEW), 1, "holds a finished run");
    let saved = fs::read(folder.join("results.json")).unwrap();
    assert_eq!(serde_json::from_slice::<Value>(&saved).unwrap(), finished);
    let stopped = [NEW.as_slice(), &["--overwrite", "--stop-after", "17"]].concat();
    let output = train(2, &folder, &stopped).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    let text = "holds a run that was interrupted";
    fails(train(2, &folder, &NEW), 1, text);
}

fn a_stopped_process_is_not_awaited() {
    let home = TempDir::new().unwrap();
    let folder = home.path().join("run");
    let new = ["--epochs", "1000", "--batch-size", "128", "--timeout", "5"];
    let saved = folder.join("checkpoint/scheduler-1.mpk");
    let (took, output) = launching::signalled(train(2, &folder, &new), "-STOP", 1, &saved);
    let text = "rank 0 of 2 has waited 5s for the others at ";
    assert!(said(&output).contains(text), "{}", said(&output));
    assert!(took < Duration::from_secs(30), "{took:?}");
    assert_eq!(output.status.code(), Some(1));
}

/// The first process cannot save its results, and the other one does not let it go.
fn an_error_is_printed_at_once() {
    let home = TempDir::new().unwrap();
    let (folder, data) = (home.path().join("run"), home.path().join("data"));
    // The first process classifies all of them once more, after the others have ended.
    write_images(&data, [16, 4000], 1);
    let new = ["--epochs", "1", "--batch-size", "16", "--timeout", "120"];
    let mut run = train(2, &folder, &new);
    run.arg("--data").arg(&data);
    run.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut launcher = run.spawn().unwrap();
    launching::wait_for(&folder.join("checkpoint/scheduler-1.mpk"));
    sleep(Duration::from_millis(200));
    launching::kill(&launcher, "-STOP", 1);
    fs::create_dir(folder.join("results.json")).unwrap();

    let (sender, lines) = mpsc::channel();
    let stderr = BufReader::new(launcher.stderr.take().unwrap());
    let reader = thread::spawn(move || {
        let lines = stderr.lines().map_while(Result::ok);
        lines.for_each(|line| drop(sender.send(line)));
    });
    let begun = Instant::now();
    let mut all = Vec::new();
    let is_printed = loop {
        let left = Duration::from_secs(60).saturating_sub(begun.elapsed());
        let Ok(line) = lines.recv_timeout(left) else {
            break false;
        };
        all.push(line);
        if all.last().unwrap().starts_with("error: cannot write to ") {
            break true;
        }
    };
    launching::kill(&launcher, "-CONT", 1);
    assert!(is_printed, "{all:?}");
    assert_eq!(launcher.wait().unwrap().code(), Some(74));
    reader.join().unwrap();
}

fn a_memory_timeline_of_the_first() {
    let home = TempDir::new().unwrap();
    let file = home.path().join("timeline.json.gz");
    let new = ["--epochs", "1", "--batch-size", "128"];
    let mut run = train(2, &home.path().join("run"), &new);
    let output = run.arg("--memory-timeline").arg(&file).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    let written = said(&output).matches("memory timeline written").count();
    assert_eq!(written, 1, "{}", said(&output));
    assert!(!Snapshot::load(&file).unwrap().parameters.is_empty());
}

fn a_full_disk_is_told() {
    let home = TempDir::new().unwrap();
    // Room for the model, and not for the states.
    let _mounted = SmallDisk::mount(home.path(), 1400).expect("it could before");
    fails(
        train(3, &home.path().join("run"), &NEW),
        74,
        "error: cannot ",
    );
}

/// Each process keeps what fits of its own share, and so completes its gradients in an order of its
/// own.
fn unequal_shares() {
    let home = TempDir::new().unwrap();
    let new = ["--epochs", "1", "--batch-size", "10", "--dropout", "0"];
    let budget = [
        "--checkpointing",
        "automatic",
        "--activation-budget",
        "380KiB",
    ];
    let recomputed = [new.as_slice(), &budget].concat();
    let sharded = [recomputed.as_slice(), &["--shard-optimizer"]].concat();
    let clipped = |more: &[&'static str]| [more, &["--clip-grad-norm", "0.5"]].concat();
    for (name, kept, recomputed) in [
        ("stepped", new.to_vec(), sharded),
        ("clipped", clipped(&new), clipped(&recomputed)),
    ] {
        let home = home.path().join(name);
        let kept = result(train(3, &home.join("kept"), &kept));
        let recomputed = result(train(3, &home.join("recomputed"), &recomputed));
        assert_eq!(digest(&recomputed), digest(&kept), "{name}");
    }
}

/// That of a whole epoch, with the checkpoint at its end.
fn sharded_states_lower_the_peak() {
    let home = TempDir::new().unwrap();
    // Small batches, whose activations take less than the states.
    let new = ["--epochs", "1", "--batch-size", "16"];
    let peak = |name: &str, more: &[&'static str]| {
        let settings = [new.as_slice(), more].concat();
        let result = result(train(2, &home.path().join(name), &settings));
        let other = fs::read(home.path().join(name).join("rank-1/memory.json")).unwrap();
        let other: Value = serde_json::from_slice(&other).unwrap();
        [&result, &other].map(|of_rank| of_rank["peak_bytes"].as_u64().unwrap())
    };
    let [whole, sharded] = [peak("whole", &[]), peak("sharded", &["--shard-optimizer"])];
    println!("peaks of both processes: {whole:?}, sharded {sharded:?}");
    assert!(sharded[0] < whole[0], "{sharded:?} {whole:?}");
    assert!(sharded[1] < whole[1], "{sharded:?} {whole:?}");
}
