//! The program `burn-memory`.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    lean_timeline::cli::main()
}
