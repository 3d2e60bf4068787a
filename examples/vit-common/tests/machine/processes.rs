//! Training in several processes.

use super::{Test, tests};
use crate::PROGRAM;
use crate::program::{Home, files, result, said, wait_for, wait_until, write_images};
use serde_json::Value;
use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::thread::sleep;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use vit_common::launching::{self, digest};
use vit_common::small_disk::SmallDisk;

pub(super) const TESTS: &[Test] = tests![
    replicas_train_as_one_process_does,
    a_sharded_run_is_resumed,
    a_killed_process_ends_all,
    a_stopped_process_is_not_awaited_for_ever,
    a_process_that_never_joins_is_not_awaited,
    no_terminal_is_needed,
    a_run_goes_on_when_nobody_reads,
    what_cannot_be_shared_is_refused,
    what_fails_in_one_process_is_said,
    settings_that_differ_are_named,
    a_run_stays_as_it_was_if_one_is_refused,
    an_error_is_printed_before_the_others_answer,
    sharded_states_lower_the_peak_of_each,
];

/// Those that want to mount a disk as well.
pub(super) const ON_A_SMALL_DISK: &[Test] = tests![a_full_disk_is_told_by_the_first];

/// A short run on the bundled digits, whose dropout does not depend on how many processes there
/// are.
pub(crate) const NEW: [&str; 6] = ["--epochs", "2", "--batch-size", "128", "--dropout", "0"];
const SHARDED: &str = "--shard-optimizer";

/// `train` in so many processes, without `mpirun` if there are none.
pub(crate) fn train(processes: usize, folder: &Path, more: &[&str]) -> Command {
    launching::train(PROGRAM.path, processes, folder, more)
}

pub(crate) fn sharded() -> Vec<&'static str> {
    [&NEW[..], &[SHARDED]].concat()
}

/// Resumes an interrupted run of four replicas with sharded states.
pub(crate) fn resume_sharded(folder: &Path) -> Value {
    result(&mut train(4, folder, &["--resume", SHARDED]))
}

/// An uninterrupted run of four replicas with sharded states.
pub(crate) fn whole() -> &'static Value {
    static WHOLE: OnceLock<Value> = OnceLock::new();
    WHOLE.get_or_init(|| {
        let home = TempDir::new().unwrap();
        result(&mut train(4, &home.path().join("whole"), &sharded()))
    })
}

/// Sums in another order: the last bits are others, and after two epochs a few predictions.
pub(crate) fn assert_near(one: &Value, other: &Value) {
    for (of, within) in [("validation_accuracy", 0.03), ("train_loss", 0.02)] {
        let [one, other] = [one, other].map(|result| result[of].as_f64().unwrap());
        assert!((one - other).abs() < within, "{of}: {one} {other}");
    }
}

/// What a run says that fails, with this exit code and this text in it.
fn fails(mut command: Command, code: i32, text: &str) -> String {
    let output = command.output().unwrap();
    let said = said(&output);
    assert!(said.contains(text), "{said}");
    assert_eq!(output.status.code(), Some(code), "{said}");
    said
}

fn replicas_train_as_one_process_does() {
    let home = TempDir::new().unwrap();
    let folder = |name: &str| home.path().join(name);
    let run =
        |name: &str, processes, more: &[&str]| result(&mut train(processes, &folder(name), more));
    let one = run("one", 0, &NEW);
    assert_eq!(digest(&run("alone", 1, &NEW)), digest(&one));
    let two = run("two", 2, &NEW);
    assert_eq!(digest(&run("again", 2, &NEW)), digest(&two));
    assert_eq!(digest(&run("sharded", 2, &sharded())), digest(&two));
    let four = run("four", 4, &NEW);
    assert_eq!(digest(whole()), digest(&four), "sharded");
    assert_near(&two, &one);
    assert_near(&four, &one);
    // The metrics are those of whole batches.
    for metric in PROGRAM.logs {
        let [one, two] = ["one", "two"].map(|run| {
            let log = folder(run).join("train/epoch-2").join(metric);
            let text = fs::read_to_string(log).unwrap();
            let number = |line: &str| line.split(',').next().unwrap().parse::<f64>().unwrap();
            text.lines().map(number).collect::<Vec<_>>()
        });
        assert_eq!(one.len(), two.len());
        let near = |(one, two): (&f64, &f64)| (one - two).abs() <= 0.05 * one.abs();
        assert!(one.iter().zip(&two).all(near), "{metric}: {one:?} {two:?}");
    }
}

