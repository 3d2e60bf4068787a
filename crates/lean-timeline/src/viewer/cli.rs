//! The command line.

use super::{html, savings::savings, summary::summary, svg::svg, text::one_line};
use crate::snapshot::Snapshot;
use anyhow::{Context, Result, ensure};
use clap::error::ErrorKind;
use clap::{Args, Parser, Subcommand};
use same_file::is_same_file;
use std::fs;
use std::io::{self, Write};
use std::iter;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(Debug, Parser)]
#[command(
    name = "burn-memory",
    version,
    about = "Shows where the memory of a Burn training goes, from a recorded snapshot",
    after_long_help = HELP
)]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Print the peak, and what is in it
    Summary {
        /// A snapshot
        file: PathBuf,
    },
    /// Write a page for the browser: the whole recording, to zoom into and point at
    Html {
        #[command(flatten)]
        inputs: Inputs,
        /// Where the page goes
        #[arg(long, value_name = "PAGE")]
        output: PathBuf,
    },
    /// Estimate what gradient release and other optimizers save, from a recording of plain Burn
    Savings {
        /// A snapshot
        file: PathBuf,
        /// Choose what to switch on to fit into so much memory, such as 300MiB or 2GiB
        #[arg(long, value_name = "MEMORY", value_parser = bytes)]
        fit: Option<u64>,
    },
    /// Draw a picture for a README or a report
    Svg {
        #[command(flatten)]
        inputs: Inputs,
        /// Where the picture goes
        #[arg(long, value_name = "PICTURE")]
        output: PathBuf,
    },
}

#[derive(Debug, Args)]
struct Inputs {
    /// A snapshot
    file: PathBuf,
    /// Another one, to compare with it
    other: Option<PathBuf>,
}

const HELP: &str = "\
A snapshot is the file that the recorder of burn-lean, or of burn-gradient-release-timeline, saves during a
training. A page and a picture show two snapshots side by side.";

/// Runs the program.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    match run(&cli.task) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            note(&format!("error: {}", one_line(&format!("{error:#}"))));
            ExitCode::FAILURE
        }
    }
}

/// Prints help and version as clap formats them, and an error in one line.
fn usage(error: &clap::Error) -> ExitCode {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            let _ = error.print();
            ExitCode::SUCCESS
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            note("error: say what to do: summary, savings, html or svg; --help says more");
            ExitCode::from(2)
        }
        _ => {
            let text = error.render().to_string();
            let first = text.split("\n\n").next().unwrap_or_default();
            note(&one_line(first));
            ExitCode::from(2)
        }
    }
}

fn run(task: &Task) -> Result<()> {
    match task {
        Task::Summary { file } => say(&summary(&Snapshot::load(file)?)),
        Task::Savings { file, fit } => say(&savings(&Snapshot::load(file)?, *fit)?),
        Task::Html { inputs, output } => {
            inputs.convert(output, |snapshots| Ok(html::page(snapshots)?))
        }
        Task::Svg { inputs, output } => inputs.convert(output, svg),
    }
}

/// Parses a number of bytes with a unit.
fn bytes(text: &str) -> Result<u64, String> {
    let units = [("KiB", 10), ("MiB", 20), ("GiB", 30)];
    let parsed = units.iter().find_map(|(unit, shift)| {
        let number: f64 = text.strip_suffix(unit)?.trim().parse().ok()?;
        let bytes = number * f64::from(1 << shift);
        // Numbers that are exact.
        (bytes > 0.0 && bytes < 2_f64.powi(53)).then_some(bytes as u64)
    });
    parsed.ok_or_else(|| "give a number and a unit: KiB, MiB or GiB".into())
}

fn say(text: &str) -> Result<()> {
    match io::stdout().lock().write_all(text.as_bytes()) {
        // The reader has closed the pipe, as `head` does.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        done => done.context("cannot write to stdout"),
    }
}

/// Writes a line to stderr, which nobody may be reading any more.
fn note(line: &str) {
    let _ = writeln!(io::stderr().lock(), "{line}");
}

impl Inputs {
    fn convert(
        &self,
        output: &Path,
        make: impl FnOnce(&[Snapshot]) -> Result<String>,
    ) -> Result<()> {
        let mut snapshots = Vec::new();
        for input in iter::once(&self.file).chain(&self.other) {
            ensure!(
                // An error: one of them does not exist.
                !is_same_file(input, output).unwrap_or(false),
                "{} is what is to be read: choose another name for --output",
                output.display()
            );
            snapshots.push(Snapshot::load(input)?);
        }
        fs::write(output, make(&snapshots)?).with_context(|| {
            format!(
                "cannot write {}: choose another place with --output",
                output.display()
            )
        })?;
        note(&format!("written: {}", output.display()));
        Ok(())
    }
}
