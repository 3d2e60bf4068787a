//! Training in several processes.
//!
//! Counts as ignored where no processes can be started together.

mod images;

use libtest_mimic::{Arguments, Failed, Trial};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::OnceLock;
use std::thread::sleep;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use vit_common::launching::{self, digest, result, said, signalled};
use vit_common::small_disk::SmallDisk;

fn main() -> ExitCode {
    let tests: [(&str, fn()); 15] = [
        ("two_and_four_ranks_sharded_or_not", two_and_four_ranks),
        ("recomputed_blocks_and_dropout", recomputed_blocks),
        ("a_sharded_run_is_resumed", a_sharded_run_is_resumed),
        ("a_killed_process_ends_all", a_killed_process_ends_all),
        ("without_a_terminal", without_a_terminal),
        ("who_fails_says_why", who_fails_says_why),
        ("what_cannot_be_shared_is_refused", what_cannot_be_shared),
        ("other_settings_are_refused", other_settings_are_refused),
        ("who_is_refused_leaves_a_run_as_it_was", a_run_stays),
        (
            "an_error_is_printed_before_the_others_answer",
            an_error_is_printed_at_once,
        ),
        ("sharded_states_lower_every_peak", sharded_states_lower),
        (FULL_DISK, a_full_disk_is_told),
        ("a_run_goes_on_when_nobody_reads", a_run_goes_on),
        ("who_does_not_come_in_time_ends_all", who_does_not_come),
        ("who_never_joins_is_not_awaited", who_never_joins),
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
const FULL_DISK: &str = "a_full_disk_is_told_by_the_first";

fn train(processes: usize, folder: &Path, more: &[&str]) -> Command {
    launching::train(env!("CARGO_BIN_EXE_lean-vit"), processes, folder, more)
}

/// A short run on the bundled digits, whose dropout does not depend on how many processes there
/// are.
const NEW: [&str; 6] = ["--epochs", "2", "--batch-size", "128", "--dropout", "0"];

fn with(more: &[&'static str]) -> Vec<&'static str> {
    [&NEW, more].concat()
}

fn sharded() -> Vec<&'static str> {
    with(&["--shard-optimizer"])
}

fn number(result: &Value, of: &str) -> f64 {
    result[of].as_f64().unwrap()
}

/// Sums in another order: the last bits are others, and after two epochs a few predictions.
fn assert_near(one: &Value, other: &Value) {
    for (of, within) in [("validation_accuracy", 0.03), ("train_loss", 0.02)] {
        let difference = number(one, of) - number(other, of);
        assert!(difference.abs() < within, "{of}: {one} {other}");
    }
}

fn two_and_four_ranks() {
    let home = TempDir::new().unwrap();
    let folder = |name: &str| home.path().join(name);
    let one = result(train(0, &folder("one"), &NEW));
    let alone = result(train(1, &folder("alone"), &NEW));
    assert_eq!(digest(&alone), digest(&one));
    for ranks in [2, 4] {
        let run = |name: &str, more: &[&str]| {
            result(train(ranks, &folder(&format!("{name}-{ranks}")), more))
        };
        let whole = run("whole", &NEW);
        let again = run("again", &NEW);
        let apart = run("apart", &sharded());
        assert_eq!(digest(&again), digest(&whole), "{ranks} ranks");
        assert_eq!(digest(&apart), digest(&whole), "{ranks} ranks, sharded");
        assert_near(&whole, &one);
    }
}

fn recomputed_blocks() {
    let home = TempDir::new().unwrap();
    let folder = |name: &str| home.path().join(name);
    let more = ["--epochs", "2", "--batch-size", "128", "--dropout", "0.1"];
    let blocks = [
        &more[..],
        &["--checkpointing", "blocks", "--shard-optimizer"],
    ]
    .concat();
    let kept = result(train(2, &folder("kept"), &more));
    let recomputed = result(train(2, &folder("recomputed"), &blocks));
    assert_eq!(digest(&recomputed), digest(&kept));
}

/// An uninterrupted run of four replicas with sharded states.
fn whole() -> &'static Value {
    static WHOLE: OnceLock<Value> = OnceLock::new();
    WHOLE.get_or_init(|| {
        let home = TempDir::new().unwrap();
        result(train(4, &home.path().join("whole"), &sharded()))
    })
}

fn a_sharded_run_is_resumed() {
    let home = TempDir::new().unwrap();
    let folder = |name: &str| home.path().join(name);
    for (name, processes, more) in [
        ("four", 4, &["--shard-optimizer"][..]),
        ("not sharded", 4, &[]),
        ("two", 2, &["--shard-optimizer"]),
        ("one", 0, &[]),
        ("plain", 0, &["--mode", "plain"]),
    ] {
        let stopped = [sharded().as_slice(), &["--stop-after", "17"]].concat();
        let output = train(4, &folder(name), &stopped).output().unwrap();
        let said = said(&output);
        assert!(output.status.success(), "{said}");
        assert!(said.contains("from the checkpoint of epoch 1"), "{said}");
        let resumed = [&["--resume"], more].concat();
        let resumed = result(train(processes, &folder(name), &resumed));
        if processes == 4 {
            assert_eq!(digest(&resumed), digest(whole()), "{name}");
        }
        assert_near(&resumed, whole());
    }
}

fn a_killed_process_ends_all() {
    let home = TempDir::new().unwrap();
    // In the middle of an epoch, and the one that saves while it saves.
    for (rank, file) in [(3, "checkpoint/epoch-1"), (0, "checkpoint/unfinished")] {
        let folder = home.path().join(rank.to_string());
        let run = train(4, &folder, &sharded());
        let (took, output) = signalled(run, "-KILL", rank, &folder.join(file));
        assert!(took < Duration::from_secs(10), "{took:?}");
        assert!(!output.status.success());
        let said = said(&output);
        assert!(said.contains("exited on signal 9"), "{said}");
        let resumed = result(train(4, &folder, &["--resume", "--shard-optimizer"]));
        assert_eq!(digest(&resumed), digest(whole()), "rank {rank}");
    }
}

/// As a batch system starts it: in a session of its own, with nothing to read or to draw on. The
/// table goes to stdout.
fn without_a_terminal() {
    let home = TempDir::new().unwrap();
    let run = train(2, &home.path().join("run"), &["--epochs", "1"]);
    let mut command = Command::new("setsid");
    command.arg("--wait").arg(run.get_program());
    let args = run.get_args().filter(|arg| *arg != "--json");
    command.args(args).stdin(Stdio::null());
    for (name, value) in run.get_envs() {
        command.env(name, value.unwrap());
    }
    let output = command.output().unwrap();
    let said = said(&output);
    assert!(output.status.success(), "{said}");
    assert_eq!(said.matches("epoch   1/1").count(), 1, "{said}");
    assert!(!said.contains('\r'), "{said}");
    let table = String::from_utf8(output.stdout).unwrap();
    assert_eq!(table.matches("validation accuracy").count(), 1, "{said}");
}

/// The process that ends with an error says why before all of them end.
fn who_fails_says_why() {
    let home = TempDir::new().unwrap();
    let file = home.path().join("file");
    fs::write(&file, "").unwrap();
    let output = train(2, &file, &NEW).output().unwrap();
    let text = said(&output);
    assert!(!output.status.success());
    assert!(text.contains("file is not a folder"), "{text}");
    assert!(
        text.contains("rank 0: the end of the training; rank 1: the beginning"),
        "{text}"
    );
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

fn other_settings_are_refused() {
    let home = TempDir::new().unwrap();
    let program = env!("CARGO_BIN_EXE_lean-vit");
    let data = home.path().join("data");
    fs::create_dir(&data).unwrap();
    images::write(&data, 1, 60, 16);
    let both = ["--epochs", "2", "--batch-size", "128"];
    let folder = home.path().join("run");
    let unlike = |second: &[&str], text: &str| {
        let mut command = launching::train_unlike(program, &folder, &both, second);
        let output = command.output().unwrap();
        assert!(!output.status.success());
        assert!(said(&output).contains(text), "{}", said(&output));
    };
    for (second, setting) in [
        (["--optimizer", "sgd"], "engine.optimizer: \"sgd\""),
        (["--weight-decay", "0.1"], "weight_decay: 0.1"),
        (["--seed", "43"], "seed: 43"),
        (["--dropout", "0.2"], "model.dropout: 0.2"),
        (["--operations", "lean"], "engine.operations: \"lean\""),
        (["--data", data.to_str().unwrap()], "data_digest: "),
    ] {
        unlike(&second, &format!("rank 1: the setting {setting}"));
    }
    // What is wrong on one of them alone, and what is no option at all.
    for (second, text) in [
        (["--lr", "7"], "error: --lr must be above 0"),
        (["--data", "/nowhere"], "error: there is no folder /nowhere"),
        (["--seed", "x"], "error: invalid value 'x'"),
    ] {
        unlike(&second, text);
    }
}

/// All files of a run but its lock, in which the process is named that had it last.
fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            all.extend(files(&path));
        } else if !path.ends_with("lock") {
            all.insert(path.clone(), fs::read(path).unwrap());
        }
    }
    all
}

