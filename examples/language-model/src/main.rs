//! Trains a small language model with everything that saves memory, and lets it write.
//!
//! ```sh
//! cargo run --release -p language-model            # the text is the Apache licence
//! cargo run --release -p language-model -- my.txt  # or your own
//! ```
//!
//! `model.rs` has what saves activations, this file what saves weights, gradients and optimizer
//! states.

use std::time::Instant;

use anyhow::{Error, Result};
use burn::lr_scheduler::composed::ComposedLrSchedulerConfig;
use burn::lr_scheduler::cosine::CosineAnnealingLrSchedulerConfig;
use burn::lr_scheduler::linear::LinearLrSchedulerConfig;
use burn::optim::{AdamWConfig, GradientsAccumulator, GradientsParams};
use burn::tensor::Device;
use burn_lean::optim::InFiveBytes;
use burn_lean::{MixedPrecision, WithGradientRelease, no_decay};
use peak_alloc::PeakAlloc;

use language_model::model::DecoderConfig;
use language_model::text::Text;

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
    // Weights and activations in bf16, and norms in f32.
    let mut model = MixedPrecision::bf16().cast(DecoderConfig::new().init(&device))?;

    // Weight, correction and moments in five bytes a parameter, in place of twelve.
    let adamw = |decay| {
        AdamWConfig::new()
            .with_weight_decay(decay)
            .in_five_bytes(42)
    };
    let mut optim = adamw(0.1)
        .init()
        // Each parameter is stepped inside the backward pass, and its gradient freed.
        .with_gradient_release()
        // Nothing is rounded between the sum of micro-batches and the step.
        .with_f32_gradients()
        // Biases, and the gains of norms.
        .with_group(no_decay(&model), adamw(0.0), None);
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
            let loss = model.loss(text.batch(BATCH, &device)) / MICRO_BATCHES as f64;
            mean += loss.clone().into_scalar::<f32>();
            if micro_batch < MICRO_BATCHES {
                // One set of sums, in f32, where Burn's accumulator holds two sets of gradients.
                optim.accumulate(loss, &model);
            } else {
                model = optim.backward(lr.clone(), loss, model);
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

    drop((model, optim));
    let plain = plain_peak(&mut text, &device);
    println!("\nthe same model in f32 with Burn's AdamW: peak {plain:.1} MiB");
    Ok(())
}

/// The peak of two steps with plain Burn. The model still has its scopes and operations.
fn plain_peak(text: &mut Text, device: &Device) -> f32 {
    HEAP.reset_peak_usage();
    let mut model = DecoderConfig::new().init(device);
    let mut optim = AdamWConfig::new().init();
    for _ in 0..2 {
        let mut sums = GradientsAccumulator::new();
        for _ in 0..MICRO_BATCHES {
            let loss = model.loss(text.batch(BATCH, device)) / MICRO_BATCHES as f64;
            let grads = GradientsParams::from_grads(loss.backward(), &model);
            sums.accumulate(&model, grads);
        }
        model = optim.step(3e-3, model, sums.grads());
    }
    HEAP.peak_usage_as_mb()
}
