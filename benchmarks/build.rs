//! Records the version of the compiler for the results.

use std::env;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let compiler = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let version = Command::new(compiler).arg("--version").output().ok();
    let version = version.and_then(|output| String::from_utf8(output.stdout).ok());
    let version = version.unwrap_or_else(|| "unknown".into());
    println!("cargo::rustc-env=BENCHMARKS_RUSTC={}", version.trim());
}
