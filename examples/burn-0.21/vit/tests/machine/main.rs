//! What wants more of the machine than its processor: several processes, a disk of its own, a GPU.

#[path = "../../../../vit-common/tests/machine/mod.rs"]
mod both;
#[path = "../../../../vit-common/tests/program/mod.rs"]
mod program;
#[path = "../this/mod.rs"]
mod this;

mod gpu;
mod processes;

use std::process::ExitCode;
use this::PROGRAM;

fn main() -> ExitCode {
    both::main(processes::TESTS, gpu::tests())
}