fn a_run_stays() {
    let home = TempDir::new().unwrap();
    let folder = home.path().join("run");
    result(train(2, &folder, &NEW));
    let before = files(&folder);
    let anew = with(&["--overwrite"]);
    let other = |option: &'static str, value: &'static str| [&anew[..], &[option, value]].concat();
    let resume = vec!["--resume"];
    for (first, second, text) in [
        (&anew, other("--seed", "43"), "the setting seed: 43"),
        (&anew, other("--data", "/nowhere"), "no folder /nowhere"),
        (&anew, other("--sede", "43"), "unexpected argument '--sede'"),
        (
            &vec!["--resume", "--operations", "lean"],
            resume.clone(),
            "the setting engine.operations: \"lean\"",
        ),
    ] {
        let program = env!("CARGO_BIN_EXE_lean-vit");
        let mut command = launching::train_each(program, &folder, [first, &second]);
        let output = command.output().unwrap();
        assert!(!output.status.success());
        assert!(said(&output).contains(text), "{}", said(&output));
        assert!(files(&folder) == before, "{text}");
    }
    result(train(2, &folder, &resume));
}

/// The first process cannot save its results, and the other one does not let it go.
fn an_error_is_printed_at_once() {
    let home = TempDir::new().unwrap();
    let [folder, data, said] = ["run", "data", "stderr"].map(|name| home.path().join(name));
    fs::create_dir(&data).unwrap();
    // The first process classifies all of them once more, after the others have ended.
    images::write(&data, 1, 16, 4000);
    let new = ["--epochs", "1", "--batch-size", "16", "--timeout", "120"];
    let mut run = train(2, &folder, &new);
    run.arg("--data").arg(&data);
    run.stdout(Stdio::null())
        .stderr(File::create(&said).unwrap());
    let mut launcher = run.spawn().unwrap();
    launching::wait_for(&folder.join("checkpoint/epoch-1"));
    sleep(Duration::from_millis(200));
    launching::kill(&launcher, "-STOP", 1);
    fs::create_dir(folder.join("results.json")).unwrap();

    let begun = Instant::now();
    let is_printed = loop {
        let said = fs::read_to_string(&said).unwrap();
        if said.contains("error: cannot write to ") {
            break true;
        }
        if begun.elapsed() > Duration::from_secs(60) {
            break false;
        }
        sleep(Duration::from_millis(20));
    };
    launching::kill(&launcher, "-CONT", 1);
    let code = launcher.wait().unwrap().code();
    let said = fs::read_to_string(&said).unwrap();
    assert!(is_printed, "{said}");
    assert_eq!(code, Some(74), "{said}");
}

