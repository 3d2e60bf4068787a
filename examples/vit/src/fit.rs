//! `--fit`: the first way to compute whose peak is within the memory that is asked for.

use crate::memory::Memory;
use crate::model::{LeanVit, Model, Vit};
use crate::settings::{Checkpointing, DeviceKind, Operations, OptimizerKind, Settings};
use crate::step::Steps;
use anyhow::{Result, bail, ensure};
use burn::tensor::Device;
use bytesize::ByteSize;
use vit_common::data::Dataset;
use vit_common::terminal::{mib, note};

/// Less memory at a cost.
struct Saving {
    option: &'static str,
    value: &'static str,
    cost: &'static str,
    take: fn(&mut Settings),
}

/// Each comes on top of those before it. The first ones cost the least.
const SAVINGS: [Saving; 5] = [
    Saving {
        option: "operations",
        value: "lean",
        cost: "other roundings",
        take: |settings| settings.operations = Operations::Lean,
    },
    Saving {
        option: "checkpointing",
        value: "blocks",
        cost: "a second forward pass",
        take: |settings| settings.checkpointing = Checkpointing::Blocks,
    },
    Saving {
        option: "checkpointing",
        value: "nested",
        cost: "a part of it a third time",
        take: |settings| settings.checkpointing = Checkpointing::Nested,
    },
    Saving {
        option: "optimizer",
        value: "adamw-8bit",
        cost: "approximate moments",
        take: |settings| settings.optimizer = OptimizerKind::AdamW8bit,
    },
    Saving {
        option: "optimizer",
        value: "adamw-five-bytes",
        cost: "a model in bf16",
        take: |settings| settings.optimizer = OptimizerKind::AdamWFiveBytes,
    },
];

impl Saving {
    /// `None` if an option does not go with it.
    fn added_to(&self, way: &Settings, given: &[String]) -> Option<Settings> {
        let mut way = way.clone();
        (self.take)(&mut way);
        way.check(given).is_ok().then_some(way)
    }
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
        settings.device == DeviceKind::Cpu,
        "--fit measures the heap, and tensors are there with --device cpu alone"
    );
    let is_given = |saving: &&Saving| given.iter().any(|name| name == saving.option);
    let mut savings = SAVINGS.iter().filter(|saving| !is_given(saving));
    let mut way = settings.clone();
    loop {
        let peak = peak(&way, data, device)?;
        let fits = peak <= most.as_u64();
        note(&format!(
            "--fit: {} MiB with --operations {} --checkpointing {} --optimizer {}{}",
            mib(peak, 2),
            way.operations,
            way.checkpointing,
            way.optimizer,
            if fits { ", which fits" } else { "" }
        ));
        if fits {
            *settings = way;
            return Ok(());
        }
        let next = savings.find_map(|saving| Some((saving, saving.added_to(&way, given)?)));
        let Some((saving, with)) = next else {
            bail!("nothing fits into {most}: take a smaller --batch-size");
        };
        note(&format!(
            "--fit: adding --{} {}, which costs {}",
            saving.option, saving.value, saving.cost
        ));
        way = with;
    }
}

fn peak(settings: &Settings, data: &Dataset, device: &Device) -> Result<u64> {
    let steps = Steps {
        settings,
        data,
        parallel: None,
        device: device.clone(),
    };
    match settings.operations {
        Operations::Default => peak_of::<Vit>(&steps),
        Operations::Lean => peak_of::<LeanVit>(&steps),
    }
}

fn peak_of<M: Model>(steps: &Steps) -> Result<u64> {
    /// The first makes the states of the optimizer and learns the order of steps.
    const STEPS: usize = 3;

    let mut memory = Memory::start(&steps.device);
    let (mut model, mut optimizer) = steps.begin::<M>()?;
    let order = steps.order(1);
    let batches = order.chunks(steps.settings.train.batch_size);
    for (iteration, places) in batches.take(STEPS).enumerate() {
        (model, _) = steps.step(model, &mut optimizer, iteration, places, &mut memory)?;
    }
    Ok(memory.look().in_use)
}
