//! Several processes of the same test.

use std::process::{Command, Output};
use std::time::{Duration, Instant};

use super::{Mpi, Replicas};

/// Set in the processes that train together.
const RANKS: &str = "PROMISES_RANKS";

/// Runs `body` in so many processes, in each of which `test` is the only test.
pub(crate) fn ranks(counts: impl IntoIterator<Item = usize>, test: &str, body: fn(Replicas)) {
    if std::env::var_os(RANKS).is_some() {
        return body(Replicas::new(Mpi::initialize).expect("mpirun has started this"));
    }
    for count in counts {
        let output = mpirun(count, test);
        let text = text(&output);
        println!("{text}");
        assert!(output.status.success(), "{count} processes failed");
        // A misspelt name runs no test and succeeds.
        let passed = text.matches("1 passed").count();
        assert_eq!(passed, count, "{test} did not run");
    }
}

/// Runs a test whose processes are to fail. Returns what they print; in those processes, runs
/// `body`.
pub(crate) fn failing_ranks(count: usize, test: &str, body: fn(Replicas)) -> Option<String> {
    if std::env::var_os(RANKS).is_some() {
        body(Replicas::new(Mpi::initialize).expect("mpirun has started this"));
        return None;
    }
    let begun = Instant::now();
    let output = mpirun(count, test);
    let text = text(&output);
    assert!(!output.status.success(), "{text}");
    // None waits for one that has left.
    assert!(begun.elapsed() < Duration::from_secs(60), "{text}");
    Some(text)
}

fn mpirun(count: usize, test: &str) -> Output {
    let this = std::env::current_exe().expect("a test has a path");
    Command::new("mpirun")
        .args(["--oversubscribe", "-n", &count.to_string()])
        .arg(this)
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(RANKS, "1")
        // In a container everybody is root.
        .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
        .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
        .output()
        .expect("the build has found mpirun")
}

fn text(output: &Output) -> String {
    let [out, err] = [&output.stdout, &output.stderr].map(|said| String::from_utf8_lossy(said));
    format!("{out}{err}")
}
