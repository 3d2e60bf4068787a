//! The program: options, the run in its folder, and how the training has ended.

use crate::backend;
use crate::config::{Engine, Settings};
use crate::stopping::{self, CTRL_C};
use crate::train::{Ended, Ending, METRICS, PARTS, Train};
use anyhow::{Context, Result, ensure};
use burn::train::Interrupter;
use burn_gradient_release_data_parallel::DataParallel;
use clap::Args;
use lean_run_folder::{CannotWrite, INTERRUPTED, fail, note};
use std::fs::{self, File};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::{self, ExitCode};
use vit_common::data::Dataset;
use vit_common::parallel::join;
use vit_common::run::{self, Run};
use vit_common::terminal::{self, quoted};

const PROGRAM: &str = "vit-0-21";

/// The options of `vit-0-21 train`.
#[derive(Debug, Args)]
struct AllOptions {
    #[command(flatten)]
    run: run::Options<Settings>,
    /// Record a memory timeline of the third and the fourth batch; `burn-memory` shows the file
    #[arg(long, value_name = "FILE")]
    memory_timeline: Option<PathBuf>,
}

/// Runs a training on the backend that the engine names.
///
/// The binary passes it in. Defined in this library, it would compile the training on every
/// backend, which takes minutes, into everything that uses the library.
pub type Launch = fn(&Engine, Train<'_>) -> Result<Ended>;

/// Runs the program.
pub fn main(launch: Launch) -> ExitCode {
    let about = "Trains a vision transformer on Burn 0.21, with gradient release";
    let (options, given) = match terminal::options::<AllOptions>(PROGRAM, about) {
        Ok(options) => options,
        Err(code) => return code,
    };
    let parallel = match data_parallel(&options.run) {
        Ok(parallel) => parallel,
        Err(error) => return fail(&*error),
    };
    let done = train(&options, &given, parallel.as_ref(), launch);
    // Before this process leaves the others, which may not answer.
    done.unwrap_or_else(|error| fail(&*error))
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
    options: &AllOptions,
    given: &[String],
    parallel: Option<&DataParallel>,
    launch: Launch,
) -> Result<ExitCode> {
    let replicas = parallel.map(DataParallel::replicas);
    // Every process would write the same file.
    let is_first = replicas.is_none_or(|replicas| replicas.is_first());
    let memory_timeline = options.memory_timeline.as_deref().filter(|_| is_first);
    let check = |settings: &Settings, data: &Dataset| {
        settings.check(given, settings.train.batches(data))?;
        match memory_timeline {
            None => Ok(()),
            Some(file) => {
                backend::can_record(&settings.engine).and_then(|()| ensure_writable(file))
            }
        }
    };
    let mut run = Run::begin(PROGRAM, &options.run, given, &PARTS, replicas, check)?;
    if is_first && !options.run.resume {
        remove_metrics(run.folder.path())?;
    }
    let train = Train {
        settings: &run.settings,
        data: &run.data,
        parallel,
        folder: run.folder.path(),
        checkpoints: &run.checkpoints,
        identity: &run.identity,
        resume_point: run.resume_point,
        interrupter: interrupter()?,
        stop_after: options.run.stop_after.map(NonZeroUsize::get),
        memory_timeline,
    };
    let (ending, recorded) = launch(&run.settings.engine, train)?;
    let mut code = ExitCode::SUCCESS;
    match ending {
        Ending::Stopped { epoch, by_ctrl_c } => {
            if is_first {
                options.run.say_how_to_resume(PROGRAM, epoch);
            }
            if by_ctrl_c {
                code = ExitCode::from(INTERRUPTED);
            }
        }
        Ending::OfAnotherRank => {}
        Ending::Finished(results) => run.finish(&results, options.run.json)?,
    }
    // Last: the results are there without it.
    recorded?;
    if let Some(file) = memory_timeline {
        note(&format!(
            "memory timeline written: {0}; `burn-memory summary {0}` reads it",
            quoted(file)
        ));
    }
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

/// Fails if a memory timeline cannot be written there, which is found after the training, else.
fn ensure_writable(file: &Path) -> Result<()> {
    // It is replaced, which a device would not survive.
    ensure!(
        !file.exists() || file.is_file(),
        "--memory-timeline takes a file, and {} is none",
        file.display()
    );
    // As the file itself, which replaces what is there.
    let beside = file.with_file_name(format!(".memory-timeline-{}", process::id()));
    let written = File::create(&beside).and_then(|_| fs::remove_file(&beside));
    Ok(written.map_err(|error| CannotWrite::to(file, error))?)
}
