//! The command line.

mod args;
mod ctrl_c;
mod settings;

use crate::artifacts::Artifacts;
use crate::backend;
use crate::config::{Engine, Mode, TrainConfig};
use crate::terminal::{self, note, quoted, say};
use crate::train::{Ended, Ending, Train};
use anyhow::{Result, ensure};
use args::TrainArgs;
use burn::train::Interrupter;
use burn_gradient_release_data_parallel::DataParallel;
use clap::{Parser, Subcommand};
use ctrl_c::INTERRUPTED;
use std::fs::{self, File};
use std::io::{self, IsTerminal};
use std::num::NonZeroUsize;
#[cfg(unix)]
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::process::{self, ExitCode};
use vit_common::files::CannotWrite;
use vit_common::parallel::{self, check_settings, check_shares};
use vit_common::summary::summary;

#[derive(Debug, Parser)]
#[command(
    name = "vit-0-21",
    version,
    about = "Trains a vision transformer with gradient release",
    long_about = "Trains a vision transformer with gradient release.\n\nWithout a subcommand this \
                  is `vit-0-21 train`.",
    args_conflicts_with_subcommands = true
)]
struct Cli {
    #[command(subcommand)]
    command: Option<Task>,
    #[command(flatten)]
    train: TrainArgs,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Train a classifier of images
    Train(TrainArgs),
}

