//! The program as a user runs it: its output and its files.

#[path = "../../../../tests/vit/cli.rs"]
mod both;
#[path = "../../../../tests/vit/memory_timeline.rs"]
mod memory_timeline;
#[path = "../../../../tests/vit/program.rs"]
mod program;
mod this;

use program::{Home, result};
use std::fs;
use this::PROGRAM;

/// In every batch, all parameters were stepped inside the backward pass.
#[test]
fn every_parameter_is_released() {
    let home = Home::new();
    result(&mut home.train("run", 1, ""));
    let log = home.folder("run/train/epoch-1/Released.log");
    assert_eq!(fs::read_to_string(log).unwrap(), "100,1\n".repeat(4));
}