fn a_sharded_run_is_resumed() {
    let home = TempDir::new().unwrap();
    for (name, processes, more) in [
        ("four", 4, &[SHARDED][..]),
        ("not sharded", 4, &[]),
        ("two", 2, &[SHARDED]),
        ("one", 0, &[]),
        ("plain", 0, &["--mode", "plain"]),
    ] {
        let folder = home.path().join(name);
        let output = train(4, &folder, &sharded())
            .args(["--stop-after", "17"])
            .output()
            .unwrap();
        let said = said(&output);
        assert!(output.status.success(), "{said}");
        assert!(said.contains("from the checkpoint of epoch 1"), "{said}");
        let resumed = result(train(processes, &folder, &["--resume"]).args(more));
        if processes == 4 {
            assert_eq!(digest(&resumed), digest(whole()), "{name}");
        }
        assert_near(&resumed, whole());
    }
}

fn a_killed_process_ends_all() {
    let home = TempDir::new().unwrap();
    // In the middle of an epoch, and the one that saves while it saves.
    for (rank, file) in [(3, PROGRAM.saved(1).as_str()), (0, PROGRAM.unfinished[0])] {
        let folder = home.path().join(rank.to_string());
        let run = train(4, &folder, &sharded());
        let (took, output) = launching::signalled(run, "-KILL", rank, &folder.join(file));
        assert!(took < Duration::from_secs(10), "{took:?}");
        assert!(!output.status.success());
        let said = said(&output);
        assert!(said.contains("exited on signal 9"), "{said}");
        assert_eq!(
            digest(&resume_sharded(&folder)),
            digest(whole()),
            "rank {rank}"
        );
    }
}

/// It is awaited for as long as `--timeout` says.
fn a_stopped_process_is_not_awaited_for_ever() {
    let home = TempDir::new().unwrap();
    let folder = home.path().join("run");
    let new = ["--epochs", "5000", "--batch-size", "128", "--timeout", "5"];
    let saved = folder.join(PROGRAM.saved(1));
    let (took, output) = launching::signalled(train(2, &folder, &new), "-STOP", 1, &saved);
    let said = said(&output);
    assert!(
        said.contains("rank 0 of 2 has waited 5s for the others at "),
        "{said}"
    );
    assert!((5..30).contains(&took.as_secs()), "{took:?}");
    assert_eq!(output.status.code(), Some(1));
}

fn a_process_that_never_joins_is_not_awaited() {
    let home = TempDir::new().unwrap();
    let mut run = train(1, &home.path().join("run"), &["--timeout", "2"]);
    // Another process of the run, which is no program of MPI.
    run.args([":", "-n", "1", "sleep", "60"]);
    let begun = Instant::now();
    let output = run.output().unwrap();
    let (took, said) = (begun.elapsed(), said(&output));
    assert!(!output.status.success(), "{said}");
    assert!((2..30).contains(&took.as_secs()), "{took:?}: {said}");
    assert!(
        said.contains("the other processes were not joined within 2s"),
        "{said}"
    );
}

/// As a batch system starts it: in a session of its own, with nothing to read keys from, while
/// `mpirun` gives every process a terminal to write to. The table goes to stdout.
fn no_terminal_is_needed() {
    let home = TempDir::new().unwrap();
    let run = train(2, &home.path().join("run"), &["--epochs", "1"]);
    let mut command = Command::new("setsid");
    command.arg("--wait").arg(run.get_program());
    command.args(run.get_args().filter(|arg| *arg != "--json"));
    command.envs(
        run.get_envs()
            .filter_map(|(name, value)| Some((name, value?))),
    );
    let output = command.stdin(Stdio::null()).output().unwrap();
    let said = said(&output);
    assert!(output.status.success(), "{said}");
    assert_eq!(said.matches("epoch   1/1").count(), 1, "{said}");
    assert!(!said.contains('\r'), "{said}");
    let table = String::from_utf8(output.stdout).unwrap();
    assert_eq!(table.matches("validation accuracy").count(), 1, "{said}");
}

