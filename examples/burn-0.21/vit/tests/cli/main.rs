//! The program as a user runs it: its output, its files and its exit codes.

#[path = "../../../../vit-common/tests/cli.rs"]
mod both;
#[path = "../../../../vit-common/tests/memory_timeline.rs"]
mod memory_timeline;
#[path = "../../../../vit-common/tests/program.rs"]
mod program;
mod this;

mod interrupting;
mod training;

use this::PROGRAM;
