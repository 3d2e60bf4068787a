//! The program `burn-memory`.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    burn_gradient_release_timeline::viewer::main()
}
