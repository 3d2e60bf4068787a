//! The program: its options, and the run in its folder.

use anyhow::{Result, ensure};
use burn_lean::DataParallel;
use burn_lean::timeline::{Heap, Recorder};
use bytesize::ByteSize;
use clap::Args;
use peak_alloc::PeakAlloc;
use std::num::NonZeroUsize;
use std::process::ExitCode;
use vit::step::Steps;
use vit::train::{PARTS, Train};
use vit::{device, fit};
use vit_common::data::Dataset;
use vit_common::run::{self, Start};
use vit_common::settings::Settings;

/// Counts every byte on the heap, which is where the CPU keeps its tensors, and can record them.
#[global_allocator]
static ALLOCATOR: Heap<PeakAlloc> = Heap::from_allocator(PeakAlloc);

/// The options that `vit-0-21` has not.
#[derive(Debug, Args)]
struct Extra {
    /// Choose operations, checkpointing and optimizer, where not given, so that a step has at most
    /// this memory in use, such as 300MiB: the first that fit, tried on the first batches
    #[arg(long, value_name = "MEMORY", conflicts_with_all = ["resume", "data_parallel"])]
    fit: Option<ByteSize>,
    /// Stop after this many batches of the whole run, resumed or not: the current epoch is lost, and
    /// --resume continues after the last complete one
    #[arg(long, value_name = "BATCHES")]
    stop_after: Option<NonZeroUsize>,
}

fn main() -> ExitCode {
    let about = "Trains a vision transformer on Burn 0.22, plainly or with gradient release";
    run::main("vit", about, train)
}

fn train(start: &Start<Extra>) -> Result<()> {
    let options = &start.options;
    let check = |settings: &mut Settings, data: &Dataset| {
        fit::check(settings)?;
        let device = device::open(settings.backend)?;
        if let Some(most) = options.extra.fit {
            fit::choose(most, settings, &start.given, data, &device)?;
        }
        // Before there are tensors. Of several processes, all would write the same file.
        let file = options.memory_timeline.as_ref();
        let file = file.filter(|_| start.is_first());
        ensure!(
            file.is_none() || settings.backend.is_on_heap(),
            "--memory-timeline records the heap, and tensors are there with --backend flex alone"
        );
        let title = format!("ViT, {}, {}", settings.preset, settings.mode);
        let record = |file| Recorder::new(title).with_file(file).start();
        Ok((device, file.map(record).transpose()?))
    };
    let Some((run, (device, recording))) = start.begin(&PARTS, check)? else {
        return Ok(());
    };
    let parallel = start.replicas.clone().map(DataParallel::new);
    let train = Train {
        run: &run,
        stop_after: options.extra.stop_after.map(NonZeroUsize::get),
        steps: Steps {
            settings: &run.settings,
            data: &run.data,
            parallel: match options.shard_optimizer {
                true => parallel.map(DataParallel::with_sharded_optimizer),
                false => parallel,
            },
            device,
        },
    };
    train.run(recording)
}
