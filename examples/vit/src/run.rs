//! The program: options, the run in its folder, and how the training has ended.

use crate::device;
use crate::settings::Settings;
use crate::train::{Ending, PARTS, Train};
use anyhow::{Context, Result};
use burn_lean::DataParallel;
use clap::Args;
use lean_run_folder::fail;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process::ExitCode;
use vit_common::parallel::join;
use vit_common::run::{self, Run};
use vit_common::terminal;

const PROGRAM: &str = "vit";

/// The options of `train`.
#[derive(Debug, Args)]
struct AllOptions {
    #[command(flatten)]
    run: run::Options<Settings>,
    /// Record a memory timeline of the third and the fourth batch; `burn-memory` shows the file
    #[arg(long, value_name = "FILE")]
    memory_timeline: Option<PathBuf>,
}

/// Runs the program.
pub fn main() -> ExitCode {
    let about = "Trains a vision transformer on Burn 0.22, plainly or with gradient release";
    let (options, given) = match terminal::options::<AllOptions>(PROGRAM, about) {
        Ok(options) => options,
        Err(code) => return code,
    };
    let parallel = match data_parallel(&options.run) {
        Ok(parallel) => parallel,
        Err(error) => return fail(&*error),
    };
    match train(&options, &given, parallel.as_ref()) {
        Ok(()) => ExitCode::SUCCESS,
        // Before this process leaves the others, which may not answer.
        Err(error) => fail(&*error),
    }
}

fn data_parallel(options: &run::Options<Settings>) -> Result<Option<DataParallel>> {
    if !options.data_parallel {
        return Ok(None);
    }
    let parallel = DataParallel::new(join(PROGRAM, options.timeout)?);
    Ok(Some(match options.shard_optimizer {
        true => parallel.with_sharded_optimizer(),
        false => parallel,
    }))
}

fn train(
    AllOptions {
        run: options,
        memory_timeline,
    }: &AllOptions,
    given: &[String],
    parallel: Option<&DataParallel>,
) -> Result<()> {
    let replicas = parallel.map(DataParallel::replicas);
    let mut device = None;
    let mut run = Run::begin(PROGRAM, options, given, &PARTS, replicas, |settings, _| {
        settings.check(given)?;
        device = Some(device::open(settings.device)?);
        Ok(())
    })?;
    let train = Train {
        settings: &run.settings,
        data: &run.data,
        parallel,
        checkpoints: &run.checkpoints,
        device: device.context("no device was opened")?,
        stop_after: options.stop_after.map(NonZeroUsize::get),
        memory_timeline: memory_timeline.as_deref(),
    };
    match train.run(run.resume_point)? {
        Ending::OfAnotherRank => {}
        Ending::Stopped(epoch) => options.say_how_to_resume(PROGRAM, epoch),
        Ending::Finished(results) => run.finish(&results, options.json)?,
    }
    Ok(())
}
