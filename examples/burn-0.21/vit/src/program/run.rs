//! The program: options, the run in its folder, and how the training has ended.

use crate::backend;
use crate::train::{METRICS, PARTS, Train};
use anyhow::{Context, Result, ensure};
use burn::train::Interrupter;
use burn_gradient_release_data_parallel::{DataParallel, Replicas};
use burn_gradient_release_timeline::Snapshot;
use lean_run_folder::CannotWrite;
use std::fs;
use std::path::Path;
use std::process::ExitCode;
use vit_0_21::config::Settings;
use vit_0_21::stopping::{self, CTRL_C};
use vit_common::data::Dataset;
use vit_common::run::{self, Options, Run};

const PROGRAM: &str = "vit-0-21";

/// Runs the program.
pub(crate) fn main() -> ExitCode {
    let about = "Trains a vision transformer on Burn 0.21, with gradient release";
    run::main(PROGRAM, about, train)
}

fn train(
    options: &Options<Settings>,
    given: &[String],
    replicas: Option<&Replicas>,
) -> Result<ExitCode> {
    let check = |settings: &mut Settings, data: &Dataset| {
        settings.check(given, settings.train.batches(data))?;
        let engine = settings.engine;
        ensure!(
            options.memory_timeline.is_none() || engine.backend.is_on_heap() || !engine.fusion,
            "a memory timeline is recorded without fusion, which leaves no memory to an operation \
             until its block is run: add --no-fusion"
        );
        if let Some(file) = &options.memory_timeline {
            Snapshot::check_folder(file).context("no memory timeline")?;
        }
        Ok(())
    };
    let (mut run, ()) = Run::begin(PROGRAM, options, given, &PARTS, replicas, check)?;
    if run.is_first && !options.resume {
        remove_metrics(run.folder.path())?;
    }
    let parallel = replicas.cloned().map(DataParallel::new);
    let (ending, recorded) = backend::run(Train {
        run: &run,
        options,
        parallel: match options.shard_optimizer {
            true => parallel.map(DataParallel::with_sharded_optimizer),
            false => parallel,
        },
        interrupter: interrupter()?,
    })?;
    // The results are there, whatever has become of the recording.
    let code = run.end(PROGRAM, options, ending)?;
    recorded?;
    Ok(code)
}

/// Stops the training after its batch at Ctrl-C, and where a terminal is closed or a batch system
/// ends the program.
fn interrupter() -> Result<Interrupter> {
    let interrupter = Interrupter::new();
    #[cfg(unix)]
    lean_run_folder::on_signal({
        let interrupter = interrupter.clone();
        move || stopping::stop(&interrupter, CTRL_C)
    })
    .context("cannot listen for Ctrl-C")?;
    Ok(interrupter)
}

/// Removes what an earlier run has logged.
fn remove_metrics(folder: &Path) -> Result<()> {
    for split in ["train", "valid"] {
        let logs = folder.join(METRICS).join(split);
        if logs.exists() {
            fs::remove_dir_all(&logs).map_err(|error| CannotWrite::to(logs, error))?;
        }
    }
    Ok(())
}
