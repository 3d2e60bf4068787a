//! The command line.

mod args;
mod settings;

use crate::run_folder::RunFolder;
use crate::train::{self, Ending};
use anyhow::Result;
use args::TrainArgs;
use clap::{Parser, Subcommand};
use std::num::NonZeroUsize;
use std::process::ExitCode;
use vit_common::summary::summary;
use vit_common::terminal::{self, say};

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
    let (config, data, folder, from);
    if args.resume {
        folder = RunFolder::open(path)?;
        (config, data) = args.resolve(Some(&folder.settings()?))?;
        from = folder.newest()?;
        folder.save_settings(&config)?;
        match &from {
            Some(checkpoint) => eprintln!("going on after epoch {}", checkpoint.epoch()),
            None => eprintln!("no epoch was finished: beginning with the first"),
        }
    } else {
        RunFolder::ensure_free(path, args.overwrite)?;
        (config, data) = args.resolve(None)?;
        folder = RunFolder::create(path, args.overwrite)?;
        from = None;
        folder.start(&config)?;
    }

    let stop_after = args.stop_after.map(NonZeroUsize::get);
    match train::run(&config, &data, &folder, from, stop_after)? {
        Ending::Finished(results) => {
            let table = summary(&config.model, config.engine.mode, false, &results);
            if args.json {
                eprintln!("{table}");
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
                    eprintln!("stopped; {command} continues from the checkpoint of epoch {epoch}");
                }
                None => eprintln!(
                    "stopped before the first checkpoint; {command} begins with the first epoch"
                ),
            }
        }
    }
    Ok(ExitCode::SUCCESS)
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
