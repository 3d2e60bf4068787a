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
use clap::Parser;
use lean_run_folder::{command_line, fail};
use peak_alloc::PeakAlloc;
use std::process::ExitCode;
use train::{PARTS, Train};
use vit_0_21::schedule::scheduler;
use vit_inputs::{
    BackendKind, Checkpointing, Mode, Operations, OptimizerKind, Options, Settings, agree, join,
};

/// Counts every byte on the heap, which is where the CPU backends keep their tensors.
#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

#[derive(Debug, Parser)]
#[command(version, about = "Trains a vision transformer on Burn 0.21")]
enum Program {
    /// Trains a vision transformer on Burn 0.21, plainly or with gradient release
    Train {
        #[command(flatten)]
        options: Box<Options>,
        /// Run every operation on a GPU separately, instead of fused with its neighbours
        #[arg(long)]
        no_fusion: bool,
    },
}

fn main() -> ExitCode {
    let (Program::Train { options, no_fusion }, given) = match command_line() {
        Ok(read) => read,
        Err(code) => return code,
    };
    // Until the error is told: the others may not answer when this process leaves them.
    let replicas = match options.data_parallel.then(join).transpose() {
        Ok(replicas) => replicas,
        Err(error) => return fail(&*error),
    };
    let trained = train(&options, &given, replicas.as_ref(), !no_fusion);
    trained.map_or_else(|error| fail(&*error), |()| ExitCode::SUCCESS)
}

fn train(
    options: &Options,
    given: &[String],
    replicas: Option<&Replicas>,
    fusion: bool,
) -> Result<()> {
    let mut pending = options.open("vit-0-21", &PARTS, given, replicas)?;
    let data = pending.settings.load(replicas)?;
    let settings = &pending.settings;
    check(settings)?;
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
    let Some(run) = pending.begin(|settings| agree(replicas, settings))? else {
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

/// Whether this program can train so.
fn check(settings: &Settings) -> Result<()> {
    let (optimizer, checkpointing) = (settings.optimizer, settings.checkpointing);
    let is_compiled_in = match settings.backend {
        BackendKind::Flex => cfg!(feature = "flex"),
        BackendKind::Wgpu => cfg!(feature = "wgpu"),
        BackendKind::Cuda => cfg!(feature = "cuda"),
    };
    ensure!(is_compiled_in, settings.backend.not_compiled_in());
    ensure!(
        optimizer != OptimizerKind::AdamWFiveBytes && settings.operations == Operations::Default,
        "--optimizer adamw-five-bytes and --operations lean are for Burn 0.22: use `vit`"
    );
    ensure!(
        checkpointing != Checkpointing::Nested,
        "--checkpointing nested is for Burn 0.22: use blocks or automatic"
    );
    ensure!(
        settings.mode == Mode::Release
            || matches!(checkpointing, Checkpointing::None | Checkpointing::Balanced),
        "--checkpointing {checkpointing} needs gradient release: use --mode release, or \
         --checkpointing balanced with --mode plain"
    );
    Ok(())
}
