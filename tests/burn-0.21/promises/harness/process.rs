//! The same program again, in a process of its own.

use std::process::Command;

/// This program with `test` as its only test.
pub(crate) fn only(test: &str) -> Command {
    let this = std::env::current_exe().expect("a test has a path");
    let mut command = Command::new(this);
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]);
    command
}
