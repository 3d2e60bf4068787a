//! The start and the end of a program, and what it says meanwhile.

use anyhow::{Context, Result};
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Args, Command, Parser};
use lean_run_folder::fail;
use std::io::{self, Write};
use std::process::ExitCode;

pub use lean_run_folder::note;

/// Parses the command line and runs the program. An error goes to stderr in one line; the exit code
/// is then 1, 2 if the command line is wrong, or 74 if a file could not be written.
pub fn main<C: Parser>(run: impl FnOnce(C) -> Result<ExitCode>) -> ExitCode {
    let done = match C::try_parse() {
        Ok(cli) => run(cli),
        Err(error) => return usage(&error),
    };
    done.unwrap_or_else(|error| fail(&*error))
}

/// The options of `<program> train`, or of `<program>` alone, and the names of those that were given.
///
/// # Errors
///
/// The exit code, after help or an error was printed.
pub fn options<O: Args>(
    program: &'static str,
    about: &'static str,
) -> Result<(O, Vec<String>), ExitCode> {
    // After the options, whose own description would take its place.
    let of = |name| {
        O::augment_args(Command::new(name))
            .about(about)
            .long_about(None)
    };
    let command = of(program)
        .version(env!("CARGO_PKG_VERSION"))
        .subcommand(of("train"))
        .args_conflicts_with_subcommands(true);
    let parse = || {
        let matches = command.try_get_matches()?;
        let matches = matches.subcommand_matches("train").unwrap_or(&matches);
        let was_given = |name: &&str| matches.value_source(name) == Some(ValueSource::CommandLine);
        let names = matches.ids().map(clap::Id::as_str);
        let given = names.filter(was_given).map(String::from).collect();
        Ok((O::from_arg_matches(matches)?, given))
    };
    parse().map_err(|error: clap::Error| usage(&error))
}

/// Help and version as clap formats them; an error in one line.
fn usage(error: &clap::Error) -> ExitCode {
    if let ErrorKind::DisplayHelp | ErrorKind::DisplayVersion = error.kind() {
        let _ = error.print();
        return ExitCode::SUCCESS;
    }
    let text = error.render().to_string();
    let first = text.split("\n\n").next().unwrap_or_default();
    note(&first.split_whitespace().collect::<Vec<_>>().join(" "));
    ExitCode::from(2)
}

/// Writes a line to stdout.
pub fn say(line: &str) -> Result<()> {
    writeln!(io::stdout().lock(), "{line}").context("cannot write to stdout")
}

/// Bytes in MiB, without the unit.
pub fn mib(bytes: impl Into<i128>, decimals: usize) -> String {
    format!("{:.decimals$}", bytes.into() as f64 / f64::from(1 << 20))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_mebibytes() {
        assert_eq!(mib(3u64 << 19, 1), "1.5");
        assert_eq!(mib(4678u64 << 20, 2), "4678.00");
        assert_eq!(mib(-(3i64 << 19), 1), "-1.5");
    }
}
