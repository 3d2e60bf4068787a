//! The program as a user runs it: its output, its files and its exit codes.

#[path = "../../../../vit-common/tests/cli.rs"]
mod both;
#[path = "../../../../vit-common/tests/program.rs"]
mod program;
mod this;

mod interrupting;
mod memory_timeline;
mod training;

use this::PROGRAM;
