//! The program `burn-memory`.

mod savings;
mod summary;
mod text;

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::error::ErrorKind;
use clap::{Parser, Subcommand};

use crate::snapshot::Snapshot;
use text::one_line;

#[derive(Debug, Parser)]
#[command(
    name = "burn-memory",
    version,
    about = "Says where the memory of a training goes, from a recorded snapshot",
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
    /// Estimate what gradient release and other optimizers save, from a recording of plain Burn
    Savings {
        /// A snapshot
        file: PathBuf,
        /// Choose what to switch on to fit into so much memory, such as 300MiB or 2GiB
        #[arg(long, value_name = "MEMORY", value_parser = bytes)]
        fit: Option<u64>,
    },
}

const HELP: &str = "\
A snapshot is the JSON file that the recorder of burn-lean, or of burn-gradient-release-timeline,
saves during a training, or that of PyTorch: json.dump(torch.cuda.memory._snapshot(), file).
pytorch.org/memory_viz draws it.";

/// Runs the program.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    match run(cli.task).and_then(|text| say(&text)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&one_line(&format!("error: {error:#}")), 1),
    }
}

fn run(task: Task) -> Result<String> {
    match task {
        Task::Summary { file } => Ok(summary::summary(&Snapshot::load(file)?)),
        Task::Savings { file, fit } => savings::savings(&Snapshot::load(file)?, fit),
    }
}

/// Prints help and version as clap formats them, and an error in one line.
fn usage(error: &clap::Error) -> ExitCode {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            let _ = error.print();
            ExitCode::SUCCESS
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => fail(
            "error: say what to do: summary or savings; --help says more",
            2,
        ),
        _ => {
            let text = error.render().to_string();
            fail(&one_line(text.split("\n\n").next().unwrap_or_default()), 2)
        }
    }
}

/// Writes a line to stderr, which nobody may be reading any more.
fn fail(line: &str, code: u8) -> ExitCode {
    let _ = writeln!(io::stderr().lock(), "{line}");
    ExitCode::from(code)
}

fn say(text: &str) -> Result<()> {
    match io::stdout().lock().write_all(text.as_bytes()) {
        // The reader has closed the pipe, as `head` does.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        done => done.context("cannot write to stdout"),
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
