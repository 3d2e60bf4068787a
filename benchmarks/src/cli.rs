//! The command line: a suite, or the one run of a measuring process.

use crate::measure::Spec;
use crate::options::Options;
use crate::results::{Measured, Results};
use crate::{suite, table};
use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use lean_run_folder::{CannotWrite, Lock, command_line, fail, note, write_json};
use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

/// The hidden subcommand that makes this program a measuring process.
pub const MEASURE: &str = "measure";

const JSON: &str = "results.json";
const TABLE: &str = "table.md";

#[derive(Debug, Parser)]
#[command(
    name = "benchmarks",
    version,
    about = "Memory and time of a training step: Burn, gradient release, PyTorch and optimi",
    args_conflicts_with_subcommands = true,
    args_override_self = true,
    after_long_help = HELP
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    task: Option<Task>,
    #[command(flatten)]
    pub(crate) suite: Options,
}

#[derive(Debug, Subcommand)]
enum Task {
    #[command(name = MEASURE, hide = true)]
    Measure { spec: String },
}

const HELP: &str = "\
Lists are separated by commas, and every combination is measured. What cannot be combined is left out, and
the table says so, with the reason.

Every run has a separate process, so that none sees what another left in memory. In these processes
MALLOC_MMAP_THRESHOLD_ is 4 GiB and MALLOC_TRIM_THRESHOLD_ is 1 TiB, unless they are already set: glibc
then keeps freed memory for the next step, which makes step times comparable.

The results are written after each run, so those of an interrupted suite are there. The exit code is 1 if
a run failed; the results of the other runs are written all the same.";

/// Runs the program; `worker` measures a run, as a measuring process.
///
/// The binary passes it in. Defined in this library, it would compile the training on every
/// backend, which takes minutes, into the tests of the library too.
pub fn main(worker: fn(&Spec) -> Result<Measured>) -> ExitCode {
    let cli: Cli = match command_line() {
        Ok((cli, _given)) => cli,
        Err(code) => return code,
    };
    let done = match cli.task {
        Some(Task::Measure { spec }) => measure(&spec, worker),
        None => run(&cli.suite),
    };
    done.unwrap_or_else(|error| fail(&*error))
}

fn measure(spec: &str, worker: fn(&Spec) -> Result<Measured>) -> Result<ExitCode> {
    let spec = serde_json::from_str(spec).context("not a run to measure")?;
    say(&serde_json::to_string(&worker(&spec)?)?)?;
    Ok(ExitCode::SUCCESS)
}

fn say(line: &str) -> Result<()> {
    writeln!(io::stdout().lock(), "{line}").context("cannot write to stdout")
}

fn run(options: &Options) -> Result<ExitCode> {
    options.check()?;
    // Two suites would replace each other's results. And it fails before hours of work if they
    // cannot be written.
    let folder = &options.output;
    fs::create_dir_all(folder).map_err(|error| CannotWrite::to(folder, error))?;
    let _lock = Lock::acquire(folder)?;
    let results = suite::run(options, |so_far| {
        // The last of them may have room again, and says so if it has none.
        if let Err(error) = write(so_far, folder) {
            note(&format!("{error:#}"));
        }
    })?;
    // First: it is all there is if the files cannot be written.
    let shown = say(&table::table(&results));
    write(&results, folder)?;
    shown?;
    for name in [JSON, TABLE] {
        note(&format!("written: {}", folder.join(name).display()));
    }
    Ok(match results.failed.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

/// Replaces the files of the folder whole: whoever interrupts the suite has those of the runs
/// before.
fn write(results: &Results, folder: &Path) -> Result<()> {
    let unfinished = folder.join("unfinished-table.md");
    let table = format!("{}\n", table::table(results));
    write_json(folder, JSON, results)
        .and_then(|()| fs::write(&unfinished, table))
        .and_then(|()| fs::rename(&unfinished, folder.join(TABLE)))
        .map_err(|error| CannotWrite::to(folder, error).into())
}
