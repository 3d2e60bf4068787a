//! The command line.

mod args;
mod settings;

use crate::config::{Mode, TrainConfig};
use crate::run_folder::RunFolder;
use crate::train::{self, Ending, is_first};
use anyhow::{Result, ensure};
use args::TrainArgs;
use burn_lean::DataParallel;
use clap::{Parser, Subcommand};
use std::num::NonZeroUsize;
use std::process::ExitCode;
use vit_common::data::Dataset;
use vit_common::parallel::{self, check_shares};
use vit_common::summary::summary;
use vit_common::terminal::{self, note, say};

#[derive(Debug, Parser)]
#[command(
    name = "lean-vit",
    version,
    about = "Trains a vision transformer on Burn 0.22, plainly or with gradient release",
    long_about = "Trains a vision transformer on Burn 0.22, plainly or with gradient release.\n\n\
                  Without a subcommand this is `lean-vit train`.",
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
    let path = &args.artifact_dir;
    let parallel = data_parallel(args)?;
    let parallel = parallel.as_ref();
    let (config, data, folder, from);
    if !is_first(parallel) {
        // The first process has begun the run, or has it open.
        meet(parallel)?;
        folder = RunFolder::read(path);
        let saved = args.resume.then(|| folder.settings()).transpose()?;
        (config, data) = args.resolve(saved.as_ref())?;
        from = saved
            .and_then(|_| folder.newest(&config).transpose())
            .transpose()?;
    } else if args.resume {
        folder = RunFolder::open(path)?;
        (config, data) = args.resolve(Some(&folder.settings()?))?;
        check_parallel(parallel, &config, &data)?;
        from = folder.newest(&config)?;
        folder.save_settings(&config)?;
        match &from {
            Some(checkpoint) => note(&format!("going on after epoch {}", checkpoint.epoch())),
            None => note("no epoch was finished: beginning with the first"),
        }
    } else {
        RunFolder::ensure_free(path, args.overwrite)?;
        (config, data) = args.resolve(None)?;
        check_parallel(parallel, &config, &data)?;
        folder = RunFolder::create(path, args.overwrite)?;
        from = None;
        folder.start(&config)?;
    }
    if is_first(parallel) {
        meet(parallel)?;
    }

    let stop_after = args.stop_after.map(NonZeroUsize::get);
    match train::run(&config, &data, parallel, &folder, from, stop_after)? {
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
            let command = format!(
                "`lean-vit train --resume --artifact-dir {}`",
                path.display()
            );
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
    Ok(ExitCode::SUCCESS)
}

fn data_parallel(args: &TrainArgs) -> Result<Option<DataParallel>> {
    if !args.data_parallel {
        return Ok(None);
    }
    let parallel = DataParallel::new(parallel::join("lean-vit", args.timeout)?);
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
