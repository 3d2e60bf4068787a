//! Starts an example in several processes, as its tests do.

use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Whether `mpirun` is here.
pub fn has_mpirun() -> bool {
    Command::new("mpirun").arg("--version").output().is_ok()
}

/// `train` of a program in so many processes; without `mpirun` if there are none.
pub fn train(program: &str, processes: usize, folder: &Path, more: &[&str]) -> Command {
    let mut command = launched(program, processes);
    command
        .args(["train", "--json", "--artifact-dir"])
        .arg(folder);
    if processes > 0 {
        command.arg("--data-parallel");
    }
    command.args(more);
    command
}

/// Two processes of `train`, the second of which has more options than the first.
pub fn train_unlike(program: &str, folder: &Path, both: &[&str], second: &[&str]) -> Command {
    train_each(program, folder, [both, &[both, second].concat()])
}

/// Two processes of `train`, each with options of its own.
pub fn train_each(program: &str, folder: &Path, [first, second]: [&[&str]; 2]) -> Command {
    let mut command = launched(program, 1);
    let options = |command: &mut Command, own: &[&str]| {
        command.args(["train", "--json", "--data-parallel", "--artifact-dir"]);
        command.arg(folder).args(own);
    };
    options(&mut command, first);
    command.args([":", "-n", "1", program]);
    options(&mut command, second);
    command
}

/// A program in so many processes; without `mpirun` if there are none.
fn launched(program: &str, processes: usize) -> Command {
    let mut command = match processes {
        0 => Command::new(program),
        _ => {
            let mut command = Command::new("mpirun");
            command.args(["--oversubscribe", "-n", &processes.to_string(), program]);
            command
        }
    };
    command
        // In a container everybody is root.
        .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
        .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    command
}

/// What a program has printed.
pub fn said(output: &Output) -> String {
    let [out, err] = [&output.stdout, &output.stderr].map(|said| String::from_utf8_lossy(said));
    format!("{out}\n{err}")
}

/// The results of a run, which one of its processes prints.
///
/// # Panics
///
/// If the run fails, or none or several print them.
pub fn result(command: &mut Command) -> Value {
    let output = command.output().expect("the program is started");
    assert!(output.status.success(), "{}", said(&output));
    let text = String::from_utf8_lossy(&output.stdout);
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), 1, "one process has the results: {text}");
    serde_json::from_str(lines[0]).expect("the results are JSON")
}

/// The results that a resumed run must have in common with an uninterrupted one.
pub fn outcome(result: &Value) -> [&Value; 4] {
    [
        "weights_digest",
        "validation_accuracy",
        "train_loss",
        "epochs",
    ]
    .map(|key| &result[key])
}

/// The digest of the weights in the results of a run.
///
/// # Panics
///
/// If there is none.
pub fn digest(result: &Value) -> &str {
    result["weights_digest"]
        .as_str()
        .expect("there is a digest")
}

/// Signals one process of a run once there is a file, and waits for the end of all. How long that
/// has taken.
///
/// # Panics
///
/// If there is no such file after two minutes, or no such process.
pub fn signalled(mut run: Command, signal: &str, rank: usize, file: &Path) -> (Duration, Output) {
    run.stdout(Stdio::piped()).stderr(Stdio::piped());
    let launcher = run.spawn().expect("the program is started");
    wait_for(file);
    kill(&launcher, signal, rank);
    let begun = Instant::now();
    let output = launcher.wait_with_output().expect("it ends");
    (begun.elapsed(), output)
}

/// Signals one of the processes that a launcher has started.
///
/// # Panics
///
/// If there is no such process.
pub fn kill(launcher: &Child, signal: &str, rank: usize) {
    let process = processes_of(launcher)[rank].to_string();
    let kill = Command::new("kill").args([signal, &process]).status();
    assert!(kill.expect("a system has kill").success());
}

/// The processes that a launcher has started.
fn processes_of(launcher: &Child) -> Vec<u32> {
    let children = format!("/proc/{0}/task/{0}/children", launcher.id());
    let children = fs::read_to_string(children).unwrap_or_default();
    children
        .split_whitespace()
        .filter_map(|id| id.parse().ok())
        .collect()
}

/// Waits until there is a file.
///
/// # Panics
///
/// If there is none after two minutes.
pub fn wait_for(file: &Path) {
    let begun = Instant::now();
    while !file.exists() {
        let waited = begun.elapsed();
        assert!(waited < Duration::from_secs(120), "{}", file.display());
        sleep(Duration::from_millis(5));
    }
}
