//! The command line.

mod args;
mod settings;

use crate::config::{Mode, TrainConfig};
use crate::run_folder::{Checkpoint, RunFolder};
use crate::train::{self, Ending, is_first};
use anyhow::{Result, ensure};
use args::TrainArgs;
use burn_lean::DataParallel;
use clap::{Parser, Subcommand};
use std::num::NonZeroUsize;
use std::process::ExitCode;
use vit_common::data::Dataset;
use vit_common::parallel::{self, check_settings, check_shares};
use vit_common::summary::summary;
use vit_common::terminal::{self, note, quoted, say};

#[derive(Debug, Parser)]
#[command(
    name = "vit",
    version,
    about = "Trains a vision transformer on Burn 0.22, plainly or with gradient release",
    long_about = "Trains a vision transformer on Burn 0.22, plainly or with gradient release.\n\n\
                  Without a subcommand this is `vit train`.",
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

/// Runs the program.
pub fn main() -> ExitCode {
    terminal::main(|cli: Cli| match cli.command {
        None => train(&cli.train),
        Some(Task::Train(args)) => train(&args),
    })
}

fn train(args: &TrainArgs) -> Result<ExitCode> {
    let parallel = data_parallel(args)?;
    let done = train_as(parallel.as_ref(), args);
    // Before this process takes its leave of the others, which may not answer.
    Ok(done.unwrap_or_else(|error| ExitCode::from(terminal::fail(&error))))
}

fn train_as(parallel: Option<&DataParallel>, args: &TrainArgs) -> Result<ExitCode> {
    let (config, data, folder) = prepare(parallel, args)?;
    if let Some(parallel) = parallel {
        // Before anything of an earlier run is removed.
        parallel.replicas().meet("the beginning")?;
        check_settings(parallel.replicas(), &serde_json::to_value(&config)?)?;
    }
    let from = begin(parallel, args.resume, &config, &folder)?;
    let stop_after = args.stop_after.map(NonZeroUsize::get);
    let ending = train::run(&config, &data, parallel, &folder, from, stop_after)?;
    report(ending, &config, args)?;
    Ok(ExitCode::SUCCESS)
}

/// The settings, the images and the folder of a run, in which the first process changes nothing yet
/// but the lock.
fn prepare(
    parallel: Option<&DataParallel>,
    args: &TrainArgs,
) -> Result<(TrainConfig, Dataset, RunFolder)> {
    let path = &args.artifact_dir;
    let is_first = is_first(parallel);
    let resolve = |saved: Option<&TrainConfig>| -> Result<_> {
        let (config, data) = args.resolve(saved)?;
        check_parallel(parallel, &config, &data)?;
        Ok((config, data))
    };
    if args.resume {
        let folder = match is_first {
            true => RunFolder::open(path)?,
            false => RunFolder::read(path),
        };
        let (config, data) = resolve(Some(&folder.settings()?))?;
        return Ok((config, data, folder));
    }
    if is_first {
        RunFolder::ensure_free(path, args.overwrite)?;
    }
    let (config, data) = resolve(None)?;
    let folder = match is_first {
        true => RunFolder::create(path, args.overwrite)?,
        false => RunFolder::read(path),
    };
    Ok((config, data, folder))
}

/// Makes the folder that of this run; the checkpoint to go on from.
fn begin(
    parallel: Option<&DataParallel>,
    resume: bool,
    config: &TrainConfig,
    folder: &RunFolder,
) -> Result<Option<Checkpoint>> {
    let is_first = is_first(parallel);
    if !is_first {
        // The first process cleans up before the others look.
        meet(parallel)?;
    }
    let from = match resume {
        true => folder.newest(config)?,
        false => None,
    };
    if is_first {
        if resume {
            folder.save_settings(config)?;
            match &from {
                Some(checkpoint) => note(&format!("going on after epoch {}", checkpoint.epoch())),
                None => note("no epoch was finished: beginning with the first"),
            }
        } else {
            folder.start(config)?;
        }
        meet(parallel)?;
    }
    Ok(from)
}

/// Says how a run has ended.
fn report(ending: Ending, config: &TrainConfig, args: &TrainArgs) -> Result<()> {
    match ending {
        Ending::OfAnotherRank => {}
        Ending::Finished(results) => {
            let table = summary(&config.model, config.engine.mode, false, &results);
            if args.json {
                note(&table);
                say(&serde_json::to_string(&results)?)?;
            } else {
                say(&table)?;
            }
        }
        Ending::Stopped(epoch) => {
            let folder = quoted(&args.artifact_dir);
            let command = format!("`vit train --resume --artifact-dir {folder}`");
            match epoch {
                Some(epoch) => {
                    note(&format!(
                        "stopped; {command} continues from the checkpoint of epoch {epoch}"
                    ));
                }
                None => note(&format!(
                    "stopped before the first checkpoint; {command} begins with the first epoch"
                )),
            }
        }
    }
    Ok(())
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

/// Whether these settings are for several processes.
fn check_parallel(
    parallel: Option<&DataParallel>,
    config: &TrainConfig,
    data: &Dataset,
) -> Result<()> {
    let Some(parallel) = parallel else {
        return Ok(());
    };
    ensure!(
        config.engine.mode == Mode::Release,
        "--data-parallel needs gradient release: use --mode release"
    );
    check_shares(parallel.replicas(), data.train.len(), config.batch_size)
}

/// Goes on once all processes are there.
fn meet(parallel: Option<&DataParallel>) -> Result<()> {
    if let Some(parallel) = parallel {
        parallel.replicas().meet("the folder")?;
    }
    Ok(())
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