/// The peak of every process, of a whole epoch with the checkpoint at its end.
fn peaks(command: &mut Command) -> Vec<f64> {
    let output = command.output().unwrap();
    let said = said(&output);
    assert!(output.status.success(), "{said}");
    let mut lines = said.lines();
    let peaks = lines.find_map(|line| line.strip_prefix("peak of each process "));
    let peaks = peaks.expect(&said).trim_end_matches(" MiB");
    peaks
        .split(", ")
        .map(|peak| peak.parse().unwrap())
        .collect()
}

fn sharded_states_lower() {
    let home = TempDir::new().unwrap();
    images::write(home.path(), 1, 16, 4);
    // Few and small images, whose activations take less than the states.
    let data = home.path().to_str().unwrap();
    let new = ["--data", data, "--preset", "small", "--image-size", "32"];
    let new = [&new[..], &["--epochs", "1", "--batch-size", "8"]].concat();
    let run = |name: &str, more: &[&'static str]| {
        let settings = [new.as_slice(), more].concat();
        peaks(&mut train(2, &home.path().join(name), &settings))
    };
    let whole = run("whole", &[]);
    let sharded = run("sharded", &["--shard-optimizer"]);
    println!("whole {whole:?} MiB, sharded {sharded:?} MiB");
    assert_eq!((whole.len(), sharded.len()), (2, 2));
    // The moments of 21 million parameters are 162 MiB, of which each process has half, and what is
    // on its way.
    for (rank, (whole, sharded)) in whole.iter().zip(&sharded).enumerate() {
        assert!(sharded + 40.0 < *whole, "rank {rank}: {sharded} {whole}");
    }
}

