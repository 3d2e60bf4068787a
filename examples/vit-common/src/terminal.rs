//! What the programs share: their exit codes, errors in one line, and sizes.

use crate::files::is_about_writing;
use anyhow::{Context, Result};
use clap::Parser;
use clap::error::ErrorKind;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

/// The exit code of any other error.
const FAILURE: u8 = 1;

/// The exit code if a file could not be written: that of BSD's `sysexits.h`.
pub const CANNOT_WRITE: u8 = 74;

/// Parses the command line and runs the program. An error goes to stderr in one line; the exit code
/// is then 1, 2 if the command line is wrong, or 74 if a file could not be written.
pub fn main<C: Parser>(run: impl FnOnce(C) -> Result<ExitCode>) -> ExitCode {
    let done = match C::try_parse() {
        Ok(cli) => run(cli),
        Err(error) => return usage(&error),
    };
    done.unwrap_or_else(|error| ExitCode::from(fail(&error)))
}

/// Writes an error to stderr in one line; returns the exit code for it.
pub fn fail(error: &anyhow::Error) -> u8 {
    note(&format!("error: {}", one_line(&format!("{error:#}"))));
    match is_about_writing(error) {
        true => CANNOT_WRITE,
        false => FAILURE,
    }
}

/// Writes a line to stderr. Whoever reads it may be gone, as a terminal that is closed: what is
/// trained does not depend on that.
pub fn note(line: &str) {
    let _ = writeln!(io::stderr().lock(), "{line}");
}

/// Help and version as clap formats them; an error in one line.
fn usage(error: &clap::Error) -> ExitCode {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            let _ = error.print();
            ExitCode::SUCCESS
        }
        _ => {
            let text = error.render().to_string();
            let first = text.split("\n\n").next().unwrap_or_default();
            note(&one_line(first));
            ExitCode::from(2)
        }
    }
}

/// `text` without its line breaks.
fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Writes a line to stdout.
pub fn say(line: &str) -> Result<()> {
    writeln!(io::stdout().lock(), "{line}").context("cannot write to stdout")
}

/// A path in a command, as a shell takes it.
pub fn quoted(path: &Path) -> String {
    let path = path.to_string_lossy();
    let is_plain = |letter: char| letter.is_alphanumeric() || "/._-+,:=@%".contains(letter);
    match !path.is_empty() && path.chars().all(is_plain) {
        true => path.into_owned(),
        false => format!("'{}'", path.replace('\'', r"'\''")),
    }
}

/// Bytes in MiB, without the unit.
pub fn mib(bytes: impl Into<i128>, decimals: usize) -> String {
    format!("{:.decimals$}", bytes.into() as f64 / f64::from(1 << 20))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_has_one_line() {
        assert_eq!(one_line("one\n  two\n\nthree "), "one two three");
    }

    #[test]
    fn a_path_is_quoted_if_a_shell_would_cut_it() {
        for (path, said) in [
            ("artifacts/vit", "artifacts/vit"),
            ("my runs/a", "'my runs/a'"),
            ("it's", r"'it'\''s'"),
            ("$HOME", "'$HOME'"),
        ] {
            assert_eq!(quoted(Path::new(path)), said);
        }
    }

    #[test]
    fn bytes_are_mebibytes() {
        assert_eq!(mib(0u64, 1), "0.0");
        assert_eq!(mib(3u64 << 19, 1), "1.5");
        assert_eq!(mib(4678u64 << 20, 2), "4678.00");
        assert_eq!(mib(-(3i64 << 19), 1), "-1.5");
    }
}