/// `2>&1 | head -1`.
fn a_run_goes_on_when_nobody_reads() {
    let home = TempDir::new().unwrap();
    let folder = home.path().join("run");
    let run = train(2, &folder, &NEW);
    let mut shell = Command::new("sh");
    shell.args(["-c", "\"$0\" \"$@\" 2>&1 | head -1"]);
    shell.arg(run.get_program()).args(run.get_args());
    shell.envs(
        run.get_envs()
            .filter_map(|(name, value)| Some((name, value?))),
    );
    let said = said(&shell.output().unwrap());
    assert!(said.starts_with("epoch   1/2"), "{said}");
    // `head` has ended first.
    wait_for(&folder.join("results.json"));
}

fn what_cannot_be_shared_is_refused() {
    let home = TempDir::new().unwrap();
    let folder = home.path().join("run");
    for (more, text) in [
        (
            ["--mode", "plain"],
            "--data-parallel needs gradient release",
        ),
        // 1438 images: the last batch has two.
        (["--batch-size", "359"], "choose another --batch-size"),
    ] {
        fails(train(4, &folder, &more), 1, text);
        assert!(!folder.exists());
    }
}

/// The process that ends with an error says why before all of them end.
fn what_fails_in_one_process_is_said() {
    let home = TempDir::new().unwrap();
    let file = home.path().join("file");
    fs::write(&file, "").unwrap();
    // The first process fails, and the others wait for it.
    let said = fails(train(2, &file, &NEW), 1, "file is not a folder");
    let ends = "rank 0: the end of the training; rank 1: the beginning";
    assert!(said.contains(ends), "{said}");
    for (second, code, text) in [
        (["--lr", "7"], 1, "error: --lr must be above 0"),
        (
            ["--data", "/nowhere"],
            1,
            "error: there is no folder /nowhere",
        ),
        (["--seed", "x"], 2, "error: invalid value 'x'"),
    ] {
        let run = home.path().join("run");
        fails(
            launching::train_unlike(PROGRAM.path, &run, &NEW, &second),
            code,
            text,
        );
    }
}

fn settings_that_differ_are_named() {
    let home = TempDir::new().unwrap();
    // Of the same number, size and classes.
    let [some, other] = [1, 2].map(|seed| {
        let folder = home.path().join(seed.to_string());
        write_images(&folder, seed, [32, 16]);
        folder.to_str().unwrap().to_string()
    });
    let (own_option, own_value, own_setting) = PROGRAM.own_setting;
    for (first, second, setting) in [
        (&[][..], ["--optimizer", "sgd"], "engine.optimizer: \"sgd\""),
        (&[], ["--weight-decay", "0.1"], "weight_decay: 0.1"),
        (&[], ["--seed", "43"], "seed: 43"),
        (&[], ["--pool", "mean"], "model.pool: \"mean\""),
        (&[], ["--dropout", "0.2"], "model.dropout: 0.2"),
        (&[], [own_option, own_value], own_setting),
        (&["--data", &some], ["--data", &other], "data_digest: \""),
    ] {
        let new = ["--epochs", "2", "--batch-size", "16"];
        let [first, second] = [first, &second].map(|own| [&new[..], own].concat());
        let run = home.path().join("run");
        let command = launching::train_each(PROGRAM.path, &run, [&first, &second]);
        fails(command, 1, &format!("rank 1: the setting {setting}"));
    }
}

