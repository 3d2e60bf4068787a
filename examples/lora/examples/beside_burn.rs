//! What a step with adapters takes: Burn's layers beside those of `operations::nn`, over each kind of base.
//!
//! ```sh
//! cargo run --release -p lora --example beside_burn               # 8 blocks, 512 wide, 128 tokens
//! cargo run --release -p lora --example beside_burn -- 1 6144 1536 # one block of loractl's trunk
//! ```

use std::time::Instant;

use anyhow::{Context, Result};
use burn::module::{Lora, Module, ParamGroup, QLora, Quantizer};
use burn::tensor::quantization::{Calibration, QuantScheme, QuantValue, ScaleDtype};
use burn::tensor::{Device, Distribution, Tensor};
use burn_lean::checkpoint_each;
use burn_lean::operations::Nf4;
use peak_alloc::PeakAlloc;

#[global_allocator]
static HEAP: PeakAlloc = PeakAlloc;

/// A block of attention and a gated feed-forward network, as written with Burn's modules and with ours.
macro_rules! block {
    ($module:ident, $($nn:ident)::+, |$gate:ident, $down:ident, $x:ident| $hidden:expr) => {
        mod $module {
            use super::{Device, Module, Tensor};
            use $($nn)::+ as nn;

            #[derive(Module, Debug)]
            pub(crate) struct Block {
                attention_norm: nn::RmsNorm,
                attention: nn::attention::MultiHeadAttention,
                feed_forward_norm: nn::RmsNorm,
                gate: nn::SwiGlu,
                down: nn::Linear,
            }

            impl Block {
                pub(crate) fn new(width: usize, heads: usize, device: &Device) -> Self {
                    let attention = nn::attention::MultiHeadAttentionConfig::new(width, heads);
                    let norm = || nn::RmsNormConfig::new(width).init(device);
                    Self {
                        attention_norm: norm(),
                        attention: attention.with_dropout(0.0).init(device),
                        feed_forward_norm: norm(),
                        gate: nn::SwiGluConfig::new(width, width * 8 / 3 / 64 * 64).init(device),
                        down: nn::LinearConfig::new(width * 8 / 3 / 64 * 64, width).init(device),
                    }
                }

                pub(crate) fn forward(&self, x: Tensor<3>) -> Tensor<3> {
                    let input = nn::attention::MhaInput::self_attn(self.attention_norm.forward(x.clone()));
                    let x = x + self.attention.forward(input).context;
                    let ($gate, $down) = (&self.gate, &self.down);
                    let $x = self.feed_forward_norm.forward(x.clone());
                    x + $hidden
                }
            }
        }
    };
}

block!(burns, burn::nn, |gate, down, x| down
    .forward(gate.forward(x)));
block!(ours, burn_lean::operations::nn, |gate, down, x| gate
    .forward_linear(x, down));

/// Bytes that the forward pass keeps, the peak of a step, both beyond the model, and its seconds.
fn measure<M>(model: &M, x: &Tensor<3>, forward: impl Fn(&M, Tensor<3>) -> Tensor<3>) -> [f64; 3] {
    let mut best = [f64::INFINITY; 3];
    for _ in 0..3 {
        let before = HEAP.current_usage();
        HEAP.reset_peak_usage();
        let start = Instant::now();
        let loss = forward(model, x.clone()).square().mean();
        let kept = HEAP.current_usage().saturating_sub(before);
        drop(loss.backward());
        let seconds = start.elapsed().as_secs_f64();
        let peak = HEAP.peak_usage() - before;
        let mib = |bytes: usize| bytes as f64 / (1 << 20) as f64;
        for (best, found) in best.iter_mut().zip([mib(kept), mib(peak), seconds]) {
            *best = best.min(found);
        }
    }
    best
}

fn print(base: &str, layers: &str, model: usize, [kept, peak, seconds]: [f64; 3], unit: f64) {
    let model = model as f64 / (1 << 20) as f64;
    println!(
        "| {base} | {layers} | {model:.0} | {kept:.1} | {peak:.1} | {:.2} |",
        seconds / unit
    );
}

fn main() -> Result<()> {
    let numbers: Vec<usize> = std::env::args()
        .skip(1)
        .map(|number| {
            number
                .parse()
                .context("three numbers: blocks, width, tokens")
        })
        .collect::<Result<_>>()?;
    let [depth, width, tokens] = numbers.try_into().unwrap_or([8, 512, 128]);
    let device = Device::flex().autodiff();
    device.seed(7);
    let heads = width / 128;
    let x = Tensor::<3>::random([1, tokens, width], Distribution::Default, &device);
    let lora = || Lora::new(16, 32.0).set_param_group(ParamGroup::from_predicate("weight"));
    let quantized = |scheme| {
        let mut quantizer = Quantizer::new(Calibration::MinMax, scheme);
        quantizer.set_param_group(ParamGroup::from_predicate("weight"));
        QLora::new(lora(), quantizer)
    };
    let four_bits = QuantScheme::default()
        .with_value(QuantValue::Q4S)
        .per_block([32], ScaleDtype::F32);

    println!(
        "| base | layers | model, MiB | kept, MiB | peak, MiB | time |\n|---|---|---|---|---|---|"
    );
    // The time of Burn's layers over f32 is 1.
    let mut unit = None;
    for base in ["f32", "int8", "int4", "nf4"] {
        let before = HEAP.current_usage();
        if base != "nf4" {
            let model: Vec<_> = (0..depth)
                .map(|_| burns::Block::new(width, heads, &device))
                .collect();
            let model = match base {
                "f32" => model.apply_lora(lora()),
                "int8" => model.apply_qlora(quantized(QuantScheme::default())),
                _ => model.apply_qlora(quantized(four_bits)),
            };
            let bytes = HEAP.current_usage() - before;
            let run =
                |model: &Vec<burns::Block>, x| model.iter().fold(x, |x, block| block.forward(x));
            let measured = measure(&model, &x, run);
            let unit = *unit.get_or_insert(measured[2]);
            print(base, "Burn's", bytes, measured, unit);
            let scoped = measure(&model, &x, |model, x| {
                checkpoint_each(model, x, |block, x| block.forward(x))
            });
            print(base, "Burn's, scopes", bytes, scoped, unit);
        }
        let unit = unit.expect("the first base was measured with Burn's layers");
        let before = HEAP.current_usage();
        let model: Vec<_> = (0..depth)
            .map(|_| ours::Block::new(width, heads, &device))
            .collect();
        let model = match base {
            "f32" => model.apply_lora(lora()),
            "int8" => model.apply_qlora(quantized(QuantScheme::default())),
            "int4" => model.apply_qlora(quantized(four_bits)),
            _ => Nf4::new().with_lora(lora()).pack(model)?,
        };
        let bytes = HEAP.current_usage().saturating_sub(before);
        let run = |model: &Vec<ours::Block>, x| model.iter().fold(x, |x, block| block.forward(x));
        let measured = measure(&model, &x, run);
        print(base, "ours", bytes, measured, unit);
        let scoped = measure(&model, &x, |model, x| {
            checkpoint_each(model, x, |block, x| block.forward(x))
        });
        print(base, "ours, scopes", bytes, scoped, unit);
    }
    Ok(())
}
