//! Five bytes a parameter beside f32: the losses of a small model from several seeds, and the bytes
//! of a large one.
//!
//! ```sh
//! cargo run --release -p language-model --example precision -- losses
//! cargo run --release -p language-model --example precision -- tiny-llama
//! ```

use std::time::Instant;

use anyhow::{Result, bail};
use burn::module::Module;
use burn::optim::{AdamWConfig, ModuleOptimizer};
use burn::tensor::{Device, Int, Tensor, TensorData};
use burn_lean::optim::InFiveBytes;
use burn_lean::{MixedPrecision, WithGradientRelease};
use language_model::model::{Decoder, DecoderConfig};
use language_model::text::Text;
use peak_alloc::PeakAlloc;

#[global_allocator]
static HEAP: PeakAlloc = PeakAlloc;

fn main() -> Result<()> {
    match std::env::args().nth(1).as_deref() {
        Some("losses") => losses(),
        Some("tiny-llama") => tiny_llama(),
        _ => bail!("which: `losses` or `tiny-llama`?"),
    }
}

#[derive(Clone, Copy, Debug)]
enum Precision {
    /// Burn's AdamW.
    F32,
    /// bf16 with norms in f32, AdamW in five bytes.
    FiveBytes,
}

impl Precision {
    fn model(self, config: &DecoderConfig, device: &Device) -> Result<Decoder> {
        let model = config.init(device);
        Ok(match self {
            Self::F32 => model,
            Self::FiveBytes => MixedPrecision::bf16().cast(model)?,
        })
    }

    fn optimizer(self) -> ModuleOptimizer {
        let adamw = AdamWConfig::new().with_weight_decay(0.1);
        match self {
            Self::F32 => adamw.init(),
            Self::FiveBytes => adamw.in_five_bytes(42).init(),
        }
    }
}

/// One line for 20 steps of each run: precision, seed, step, mean loss.
fn losses() -> Result<()> {
    const STEPS: usize = 400;
    println!("precision,seed,step,loss");
    for seed in 1..=3 {
        for precision in [Precision::F32, Precision::FiveBytes] {
            let device = Device::flex().autodiff();
            device.seed(seed);
            let mut text = Text::open(None, 128)?;
            let mut model = precision.model(&DecoderConfig::new(), &device)?;
            let mut optim = precision.optimizer().with_gradient_release();
            let mut sum = 0.0;
            for step in 1..=STEPS {
                let rise = (step as f64 / 40.0).min(1.0);
                let fall = 1.0 - step as f64 / (STEPS + 1) as f64;
                let lr = 3e-3 * rise * fall;
                let loss = model.loss(text.batch(8, &device));
                sum += loss.clone().into_scalar::<f32>();
                model = optim.backward(lr, loss, model);
                if step % 20 == 0 {
                    println!("{precision:?},{seed},{step},{:.4}", sum / 20.0);
                    sum = 0.0;
                }
            }
        }
    }
    Ok(())
}

/// The shape of TinyLlama, 1.1 billion parameters, and one window of 512 tokens.
fn tiny_llama() -> Result<()> {
    let config = DecoderConfig::new()
        .with_vocabulary(32_000)
        .with_time(512)
        .with_width(2048)
        .with_depth(22)
        .with_heads(32)
        .with_key_heads(4)
        .with_hidden(5632);
    let device = Device::flex().autodiff();
    let mut model = Precision::FiveBytes.model(&config, &device)?;
    let mut optim = Precision::FiveBytes.optimizer().with_gradient_release();
    println!("{} parameters", model.num_params());
    for step in 1..=3 {
        HEAP.reset_peak_usage();
        let start = Instant::now();
        let tokens: Vec<i32> = (0..=512).map(|at| at * 7919 % 32_000).collect();
        let tokens = Tensor::<2, Int>::from_data(TensorData::new(tokens, [1, 513]), &device);
        let loss = model.loss(tokens);
        let value = loss.clone().into_scalar::<f32>();
        let forward = HEAP.peak_usage_as_gb();
        model = optim.backward(1e-4, loss, model);
        println!(
            "step {step}: loss {value:.3}, peak {:.3} GiB (forward {forward:.3}), kept {:.3} GiB, {:.0} s",
            HEAP.peak_usage_as_gb(),
            HEAP.current_usage_as_gb(),
            start.elapsed().as_secs_f64()
        );
    }
    Ok(())
}