fn a_full_disk_is_told() {
    let home = TempDir::new().unwrap();
    // Room for the model, and not for the states.
    let mounted = SmallDisk::mount(home.path(), 1400).expect("it could before");
    let folder = home.path().join("run");
    let output = train(3, &folder, &sharded()).output().unwrap();
    let text = said(&output);
    assert_eq!(output.status.code(), Some(74), "{text}");
    let errors = text.lines();
    let errors = errors.filter(|line| line.starts_with("error: cannot write to "));
    assert_eq!(errors.count(), 1, "{text}");
    assert!(text.contains("No space left on device"), "{text}");
    assert!(!folder.join("checkpoint/unfinished").exists());
    mounted.resize(20_000);
    result(train(3, &folder, &["--resume", "--shard-optimizer"]));
}

/// `2>&1 | head -1`.
fn a_run_goes_on() {
    let home = TempDir::new().unwrap();
    let folder = home.path().join("run");
    let run = train(2, &folder, &NEW);
    let mut shell = Command::new("sh");
    shell.args(["-c", "\"$0\" \"$@\" 2>&1 | head -1"]);
    shell.arg(run.get_program()).args(run.get_args());
    for (name, value) in run.get_envs() {
        shell.env(name, value.unwrap());
    }
    let text = said(&shell.output().unwrap());
    assert!(text.starts_with("epoch   1/2"), "{text}");
    // `head` has ended first.
    let begun = Instant::now();
    while !folder.join("results.json").exists() {
        assert!(begun.elapsed() < Duration::from_secs(120));
        sleep(Duration::from_millis(10));
    }
}

/// A process that is there and does nothing is awaited for as long as `--timeout` says.
fn who_does_not_come() {
    let home = TempDir::new().unwrap();
    let folder = home.path().join("run");
    let more = ["--epochs", "5000", "--batch-size", "128", "--timeout", "2"];
    let run = train(2, &folder, &more);
    let file = folder.join("checkpoint/epoch-1");
    let (took, output) = signalled(run, "-STOP", 1, &file);
    let text = said(&output);
    assert!(!output.status.success(), "{text}");
    assert!((2..30).contains(&took.as_secs()), "{took:?}: {text}");
    assert!(text.contains("rank 0 of 2 has waited 2s"), "{text}");
}

fn who_never_joins() {
    let home = TempDir::new().unwrap();
    let mut run = train(1, &home.path().join("run"), &["--timeout", "2"]);
    // Another process of the run, which is no program of MPI.
    run.args([":", "-n", "1", "sleep", "60"]);
    let begun = Instant::now();
    let output = run.output().unwrap();
    let (took, text) = (begun.elapsed(), said(&output));
    assert!(!output.status.success(), "{text}");
    assert!((2..30).contains(&took.as_secs()), "{took:?}: {text}");
    let expected = "the other processes were not joined within 2s";
    assert!(text.contains(expected), "{text}");
}
