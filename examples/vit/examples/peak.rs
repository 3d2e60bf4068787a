//! The peak of memory in a training step of a vision transformer on made-up images, with AdamW.
//!
//! ```sh
//! cargo run --release -p vit --example peak -- --checkpointing blocks --operations lean
//! cargo run --release -p vit --example peak -- --checkpointing blocks --operations lean --states five-bytes
//! ```

use burn::nn::Embedding;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::optim::{AdamWConfig, GradientsParams};
use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use burn_lean::optim::{EightBitMoments, InFiveBytes, InOnePass, Lean};
use burn_lean::{MixedPrecision, WithGradientRelease};
use clap::{Parser, ValueEnum};
use peak_alloc::PeakAlloc;
use std::time::Instant;
use vit::model::{LeanVit, Model, Vit};
use vit::settings::{Checkpointing, Mode, Operations, Preset};

#[global_allocator]
static HEAP: PeakAlloc = PeakAlloc;

#[derive(Parser)]
struct Args {
    /// Shape of the model, at 224x224 with 1000 classes
    #[arg(long, value_enum, default_value_t = Preset::Small)]
    preset: Preset,
    /// Images in a batch
    #[arg(long, default_value_t = 8)]
    batch_size: usize,
    /// Plain Burn or gradient release
    #[arg(long, value_enum, default_value_t = Mode::Release)]
    mode: Mode,
    /// What the forward pass keeps
    #[arg(long, value_enum, default_value_t = Checkpointing::None)]
    checkpointing: Checkpointing,
    /// What the model is made of
    #[arg(long, value_enum, default_value_t = Operations::Default)]
    operations: Operations,
    /// Weights and optimizer states
    #[arg(long, value_enum, default_value_t = States::F32)]
    states: States,
    /// Steps; the peak is the highest of all
    #[arg(long, default_value_t = 3)]
    steps: usize,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum States {
    /// Burn's, in 32 bits
    F32,
    /// In one pass, with moments in 8 bits
    EightBit,
    /// Weights in bf16 with a correction of 8 bits, and moments in 8 bits
    FiveBytes,
}

fn main() {
    let args = Args::parse();
    let peak = match args.operations {
        Operations::Default => peak::<Vit>(&args),
        Operations::Lean => peak::<LeanVit>(&args),
    };
    println!("{:.1} MiB", peak as f64 / f64::from(1 << 20));
}

/// Bytes beyond those in use before the model is built.
fn peak<M: Model>(args: &Args) -> usize {
    let mut device = Device::flex().autodiff();
    if args.checkpointing == Checkpointing::Balanced {
        device = device.gradient_checkpointing();
    }
    let mut config = args.preset.imagenet();
    config.dropout = 0.0;
    let before = HEAP.current_usage();
    let mut model = M::new(&config, &device)
        .recomputing(args.checkpointing.recomputed())
        .drawn();
    let mut dtype = DType::F32;
    let adamw = AdamWConfig::new();
    let optimizer = || match args.states {
        States::F32 => adamw.init(),
        States::EightBit => adamw
            .in_one_pass()
            .with_8_bit_moments(&Vec::<Embedding>::new())
            .init(),
        States::FiveBytes => adamw.in_five_bytes(42).init(),
    };
    if args.states == States::FiveBytes {
        dtype = DType::BF16;
        let cast = MixedPrecision::bf16().cast(model);
        model = cast.unwrap_or_else(|refused| panic!("{}", refused.error()));
    }
    let mut plain = optimizer();
    let mut release = optimizer().with_gradient_release();
    HEAP.reset_peak_usage();
    for step in 0..args.steps {
        if args.mode == Mode::Release {
            model = release.arm(1e-3, model);
        }
        let start = Instant::now();
        let images = images(args.batch_size, &device).cast(dtype);
        let scores = model.forward_seeded(images, step as u64);
        let loss = CrossEntropyLossConfig::new()
            .init(&device)
            .forward(scores.cast(DType::F32), labels(args.batch_size, &device));
        let grads = GradientsParams::from_grads(loss.backward(), &model);
        model = match args.mode {
            Mode::Release => release.step(1e-3, model, grads),
            Mode::Plain => plain.step(1e-3, model, grads),
        };
        println!("step {step}: {:.1} s", start.elapsed().as_secs_f64());
    }
    HEAP.peak_usage() - before
}

/// `[batch, 3, 224, 224]`
fn images(batch: usize, device: &Device) -> Tensor<4> {
    let shape = [batch, 3, 224, 224];
    let pixel = |i: usize| (i * 7919 % 2003) as f32 / 1001.5 - 1.0;
    let pixels: Vec<f32> = (0..shape.iter().product()).map(pixel).collect();
    Tensor::from_data(TensorData::new(pixels, shape), device)
}

fn labels(batch: usize, device: &Device) -> Tensor<1, Int> {
    let labels: Vec<i64> = (0..batch as i64).collect();
    Tensor::from_data(TensorData::new(labels, [batch]), device)
}
