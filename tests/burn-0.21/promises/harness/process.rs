//! The same program again, in a process of its own.

use std::process::Command;

/// The path of a test, from the test or a closure in it.
pub(crate) fn name_of<F>(_: &F) -> &'static str {
    let name = std::any::type_name::<F>();
    let (_crate, name) = name.split_once("::").expect("a module of the test crate");
    name.split("::{{closure}}").next().expect("a name")
}

/// This program with `test` as its only test.
pub(crate) fn only(test: &str) -> Command {
    let this = std::env::current_exe().expect("a test has a path");
    let mut command = Command::new(this);
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]);
    command
}
