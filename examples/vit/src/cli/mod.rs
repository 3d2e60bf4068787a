//! The command line.

mod args;
mod ctrl_c;
mod settings;

use crate::artifacts::Artifacts;
use crate::backend;
use crate::config::{Engine, Mode};
use crate::terminal::{self, note, say};
use crate::train::{Ending, Train};
use anyhow::{Result, ensure};
use args::TrainArgs;
use burn::train::Interrupter;
use burn_data_parallel::DataParallel;
use clap::{Parser, Subcommand};
use ctrl_c::INTERRUPTED;
use std::fs::File;
use std::io::{self, IsTerminal};
use std::num::NonZeroUsize;
use std::path::Path;
use std::process::ExitCode;
use vit_common::parallel::{self, check_settings, check_shares};
use vit_common::summary::summary;

#[derive(Debug, Parser)]
#[command(
    name = "vit",
    version,
    about = "Trains a vision transformer with gradient release",
    long_about = "Trains a vision transformer with gradient release.\n\nWithout a subcommand this \
                  is `vit train`.",
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
pub type Run = fn(&Engine, Train<'_>) -> Result<Ending>;

/// Runs the program.
pub fn main(run: Run) -> ExitCode {
    terminal::main(|cli: Cli| match cli.command {
        None => train(&cli.train, run),
        Some(Task::Train(args)) => train(&args, run),
    })
}

fn train(args: &TrainArgs, run: Run) -> Result<ExitCode> {
    let parallel = data_parallel(args)?;
    let rank = parallel.as_ref().map(|parallel| parallel.replicas().rank());
    let artifacts = Artifacts::of_rank(&args.artifact_dir, rank.unwrap_or_default());
    let saved = if args.resume {
        Some(artifacts.settings()?)
    } else {
        if !args.overwrite && artifacts.is_of_first_rank() {
            artifacts.ensure_free()?;
        }
        None
    };
    let (config, data) = args.resolve(saved.as_ref())?;
    if let Some(parallel) = &parallel {
        ensure!(
            config.engine.mode == Mode::Release,
            "--data-parallel needs gradient release: use --mode release"
        );
        check_shares(parallel.replicas(), data.train.len(), config.batch_size)?;
    }
    if let Some(file) = &args.memory_timeline {
        // Found when the training is done, else.
        ensure!(
            !file.is_dir(),
            "--memory-timeline takes a file, and {} is a folder",
            file.display()
        );
        let folder = file.parent().filter(|folder| *folder != Path::new(""));
        ensure!(
            folder.is_none_or(Path::is_dir),
            "--memory-timeline cannot write {}: choose a folder that exists",
            file.display()
        );
        backend::can_record(&config.engine)?;
    }
    let mut _lock = None;
    if artifacts.is_of_first_rank() {
        _lock = Some(artifacts.lock()?);
        if !args.overwrite && !args.resume {
            artifacts.ensure_no_run()?;
        }
    }
    if let Some(parallel) = &parallel {
        // Not before the first of them has looked at the folder.
        parallel.replicas().meet("the beginning")?;
        check_settings(parallel.replicas(), &serde_json::to_value(&config)?)?;
    }

    let interrupter = Interrupter::new();
    ctrl_c::stop(interrupter.clone(), shows_tui(args))?;
    let ending = run(
        &config.engine,
        Train {
            config: &config,
            data: &data,
            artifacts: &artifacts,
            parallel: parallel.as_ref(),
            resume: args.resume,
            interrupter,
            stop_after: args.stop_after.map(NonZeroUsize::get),
            memory_timeline: args.memory_timeline.as_deref(),
            tui: shows_tui(args),
        },
    )?;
    if let Some(file) = &args.memory_timeline {
        let file = file.display();
        note(&format!(
            "memory timeline written: {file}; `burn-memory summary {file}` reads it"
        ));
    }
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
            if args.json {
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
            let folder = artifacts.folder().display();
            let command = format!("`vit train --resume --artifact-dir {folder}`");
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

/// Whether to show Burn's terminal UI. It takes the terminal for itself, and needs one for keys
/// too: `mpirun` gives each process a stdout that is one, and there may be no other, as in a batch
/// job.
fn shows_tui(args: &TrainArgs) -> bool {
    // With --json, stdout has the one line only.
    let is_wanted = !args.json && !args.no_tui && !args.data_parallel;
    let has_keys = || io::stdin().is_terminal() || File::open("/dev/tty").is_ok();
    is_wanted && io::stdout().is_terminal() && has_keys()
}

fn data_parallel(args: &TrainArgs) -> Result<Option<DataParallel>> {
    if !args.data_parallel {
        return Ok(None);
    }
    let parallel = DataParallel::new(parallel::join("vit", args.timeout)?);
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
