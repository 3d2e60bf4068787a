//! Trains all weights of a language model that is larger than memory: weights and states are in a file.
//!
//! ```sh
//! cargo run --release -p larger-than-memory                                     # a small model
//! cargo run --release -p larger-than-memory -- --scratch /var/tmp --memory 64   # the same in a file
//! cargo run --release -p larger-than-memory -- --shape tiny-llama --scratch /var/tmp --memory 1024
//! ```
//!
//! The script `examples/larger-than-memory/limited.sh` runs a program under a limit of the system.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::Result;
use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::{AdamWConfig, ModuleOptimizer};
use burn::tensor::{Device, Tensor};
use burn_lean::optim::{InFiveBytes, InOnePass, InScratch};
use burn_lean::{MixedPrecision, Scratch, WithGradientRelease};
use clap::{Parser, ValueEnum};
use language_model::model::DecoderConfig;
use language_model::text::Text;

/// Trains a language model that is larger than memory.
#[derive(Debug, Parser)]
struct Options {
    /// A folder on a disk for the weights and states. Without it, they are in memory
    #[arg(long)]
    scratch: Option<PathBuf>,
    /// How much of them is in memory, in MiB
    #[arg(long, default_value_t = 1024, requires = "scratch")]
    memory: u64,
    /// The shape of the model
    #[arg(long, value_enum, default_value = "small")]
    shape: Shape,
    /// What weights and states take
    #[arg(long, value_enum, default_value = "five-bytes")]
    bytes: Bytes,
    /// Steps of the training
    #[arg(long, default_value_t = 3)]
    steps: usize,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Shape {
    /// 1 million parameters
    Small,
    /// 1.1 billion parameters, as TinyLlama has them
    TinyLlama,
    /// 6.7 billion parameters, as Llama 2 7B has them
    Llama7b,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Bytes {
    /// Five bytes a parameter
    FiveBytes,
    /// 32 bits a number: twelve bytes a parameter
    F32,
}

fn main() -> Result<()> {
    let options = Options::parse();
    let device = Device::flex().autodiff();
    device.seed(42);
    let llama = |time| DecoderConfig::new().with_vocabulary(32_000).with_time(time);
    let (config, time) = match options.shape {
        Shape::Small => (DecoderConfig::new(), 128),
        Shape::TinyLlama => {
            let config = llama(512).with_width(2048).with_depth(22).with_hidden(5632);
            (config.with_heads(32).with_key_heads(4), 512)
        }
        Shape::Llama7b => {
            let config = llama(512)
                .with_width(4096)
                .with_depth(32)
                .with_hidden(11_008);
            (config.with_heads(32).with_key_heads(32), 512)
        }
    };
    let mut text = Text::open(None, time)?;

    let scratch = match &options.scratch {
        Some(folder) => Some(Scratch::create(folder)?.with_memory(options.memory << 20)?),
        None => None,
    };
    // Weights are drawn when they are needed first: here nothing is in memory yet.
    let mut model = config.init(&device);
    if let Bytes::FiveBytes = options.bytes {
        model = MixedPrecision::bf16().cast(model)?;
    }
    let (parameters, start) = (model.num_params(), Instant::now());
    if let Some(scratch) = &scratch {
        let of_states = match options.bytes {
            Bytes::FiveBytes => 3.1,
            Bytes::F32 => 8.0,
        };
        scratch.reserve((of_states * parameters as f64) as u64)?;
        model = scratch.place(model)?;
    }
    let adamw = AdamWConfig::new();
    let mut optim = match options.bytes {
        Bytes::FiveBytes => init(adamw.in_five_bytes(42), &scratch),
        Bytes::F32 => init(adamw.in_one_pass(), &scratch),
    }
    .with_gradient_release();
    // Reads all weights, which draws those that are not drawn yet, in the same order as `place` does.
    let (digest_before, seconds) = (digest(&model), start.elapsed().as_secs_f64());
    println!("{parameters} parameters, digest {digest_before:016x}, {seconds:.1} s");

    for step in 1..=options.steps {
        let start = Instant::now();
        let loss = model.loss(text.batch(1, &device));
        let value = loss.clone().into_scalar::<f32>();
        let forward = start.elapsed().as_secs_f64();
        model = optim.backward(1e-4, loss, model);
        let seconds = start.elapsed().as_secs_f64();
        let [anonymous, of_files] = ["RssAnon", "RssFile"].map(resident_mib);
        println!(
            "step {step}: loss {value:.4}, {seconds:.1} s (forward {forward:.1}), in memory {anonymous} \
             MiB and {of_files} MiB of files"
        );
    }
    println!("digest of the weights: {:016x}", digest(&model));
    // Weight, gradient and two moments, in f32.
    let plain = (16 * parameters) >> 20;
    println!("in memory with Burn's AdamW: {plain} MiB, and activations");
    Ok(())
}

fn init<O: InScratch>(optimizer: O, scratch: &Option<Scratch>) -> ModuleOptimizer {
    match scratch {
        Some(scratch) => optimizer.in_scratch(scratch).init(),
        None => ModuleOptimizer::from(optimizer),
    }
}

/// What the system says of the process.
fn resident_mib(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with(name));
    let kib = line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
    kib.unwrap_or(0) / 1024
}

/// Equal for equal weights, bit for bit.
fn digest(model: &impl Module) -> u64 {
    struct Digest(u64);
    impl ModuleVisitor for Digest {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let data = param.val().into_data();
            for words in data.as_bytes().chunks(8) {
                let mut word = [0; 8];
                word[..words.len()].copy_from_slice(words);
                self.0 = (self.0 ^ u64::from_le_bytes(word)).wrapping_mul(0x0000_0100_0000_01b3);
            }
        }
    }
    let mut digest = Digest(0xcbf2_9ce4_8422_2325);
    model.visit(&mut digest);
    digest.0
}
