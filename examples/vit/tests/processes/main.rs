//! The program in several processes.

#[path = "../../../vit-common/tests/processes.rs"]
mod both;
#[path = "../../../vit-common/tests/program.rs"]
mod program;
#[path = "../cli/this.rs"]
mod this;

use this::PROGRAM;
