//! Progress goes to stderr, which somebody may have stopped reading.

use crate::runs;
use serde_json::Value;
use std::fs;
use std::process::{Command, Stdio};
use tempfile::TempDir;

#[test]
fn nobody_needs_to_read_what_a_suite_says() {
    let folder = TempDir::new().unwrap();
    let options = "--part vit --preset tiny --backend flex --burn 0.21 --mode plain --checkpointing none \
                   --batch-size 1 --steps 1 --warm-up 1 --no-pytorch --output";
    let mut suite = Command::new(env!("CARGO_BIN_EXE_benchmarks"))
        .args(options.split(' '))
        .arg(folder.path())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(suite.stderr.take());
    assert!(suite.wait().unwrap().success());
    let json = fs::read(folder.path().join("results.json")).unwrap();
    let json: Value = serde_json::from_slice(&json).unwrap();
    assert!(!runs(&json).is_empty());
}