fn a_run_stays_as_it_was_if_one_is_refused() {
    let home = TempDir::new().unwrap();
    let folder = home.path().join("run");
    result(&mut train(2, &folder, &NEW));
    let before = files(&folder);
    let anew = [&NEW[..], &["--overwrite"]].concat();
    let resume = vec!["--resume"];
    let with = |options: &[&'static str], more: &[&'static str]| [options, more].concat();
    for (first, second, code, text) in [
        (&NEW.to_vec(), NEW.to_vec(), 1, "holds a finished run"),
        (
            &anew,
            with(&anew, &["--seed", "43"]),
            1,
            "the setting seed: 43",
        ),
        (
            &anew,
            with(&anew, &["--data", "/nowhere"]),
            1,
            "no folder /nowhere",
        ),
        (
            &anew,
            with(&anew, &["--sede", "43"]),
            2,
            "unexpected argument '--sede'",
        ),
        (
            &resume,
            with(&resume, &["--checkpointing", "blocks"]),
            1,
            "the setting engine.checkpointing: \"blocks\"",
        ),
    ] {
        let command = launching::train_each(PROGRAM.path, &folder, [first, &second]);
        fails(command, code, text);
        assert!(files(&folder) == before, "{text}");
    }
    result(&mut train(2, &folder, &resume));
    let stopped = train(2, &folder, &anew)
        .args(["--stop-after", "17"])
        .output()
        .unwrap();
    assert!(stopped.status.success(), "{}", said(&stopped));
    fails(
        train(2, &folder, &NEW),
        1,
        "holds a run that was interrupted",
    );
}

/// The first process cannot save its results, and the other one does not let it go.
fn an_error_is_printed_before_the_others_answer() {
    // The first process classifies all of them once more, after the others have ended.
    let home = Home::with([16, 4000]);
    let [folder, said] = ["run", "stderr"].map(|name| home.folder(name));
    let new = ["--epochs", "1", "--batch-size", "16", "--timeout", "120"];
    let mut run = train(2, &folder, &new);
    run.arg("--data").arg(home.folder(""));
    run.stdout(Stdio::null())
        .stderr(File::create(&said).unwrap());
    let mut launcher = run.spawn().unwrap();
    wait_for(&folder.join(PROGRAM.saved(1)));
    sleep(Duration::from_millis(200));
    launching::kill(&launcher, "-STOP", 1);
    fs::create_dir(folder.join("results.json")).unwrap();
    wait_until("the error is not printed", || {
        let said = fs::read_to_string(&said).unwrap();
        said.contains("error: cannot write to ")
    });
    launching::kill(&launcher, "-CONT", 1);
    assert_eq!(launcher.wait().unwrap().code(), Some(74));
}

/// The peak of a whole epoch, with the checkpoint at its end.
fn sharded_states_lower_the_peak_of_each() {
    // Few and small images, whose activations take less than the states.
    let home = Home::with([16, 4]);
    let new = [
        "--preset",
        "small",
        "--image-size",
        "32",
        "--epochs",
        "1",
        "--batch-size",
        "8",
    ];
    let peaks = |name: &str, more: &[&str]| {
        let folder = home.folder(name);
        let mut run = train(2, &folder, &new);
        let output = run
            .args(more)
            .arg("--data")
            .arg(home.folder(""))
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", said(&output));
        (PROGRAM.peaks)(&folder, &output)
    };
    let (whole, sharded) = (peaks("whole", &[]), peaks("sharded", &[SHARDED]));
    println!("whole {whole:?} MiB, sharded {sharded:?} MiB");
    assert_eq!((whole.len(), sharded.len()), (2, 2));
    // The moments of 21 million parameters are 162 MiB, of which each process has half, and what is
    // on its way.
    for (rank, (whole, sharded)) in whole.iter().zip(&sharded).enumerate() {
        assert!(sharded + 40.0 < *whole, "rank {rank}: {sharded} {whole}");
    }
}

fn a_full_disk_is_told_by_the_first() {
    let home = TempDir::new().unwrap();
    // Room for the model, and not for the states.
    let mounted = SmallDisk::mount(home.path(), 1400).expect("it could before");
    let folder = home.path().join("run");
    let said = fails(train(3, &folder, &sharded()), 74, "No space left on device");
    let errors = said
        .lines()
        .filter(|line| line.starts_with("error: cannot "));
    assert_eq!(errors.count(), 1, "{said}");
    for unfinished in PROGRAM.unfinished {
        assert!(!folder.join(unfinished).exists(), "{unfinished}");
    }
    mounted.resize(20_000);
    result(&mut train(3, &folder, &["--resume", SHARDED]));
}
