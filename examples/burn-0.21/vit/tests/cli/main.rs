//! The program as a user runs it: its output, its files and its exit codes.

#[path = "../../../../vit-common/tests/cli/mod.rs"]
mod both;
#[path = "../../../../vit-common/tests/program/mod.rs"]
mod program;
#[path = "../this/mod.rs"]
mod this;

mod data;
mod disk;
mod interrupting;
mod memory_timeline;
mod resuming;
mod training;

use this::PROGRAM;
