//! Trains a small language model with everything that saves memory, and lets it write.
//!
//! ```sh
//! cargo run --release -p language-model            # the text is the Apache licence
//! cargo run --release -p language-model -- my.txt  # or your own
//! ```
//!
//! `model.rs` has what saves activations, this file what saves gradients and optimizer states.

mod model;
mod text;

use std::time::Instant;

use anyhow::{Error, Result};
use burn::lr_scheduler::composed::ComposedLrSchedulerConfig;
use burn::lr_scheduler::cosine::CosineAnnealingLrSchedulerConfig;
use burn::lr_scheduler::linear::LinearLrSchedulerConfig;
use burn::optim::{AdamWConfig, GradientsParams};
use burn::tensor::Device;
use burn_lean::optim::{EightBitMoments, InOnePass, Lean};
use burn_lean::{ReleaseAccumulator, WithGradientRelease, no_decay};
use peak_alloc::PeakAlloc;

use model::GptConfig;
use text::Text;

#[global_allocator]
static HEAP: PeakAlloc = PeakAlloc;

const STEPS: usize = 300;
const MICRO_BATCHES: usize = 2;
/// Windows of text in a micro-batch.
const BATCH: usize = 8;
/// Bytes of text in a window.
const TIME: usize = 128;

fn main() -> Result<()> {
    let mut text = Text::open(std::env::args().nth(1).as_deref(), TIME)?;
    let device = Device::flex().autodiff();
    device.seed(42);
    let mut model = GptConfig::new().init(&device);

    // One pass over memory for each parameter, and two bytes of state in place of eight.
    let adamw = AdamWConfig::new().in_one_pass().with_8_bit_moments(&model);
    let without_decay = AdamWConfig::new().with_weight_decay(0.0);
    let without_decay = without_decay.in_one_pass().with_8_bit_moments(&model);
    let mut optim = adamw
        .init()
        // Each parameter is stepped inside the backward pass, and its gradient freed.
        .with_gradient_release()
        // Biases, and the gains of norms.
        .with_group(no_decay(&model), without_decay, None);
    // One set of sums, where Burn's accumulator holds two sets of gradients.
    let mut accumulator = ReleaseAccumulator::new();
    // The product of a rise over 40 steps and a fall over all.
    let mut schedule = ComposedLrSchedulerConfig::new()
        .linear(LinearLrSchedulerConfig::new(0.05, 1.0, 40))
        .cosine(CosineAnnealingLrSchedulerConfig::new(3e-3, STEPS))
        .init()
        .map_err(Error::msg)?;

    HEAP.reset_peak_usage();
    let start = Instant::now();
    for step in 1..=STEPS {
        let lr = schedule.step();
        let mut mean = 0.0;
        for micro_batch in 1..=MICRO_BATCHES {
            let is_last = micro_batch == MICRO_BATCHES;
            model = if is_last {
                optim.arm_accumulated(lr.clone(), model, accumulator.grads())
            } else {
                accumulator.arm(model)
            };
            let loss = model.loss(text.batch(BATCH, &device)) / MICRO_BATCHES as f64;
            mean += loss.clone().into_scalar::<f32>();
            let grads = GradientsParams::from_grads(loss.backward(), &model);
            if is_last {
                model = optim.step(lr.clone(), model, grads);
            } else {
                accumulator.accumulate(&model, grads);
            }
        }
        if step == 1 || step % 50 == 0 {
            let seconds = start.elapsed().as_secs_f32();
            let peak = HEAP.peak_usage_as_mb();
            println!("step {step:3}: loss {mean:.3}, {seconds:.0} s, peak {peak:.1} MiB");
        }
    }

    let prompt = "Subject to the terms";
    println!("\n{prompt}{}", text.write(&model, prompt, 300, &device));
    Ok(())
}
