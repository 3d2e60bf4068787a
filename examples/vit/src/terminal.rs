//! How a program speaks: help as clap has it, errors in one line.

use anyhow::{Context, Result};
use clap::error::ErrorKind;
use std::io::{self, Write};
use std::process::ExitCode;

/// Help and version as clap has them; an error in one line.
pub fn usage(error: &clap::Error) -> ExitCode {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            let _ = error.print();
            ExitCode::SUCCESS
        }
        _ => {
            let text = error.render().to_string();
            let first = text.split("\n\n").next().unwrap_or_default();
            eprintln!("{}", one_line(first));
            ExitCode::from(2)
        }
    }
}

/// `text` without its line breaks.
pub fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Writes a line to stdout.
pub fn say(line: &str) -> Result<()> {
    writeln!(io::stdout().lock(), "{line}").context("cannot write to stdout")
}
