//! Another process of the same test, and its end.

use std::fs::File;
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Set in the process that is to be killed: the directory it works in.
const VICTIM: &str = "PROMISES_VICTIM";

/// The directory to work in, where this is the process that is to be killed.
pub(crate) fn victim() -> Option<std::path::PathBuf> {
    std::env::var_os(VICTIM).map(Into::into)
}

/// Runs `test` alone in a process of its own until it [stops](stop) there, and kills it (SIGKILL
/// on Unix).
pub(crate) fn kill_at_stop(test: &str, directory: &Path) {
    let this = std::env::current_exe().expect("a test has a path");
    let said = directory.join("said");
    let output = File::create(&said).expect("writable");
    let mut child = Command::new(this)
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(VICTIM, directory)
        .stdout(output.try_clone().expect("a file"))
        .stderr(output)
        .spawn()
        .expect("a test can be run again");
    let begun = Instant::now();
    while !signal(directory).exists() {
        if child.try_wait().expect("the child can be asked").is_some() {
            let said = std::fs::read_to_string(&said).unwrap_or_default();
            panic!("{test} ended before it was killed: {said}");
        }
        assert!(
            begun.elapsed() < Duration::from_secs(60),
            "{test} never came to its stop"
        );
        sleep(Duration::from_millis(2));
    }
    child.kill().expect("the child still runs");
    let ended = child.wait().expect("the child can be waited for");
    assert!(!ended.success(), "killed");
}

/// In the process that is to be killed: says that this is the moment, and waits for it.
pub(crate) fn stop(directory: &Path) -> ! {
    std::fs::write(signal(directory), []).expect("writable");
    loop {
        sleep(Duration::from_secs(1));
    }
}

/// Waits for a file that another thread writes.
pub(crate) fn wait_for(file: &Path) {
    let begun = Instant::now();
    while !file.exists() {
        assert!(
            begun.elapsed() < Duration::from_secs(60),
            "{} is missing",
            file.display()
        );
        sleep(Duration::from_millis(2));
    }
}

fn signal(directory: &Path) -> std::path::PathBuf {
    directory.join("stopped")
}
