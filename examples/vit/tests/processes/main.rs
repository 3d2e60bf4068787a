//! The program in several processes.

#[path = "../../../tests/vit/processes.rs"]
mod both;
#[path = "../../../tests/vit/program.rs"]
mod program;
#[path = "../cli/this.rs"]
mod this;

use this::PROGRAM;
