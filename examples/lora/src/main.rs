//! Trains adapters over a frozen language model, whose weights are in four bits.
//!
//! ```sh
//! cargo run --release -p lora                                    # a small model
//! cargo run --release -p lora -- --base f32                      # the same over dense weights
//! cargo run --release -p lora -- --shape tiny-llama --steps 3    # 1.1 billion parameters
//! ```
//!
//! The base has random weights, so the loss says little: see what a step takes. [`language_model`] has the
//! model, with a scope around each layer.

use std::time::Instant;

use anyhow::Result;
use burn::module::{Lora, Module, ParamGroup, QLora, Quantizer};
use burn::optim::AdamWConfig;
use burn::tensor::quantization::{Calibration, QuantScheme};
use burn::tensor::{Device, FloatDType};
use burn_lean::operations::Nf4;
use burn_lean::optim::{InOnePass, Lean};
use burn_lean::{MixedPrecision, WithGradientRelease};
use clap::{Parser, ValueEnum};
use language_model::model::{Decoder, DecoderConfig};
use language_model::text::Text;
use peak_alloc::PeakAlloc;

#[global_allocator]
static HEAP: PeakAlloc = PeakAlloc;

/// Trains adapters over a frozen language model.
#[derive(Debug, Parser)]
struct Options {
    /// What the frozen weights of the layers are in
    #[arg(long, value_enum, default_value = "nf4")]
    base: Base,
    /// The shape of the model
    #[arg(long, value_enum, default_value = "small")]
    shape: Shape,
    /// Steps of the training
    #[arg(long, default_value_t = 20)]
    steps: usize,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Base {
    /// 32 bits, and activations, too
    F32,
    /// 16 bits
    Bf16,
    /// 8 bits, Burn's
    Int8,
    /// 4.127 bits, those of QLoRA
    Nf4,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Shape {
    /// 1 million parameters
    Small,
    /// 1.1 billion parameters, as TinyLlama has them
    TinyLlama,
}

fn main() -> Result<()> {
    let options = Options::parse();
    let device = Device::flex().autodiff();
    device.seed(42);
    let (config, time) = match options.shape {
        Shape::Small => (DecoderConfig::new(), 128),
        Shape::TinyLlama => {
            let config = DecoderConfig::new().with_vocabulary(32_000).with_time(512);
            let config = config.with_width(2048).with_depth(22).with_hidden(5632);
            (config.with_heads(32).with_key_heads(4), 512)
        }
    };
    let mut text = Text::open(None, time)?;

    let model = config.init(&device);
    let parameters = model.num_params();
    let mut model = adapted(model, options.base)?;
    // States for the factors alone, as nothing else requires gradients.
    let mut optim = AdamWConfig::new()
        .in_one_pass()
        .init()
        .with_gradient_release();
    let mib = |bytes: usize| bytes as f64 / (1 << 20) as f64;
    println!("the model: {:.1} MiB", mib(HEAP.current_usage()));
    for step in 1..=options.steps {
        HEAP.reset_peak_usage();
        let start = Instant::now();
        let loss = model.loss(text.batch(1, &device));
        let value = loss.clone().into_scalar::<f32>();
        model = optim.backward(1e-3, loss, model);
        if step <= 3 || step == options.steps {
            let (peak, seconds) = (mib(HEAP.peak_usage()), start.elapsed().as_secs_f64());
            println!("step {step}: loss {value:.3}, peak {peak:.1} MiB, {seconds:.2} s");
        }
    }
    // Weight, gradient and two moments, in f32.
    let plain = mib(16 * parameters);
    println!("all weights with Burn's AdamW: {plain:.1} MiB, and activations");
    Ok(())
}

/// The model with adapters of rank 16 on the linear weights of its layers. All else is frozen.
fn adapted(model: Decoder, base: Base) -> Result<Decoder> {
    let layers = || ParamGroup::from_predicate("layers");
    let lora = Lora::new(16, 32.0).set_param_group(layers());
    let lora = lora.set_dtype(FloatDType::F32);
    if let Base::F32 = base {
        return Ok(model.apply_lora(lora));
    }
    // Embedding, head and activations, too.
    let model = MixedPrecision::bf16().cast(model)?;
    Ok(match base {
        Base::F32 | Base::Bf16 => model.apply_lora(lora),
        Base::Int8 => {
            let mut quantizer = Quantizer::new(Calibration::MinMax, QuantScheme::default());
            quantizer.set_param_group(ParamGroup::from_predicates(vec!["layers", "weight"]));
            model.apply_qlora(QLora::new(lora, quantizer))
        }
        Base::Nf4 => Nf4::new()
            .with_group(layers())
            .with_lora(lora)
            .pack(model)?,
    })
}
