//! What wants more of the machine than its processor: several processes, a disk of its own.

#[path = "../../../vit-common/tests/machine/mod.rs"]
mod both;
#[path = "../../../vit-common/tests/program/mod.rs"]
mod program;
#[path = "../this/mod.rs"]
mod this;

use both::processes::train;
use program::result;
use std::process::ExitCode;
use tempfile::TempDir;
use this::PROGRAM;
use vit_common::launching::digest;

const TESTS: &[both::Test] = both::tests![blocks_are_recomputed_with_their_dropout];

fn main() -> ExitCode {
    both::main(TESTS, Vec::new())
}

fn blocks_are_recomputed_with_their_dropout() {
    let home = TempDir::new().unwrap();
    let run = |name: &str, more: &[&str]| {
        let new = ["--epochs", "2", "--batch-size", "128", "--dropout", "0.1"];
        result(train(2, &home.path().join(name), &new).args(more))
    };
    let recomputed = run(
        "recomputed",
        &["--checkpointing", "blocks", "--shard-optimizer"],
    );
    assert_eq!(digest(&recomputed), digest(&run("kept", &[])));
}