/// Runs a training on the backend that the engine names.
///
/// The binary passes it in. Defined in this library, it would compile the training on every
/// backend, which takes minutes, into everything that uses the library.
pub type Run = fn(&Engine, Train<'_>) -> Result<Ended>;

/// Runs the program.
pub fn main(run: Run) -> ExitCode {
    terminal::main(|cli: Cli| match cli.command {
        None => train(&cli.train, run),
        Some(Task::Train(args)) => train(&args, run),
    })
}

fn train(args: &TrainArgs, run: Run) -> Result<ExitCode> {
    let parallel = data_parallel(args)?;
    let done = train_as(parallel.as_ref(), args, run);
    // Before this process takes its leave of the others, which may not answer.
    Ok(done.unwrap_or_else(|error| ExitCode::from(terminal::fail(&error))))
}

fn train_as(parallel: Option<&DataParallel>, args: &TrainArgs, run: Run) -> Result<ExitCode> {
    let rank = parallel.map(|parallel| parallel.replicas().rank());
    let artifacts = Artifacts::of_rank(&args.artifact_dir, rank.unwrap_or_default());
    let saved = if args.resume {
        Some(artifacts.settings()?)
    } else {
        if artifacts.is_of_first_rank() {
            artifacts.ensure_free(args.overwrite)?;
        }
        None
    };
    let (config, data) = args.resolve(saved.as_ref())?;
    if let Some(parallel) = parallel {
        ensure!(
            config.engine.mode == Mode::Release,
            "--data-parallel needs gradient release: use --mode release"
        );
        check_shares(parallel.replicas(), data.train.len(), config.batch_size)?;
    }
    // Every process would write the same file.
    let memory_timeline = args.memory_timeline.as_deref();
    let memory_timeline = memory_timeline.filter(|_| artifacts.is_of_first_rank());
    if let Some(file) = memory_timeline {
        backend::can_record(&config.engine)?;
        ensure_writable(file)?;
    }
    let mut _lock = None;
    if artifacts.is_of_first_rank() {
        _lock = Some(artifacts.lock()?);
        if !args.resume {
            artifacts.ensure_no_run(args.overwrite)?;
        }
    }
    if let Some(parallel) = parallel {
        // Not before the first of them has looked at the folder.
        parallel.replicas().meet("the beginning")?;
        check_settings(parallel.replicas(), &serde_json::to_value(&config)?)?;
    }

    let interrupter = Interrupter::new();
    ctrl_c::stop(interrupter.clone(), shows_tui(args))?;
    let Ended {
        ending,
        memory_timeline: recorded,
    } = run(
        &config.engine,
        Train {
            config: &config,
            data: &data,
            artifacts: &artifacts,
            parallel,
            resume: args.resume,
            interrupter,
            stop_after: args.stop_after.map(NonZeroUsize::get),
            memory_timeline,
            tui: shows_tui(args),
        },
    )?;
    let code = report(ending, &config, &artifacts, args.json)?;
    // Last: the results are there without it.
    recorded?;
    if let Some(file) = memory_timeline {
        note(&format!(
            "memory timeline written: {}; `burn-memory summary {}` reads it",
            file.display(),
            quoted(file)
        ));
    }
    Ok(code)
}

/// Says how a run has ended; its exit code.
fn report(
    ending: Ending,
    config: &TrainConfig,
    artifacts: &Artifacts,
    json: bool,
) -> Result<ExitCode> {
    match ending {
        Ending::OfAnotherRank { by_ctrl_c: true } => Ok(ExitCode::from(INTERRUPTED)),
        Ending::OfAnotherRank { by_ctrl_c: false } => Ok(ExitCode::SUCCESS),
        Ending::Finished(results) => {
            let table = summary(
                &config.model,
                config.engine.mode,
                config.grads_accumulation > 1,
                &results,
            );
            if json {
                note(&table);
                say(&serde_json::to_string(&results)?)?;
            } else {
                say(&table)?;
            }
            Ok(ExitCode::SUCCESS)
        }
        Ending::Interrupted {
            resume_point,
            by_ctrl_c,
        } => {
            let folder = quoted(artifacts.folder());
            let command = format!("`vit-0-21 train --resume --artifact-dir {folder}`");
            match resume_point {
                Some(epoch) => {
                    note(&format!(
                        "stopped; {command} continues from the checkpoint of epoch {epoch}"
                    ));
                }
                None => note(&format!(
                    "stopped before the first checkpoint; {command} begins with the first epoch"
                )),
            }
            Ok(if by_ctrl_c {
                ExitCode::from(INTERRUPTED)
            } else {
                ExitCode::SUCCESS
            })
        }
    }
}

/// Fails if a memory timeline cannot be written there, which is found after the training, else.
fn ensure_writable(file: &Path) -> Result<()> {
    ensure!(
        !file.is_dir(),
        "--memory-timeline takes a file, and {} is a folder",
        file.display()
    );
    // It is replaced, which a device would not survive.
    ensure!(
        !file.exists() || file.is_file(),
        "--memory-timeline takes a file, and {} is none",
        file.display()
    );
    let folder = file.parent().filter(|folder| *folder != Path::new(""));
    let folder = folder.unwrap_or(Path::new("."));
    ensure!(
        folder.is_dir(),
        "--memory-timeline cannot write {}: choose a folder that exists",
        file.display()
    );
    // As the file itself, which replaces what is there.
    let beside = folder.join(format!(".memory-timeline-{}", process::id()));
    let written = File::create(&beside).and_then(|_| fs::remove_file(&beside));
    written.map_err(|error| {
        let file = file.display();
        CannotWrite(format!("--memory-timeline cannot write {file}: {error}")).into()
    })
}

/// Whether to show Burn's terminal UI. It takes the terminal for itself, and needs one for keys
/// too: `mpirun` gives each process a stdout that is one, and there may be no other, as in a batch
/// job. A shell's job in the background would be stopped as soon as it takes the terminal.
fn shows_tui(args: &TrainArgs) -> bool {
    // With --json, stdout has the one line only.
    let is_wanted = !args.json && !args.no_tui && !args.data_parallel;
    is_wanted && io::stdout().is_terminal() && has_keys()
}

#[cfg(unix)]
fn has_keys() -> bool {
    let is_in_foreground = |terminal: BorrowedFd<'_>| {
        let group = rustix::termios::tcgetpgrp(terminal);
        group.is_ok_and(|group| group == rustix::process::getpgrp())
    };
    match io::stdin().is_terminal() {
        true => is_in_foreground(io::stdin().as_fd()),
        false => File::open("/dev/tty").is_ok_and(|terminal| is_in_foreground(terminal.as_fd())),
    }
}

#[cfg(not(unix))]
fn has_keys() -> bool {
    io::stdin().is_terminal()
}

fn data_parallel(args: &TrainArgs) -> Result<Option<DataParallel>> {
    if !args.data_parallel {
        return Ok(None);
    }
    let parallel = DataParallel::new(parallel::join("vit-0-21", args.timeout)?);
    Ok(Some(match args.shard_optimizer {
        true => parallel.with_sharded_optimizer(),
        false => parallel,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn clap_accepts_the_command_line() {
        Cli::command().debug_assert();
    }
}
