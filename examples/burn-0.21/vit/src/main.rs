//! The vision transformer example: trains with Burn's learner, plainly or with gradient release.
//!
//! [`train`] shows what gradient release requires of a program, and [`backend`] what it requires of
//! the types; the rest is an ordinary Burn program.

#![forbid(unsafe_code)]

mod backend;
mod progress;
mod train;

use anyhow::{Context, Result, ensure};
use burn_gradient_release_data_parallel::{DataParallel, Replicas};
use burn_gradient_release_timeline::Snapshot;
use clap::{Args, Parser};
use lean_run_folder::{FolderOptions, Start, command_line, fail, listed};
use peak_alloc::PeakAlloc;
use std::path::PathBuf;
use std::process::ExitCode;
use train::{PARTS, Train};
use vit_0_21::config::{BackendKind, MAY_CHANGE, Settings};
use vit_0_21::schedule::scheduler;

/// Counts every byte on the heap, which is where the CPU backends keep their tensors.
#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

#[derive(Debug, Parser)]
#[command(
    version,
    about = "Trains a vision transformer on Burn 0.21, plainly or with gradient release"
)]
enum Program {
    /// Trains a vision transformer on Burn 0.21, plainly or with gradient release
    Train(Box<Options>),
}

#[derive(Debug, Args)]
struct Options {
    #[command(flatten)]
    settings: Settings,
    #[command(flatten)]
    folder: FolderOptions,
    /// Train in the processes that `mpirun` has started, each on its share of every batch; needs a
    /// build with the feature mpi
    #[arg(long)]
    data_parallel: bool,
    /// With --data-parallel: each process has the optimizer states of a part of the parameters
    #[arg(long, requires = "data_parallel")]
    shard_optimizer: bool,
    /// Record a memory timeline of the third and the fourth batch, for `burn-memory` and
    /// pytorch.org/memory_viz, or with the ending `.perfetto.json` for ui.perfetto.dev
    #[arg(long, value_name = "FILE")]
    memory_timeline: Option<PathBuf>,
    /// Run every operation on a GPU separately, instead of fused with its neighbours
    #[arg(long)]
    no_fusion: bool,
}

fn main() -> ExitCode {
    let (options, given) = match command_line() {
        Ok((Program::Train(options), given)) => (options, given),
        Err(code) => return code,
    };
    // Until the error is told: the others may not answer when this process leaves them.
    let replicas = match options.data_parallel.then(join).transpose() {
        Ok(replicas) => replicas,
        Err(error) => return fail(&*error),
    };
    let trained = train(&options, &given, replicas.as_ref());
    trained.map_or_else(|error| fail(&*error), |()| ExitCode::SUCCESS)
}

/// Joins the processes that `mpirun` has started.
fn join() -> Result<Replicas> {
    #[cfg(feature = "mpi")]
    return Ok(Replicas::new(
        burn_gradient_release_data_parallel::Mpi::initialize,
    )?);
    #[cfg(not(feature = "mpi"))]
    anyhow::bail!(
        "--data-parallel needs MPI, which is not compiled in: build with `--features mpi`"
    )
}

fn train(options: &Options, given: &[String], replicas: Option<&Replicas>) -> Result<()> {
    let fusion = !options.no_fusion;
    let mut pending = Start {
        folder: options.folder.folder("vit-0-21"),
        parts: &PARTS,
        resume: options.folder.resume,
        overwrite: options.folder.overwrite,
        given,
        may_change: &MAY_CHANGE,
        is_first: replicas.is_none_or(Replicas::is_first),
    }
    .open(options.settings.clone())?;
    let data = pending.settings.load(replicas)?;
    let settings = &pending.settings;
    let is_compiled_in = match settings.backend {
        BackendKind::Flex => cfg!(feature = "flex"),
        BackendKind::Wgpu => cfg!(feature = "wgpu"),
        BackendKind::Cuda => cfg!(feature = "cuda"),
    };
    ensure!(is_compiled_in, settings.backend.not_compiled_in());
    // Burn takes no rate above 1.
    scheduler(settings.lr, settings.epochs * settings.batches(&data))?;
    if let Some(file) = &options.memory_timeline {
        ensure!(
            settings.backend.is_on_heap() || !fusion,
            "a memory timeline is recorded without fusion, which leaves no memory to an \
             operation until its block is run: add --no-fusion"
        );
        Snapshot::check_folder(file).context("no memory timeline")?;
    }
    let run = pending.begin(|settings| {
        let Some(replicas) = replicas else {
            return anyhow::Ok(());
        };
        replicas.meet("the folder of the run")?;
        // Machines may have the images elsewhere.
        let settings = listed(settings)?.into_iter();
        Ok(replicas.same_settings(settings.filter(|(name, _)| name != "data"))?)
    })?;
    let Some(run) = run else {
        return Ok(());
    };
    let parallel = replicas.cloned().map(DataParallel::new);
    let train = Train {
        run: &run,
        data: &data,
        memory_timeline: options.memory_timeline.as_deref().filter(|_| run.is_first),
        parallel: match options.shard_optimizer {
            true => parallel.map(DataParallel::with_sharded_optimizer),
            false => parallel,
        },
    };
    backend::run(train, fusion)
}
