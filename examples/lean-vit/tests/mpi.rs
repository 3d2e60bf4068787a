//! Training in several processes.
//!
//! Counts as ignored where no processes can be started together.

use libtest_mimic::{Arguments, Failed, Trial};
use serde_json::Value;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::sync::OnceLock;
use std::time::Duration;
use tempfile::TempDir;
use vit_common::launching::{self, digest, result, said, signalled};

fn main() -> ExitCode {
    let tests: [(&str, fn()); 8] = [
        ("two_and_four_ranks_sharded_or_not", two_and_four_ranks),
        ("recomputed_blocks_and_dropout", recomputed_blocks),
        ("a_sharded_run_is_resumed", a_sharded_run_is_resumed),
        ("a_killed_process_ends_all", a_killed_process_ends_all),
        ("without_a_terminal", without_a_terminal),
        ("who_fails_says_why", who_fails_says_why),
        ("what_cannot_be_shared_is_refused", what_cannot_be_shared),
        ("other_settings_are_refused", other_settings_are_refused),
    ];
    let is_missing = cfg!(not(feature = "mpi")) || !launching::has_mpirun();
    let tests = tests.map(|(name, test)| {
        let trial = Trial::test(name, move || -> Result<(), Failed> {
            test();
            Ok(())
        });
        trial.with_ignored_flag(is_missing)
    });
    libtest_mimic::run(&Arguments::from_args(), tests.into()).exit_code()
}

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

/// As a batch system starts it: in a session of its own, with nothing to read or to draw on.
fn without_a_terminal() {
    let home = TempDir::new().unwrap();
    let run = train(2, &home.path().join("run"), &["--epochs", "1"]);
    let mut command = Command::new("setsid");
    command.arg("--wait").arg(run.get_program());
    command.args(run.get_args()).stdin(Stdio::null());
    for (name, value) in run.get_envs() {
        command.env(name, value.unwrap());
    }
    let output = command.output().unwrap();
    let said = said(&output);
    assert!(output.status.success(), "{said}");
    assert_eq!(said.matches("epoch   1/1").count(), 1, "{said}");
    assert!(!said.contains('\r'), "{said}");
}

/// The process that ends with an error says why before all of them end.
fn who_fails_says_why() {
    let home = TempDir::new().unwrap();
    let folder = home.path().join("run");
    let output = train(2, &folder, &["--resume"]).output().unwrap();
    let text = said(&output);
    assert!(!output.status.success());
    assert!(text.contains("error: nothing to resume"), "{text}");
    assert!(
        text.contains("rank 0: the end of the training; rank 1: the folder"),
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
    let folder = home.path().join("run");
    let mut command = launching::train_unlike(program, &folder, &NEW, &["--optimizer", "sgd"]);
    let output = command.output().unwrap();
    assert!(!output.status.success());
    let text = "rank 1: the setting engine.optimizer: \"sgd\"";
    assert!(said(&output).contains(text), "{}", said(&output));
}
