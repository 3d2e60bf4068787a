//! `--fit`: the first way to compute whose peak is within the memory that is asked for.

use crate::device::Memory;
use crate::model::{LeanVit, Model, Vit};
use crate::step::Steps;
use anyhow::{Result, bail, ensure};
use burn::tensor::Device;
use bytesize::ByteSize;
use lean_run_folder::note;
use vit_common::config::{Checkpointing, Operations, OptimizerKind};
use vit_common::data::Dataset;
use vit_common::memory::mib;
use vit_common::settings::Settings;

/// An option, and what taking it costs.
type Saving = (&'static str, &'static str, fn(&mut Settings));

/// Each comes on top of those before it. The first ones cost the least.
const SAVINGS: [Saving; 5] = [
    ("operations", "other roundings", |settings| {
        settings.operations = Operations::Lean;
    }),
    ("checkpointing", "a second forward pass", |settings| {
        settings.checkpointing = Checkpointing::Blocks;
    }),
    ("checkpointing", "a part of it a third time", |settings| {
        settings.checkpointing = Checkpointing::Nested;
    }),
    ("optimizer", "approximate moments", |settings| {
        settings.optimizer = OptimizerKind::AdamW8bit;
    }),
    ("optimizer", "a model in bf16", |settings| {
        settings.optimizer = OptimizerKind::AdamWFiveBytes;
    }),
];

/// Whether this program can train so.
///
/// # Errors
///
/// The option.
pub fn check(settings: &Settings) -> Result<()> {
    ensure!(
        settings.checkpointing != Checkpointing::Automatic,
        "--checkpointing automatic is for Burn 0.21: use blocks or nested"
    );
    ensure!(
        settings.optimizer != OptimizerKind::AdamWFiveBytes
            || settings.operations == Operations::Lean,
        "--optimizer adamw-five-bytes trains in bf16 with norms in f32, which need --operations lean"
    );
    Ok(())
}

/// Chooses the options that save memory and are not `given`, so that a step has at most `most` in
/// use. Tries them on the first batches.
///
/// # Errors
///
/// Nothing fits, or the memory of the device cannot be measured.
pub fn choose(
    most: ByteSize,
    settings: &mut Settings,
    given: &[String],
    data: &Dataset,
    device: &Device,
) -> Result<()> {
    ensure!(
        settings.backend.is_on_heap(),
        "--fit measures the heap, and tensors are there with --backend flex alone"
    );
    let is_given = |option: &str| given.iter().any(|name| name == option);
    let mut savings = SAVINGS.iter().filter(|(option, ..)| !is_given(option));
    loop {
        let peak = match settings.operations {
            Operations::Default => peak::<Vit>(settings, data, device)?,
            Operations::Lean => peak::<LeanVit>(settings, data, device)?,
        };
        let fits = peak <= most.as_u64();
        note(&format!(
            "--fit: {} with --operations {} --checkpointing {} --optimizer {}{}",
            mib(peak),
            settings.operations,
            settings.checkpointing,
            settings.optimizer,
            if fits { ", which fits" } else { "" }
        ));
        if fits {
            return Ok(());
        }
        // Some options do not go with those that were given.
        let next = savings.find_map(|(option, cost, take)| {
            let mut with = settings.clone();
            take(&mut with);
            check(&with).is_ok().then_some((option, cost, with))
        });
        let Some((option, cost, with)) = next else {
            bail!("nothing fits into {most}: take a smaller --batch-size");
        };
        note(&format!("--fit: another --{option}, which costs {cost}"));
        *settings = with;
    }
}

fn peak<M: Model>(settings: &Settings, data: &Dataset, device: &Device) -> Result<u64> {
    /// The first makes the states of the optimizer, which the forward pass of the second has beside it.
    const STEPS: usize = 2;

    let steps = Steps {
        settings,
        data,
        parallel: None,
        device: device.clone(),
    };
    let mut memory = Memory::start(device);
    let (mut model, mut optimizer) = steps.begin::<M>()?;
    let order = steps.order(1);
    let batches = order.chunks(settings.batch_size);
    for (iteration, places) in batches.take(STEPS).enumerate() {
        (model, _) = steps.step(model, &mut optimizer, iteration, places, &mut memory)?;
    }
    Ok(memory.look().in_use)
}
