//! The program: options, the run in its folder, and how the training has ended.

use crate::settings::{DeviceKind, Settings};
use crate::step::Steps;
use crate::train::{PARTS, Train};
use crate::{device, fit};
use anyhow::{Result, ensure};
use burn_lean::timeline::{Recorder, Recording};
use burn_lean::{DataParallel, Replicas};
use std::path::Path;
use std::process::ExitCode;
use vit_common::data::Dataset;
use vit_common::run::{self, Options, Run};

const PROGRAM: &str = "vit";

/// Runs the program.
pub fn main() -> ExitCode {
    let about = "Trains a vision transformer on Burn 0.22, plainly or with gradient release";
    run::main(PROGRAM, about, train)
}

fn train(
    options: &Options<Settings>,
    given: &[String],
    replicas: Option<&Replicas>,
) -> Result<ExitCode> {
    let check = |settings: &mut Settings, data: &Dataset| {
        settings.check(given)?;
        let device = device::open(settings.device)?;
        if let Some(most) = settings.fit {
            fit::choose(most, settings, given, data, &device)?;
        }
        // Before there are tensors. Of several processes, all would write the same file.
        let is_first = replicas.is_none_or(Replicas::is_first);
        let file = options.memory_timeline.as_ref().filter(|_| is_first);
        let recording = file.map(|file| record(settings, file)).transpose()?;
        Ok((device, recording))
    };
    let (mut run, (device, recording)) =
        Run::begin(PROGRAM, options, given, &PARTS, replicas, check)?;
    let parallel = replicas.cloned().map(DataParallel::new);
    let train = Train {
        run: &run,
        options,
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
    let (ending, recorded) = train.run(recording)?;
    // The results are there, whatever has become of the recording.
    let code = run.end(PROGRAM, options, ending)?;
    recorded?;
    Ok(code)
}

fn record(settings: &Settings, file: &Path) -> Result<Recording> {
    ensure!(
        settings.device == DeviceKind::Cpu,
        "--memory-timeline records the heap, and tensors are there with --device cpu alone"
    );
    let Settings { train, mode, .. } = settings;
    let title = format!("ViT, {:?}, {mode:?}", train.preset);
    Ok(Recorder::new(title).with_file(file).start()?)
}
