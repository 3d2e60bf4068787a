//! The program: options, the run in its folder, and how the training has ended.

use crate::device;
use crate::settings::Settings;
use crate::train::{PARTS, Train};
use anyhow::Result;
use burn_lean::{DataParallel, Replicas};
use std::process::ExitCode;
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
    let check = |settings: &Settings, _: &_| {
        settings.check(given)?;
        device::open(settings.device)
    };
    let (mut run, device) = Run::begin(PROGRAM, options, given, &PARTS, replicas, check)?;
    let parallel = replicas.cloned().map(DataParallel::new);
    let train = Train {
        run: &run,
        options,
        parallel: match options.shard_optimizer {
            true => parallel.map(DataParallel::with_sharded_optimizer),
            false => parallel,
        },
        device,
    };
    let ending = train.run()?;
    run.end(PROGRAM, options, ending)
}
