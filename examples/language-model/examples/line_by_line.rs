//! What each line that saves memory changes: the peak of a step, line after line, for the table of
//! `README.md`.
//!
//! ```sh
//! cargo run --release -p language-model --example line_by_line
//! ```

use anyhow::Result;
use burn::module::Module;
use burn::optim::{AdamWConfig, GradientsAccumulator, GradientsParams, ModuleOptimizer, Optimizer};
use burn::tensor::{Device, Distribution, Int, Tensor};
use burn_lean::optim::{AccumulateInMoments, EightBitMoments, InOnePass, Lean, MomentDecay};
use burn_lean::{NormClipping, ReleaseOptimizer, WithGradientRelease, clip_grad_norm, no_decay};
use peak_alloc::PeakAlloc;

#[global_allocator]
static HEAP: PeakAlloc = PeakAlloc;

const LR: f64 = 3e-4;
const MICRO_BATCHES: usize = 4;
const BATCH: usize = 4;
const TIME: usize = 128;
const VOCABULARY: usize = 8192;
const WIDTH: usize = 256;

/// The lines of the table: each has all before it.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
enum Line {
    PlainBurn,
    FourMicroBatchesClipGroups,
    GradientRelease,
    Scopes,
    Operations,
    FusedLoss,
    OnePass,
    EightBitMoments,
    SumsInMoments,
}

/// A decoder, of Burn's modules or of `operations::nn`.
trait Decoder: Module {
    /// The mean loss of `[batch, time + 1]` tokens.
    fn loss(&self, tokens: Tensor<2, Int>, line: Line) -> Tensor<1>;
}

/// The same model of two families of modules.
macro_rules! decoder {
    ($name:ident of $($modules:tt)*) => {
        mod $name {
            use burn::module::Module;
            use burn::nn::attention::generate_autoregressive_mask;
            use burn::nn::loss::CrossEntropyLossConfig;
            use burn::tensor::{Device, Int, Tensor};
            use burn_lean::checkpoint_each;
            use burn_lean::operations::linear_cross_entropy;
            use $($modules)* as nn;

            use super::{Line, VOCABULARY, WIDTH};

            #[derive(Module, Debug)]
            pub(crate) struct Decoder {
                tokens: nn::Embedding,
                layers: nn::transformer::TransformerEncoder,
                norm: nn::LayerNorm,
                head: nn::Linear,
            }

            impl Decoder {
                pub(crate) fn new(device: &Device) -> Self {
                    let linear = nn::LinearConfig::new(WIDTH, VOCABULARY);
                    let layers =
                        nn::transformer::TransformerEncoderConfig::new(WIDTH, 4 * WIDTH, 8, 6);
                    Self {
                        tokens: nn::EmbeddingConfig::new(VOCABULARY, WIDTH).init(device),
                        layers: layers.with_norm_first(true).init(device),
                        norm: nn::LayerNormConfig::new(WIDTH).init(device),
                        head: linear.with_bias(false).init(device),
                    }
                }
            }

            impl super::Decoder for Decoder {
                fn loss(&self, tokens: Tensor<2, Int>, line: Line) -> Tensor<1> {
                    let ([size, length], device) = (tokens.dims(), tokens.device());
                    let seen = tokens.clone().narrow(1, 0, length - 1);
                    let targets = tokens.narrow(1, 1, length - 1);
                    let targets = targets.reshape([size * (length - 1)]);
                    let mask = generate_autoregressive_mask(size, length - 1, &device);
                    let (layers, x) = (&self.layers.layers, self.tokens.forward(seen));
                    let x = if line >= Line::Scopes {
                        checkpoint_each(layers, x, move |layer, x| {
                            layer.forward(x, None, Some(mask.clone()))
                        })
                    } else {
                        layers
                            .iter()
                            .fold(x, |x, layer| layer.forward(x, None, Some(mask.clone())))
                    };
                    let x = self.norm.forward(x).flatten::<2>(0, 1);
                    let loss = CrossEntropyLossConfig::new().init(&device);
                    if line >= Line::FusedLoss {
                        linear_cross_entropy(&loss, x, self.head.weight.val(), None, targets)
                    } else {
                        loss.forward(self.head.forward(x), targets)
                    }
                }
            }
        }
    };
}

decoder!(plain of burn::nn);
decoder!(lean of burn_lean::operations::nn);

fn main() -> Result<()> {
    for line in [
        Line::PlainBurn,
        Line::FourMicroBatchesClipGroups,
        Line::GradientRelease,
        Line::Scopes,
        Line::Operations,
        Line::FusedLoss,
        Line::OnePass,
        Line::EightBitMoments,
        Line::SumsInMoments,
    ] {
        let device = Device::flex().autodiff();
        device.seed(42);
        let peak = if line >= Line::Operations {
            peak(line, lean::Decoder::new(&device), &device)?
        } else {
            peak(line, plain::Decoder::new(&device), &device)?
        };
        println!("{line:?}: {peak:.1} MiB");
    }
    Ok(())
}

/// The peak of the third step, in MiB: states exist, and Burn's pools are filled.
fn peak<M: Decoder>(line: Line, mut model: M, device: &Device) -> Result<f32> {
    let adamw = |decay| AdamWConfig::new().with_weight_decay(decay);
    let optim = match line {
        Line::PlainBurn => adamw(0.1).init(),
        Line::SumsInMoments => adamw(0.1)
            .in_one_pass()
            .with_8_bit_moments(&model)
            .accumulating(MICRO_BATCHES, MomentDecay::EachStep)?
            .init(),
        Line::EightBitMoments => grouped(&model, |decay| {
            adamw(decay).in_one_pass().with_8_bit_moments(&model)
        }),
        Line::OnePass => grouped(&model, |decay| adamw(decay).in_one_pass()),
        _ => grouped(&model, |decay| adamw(decay).build()),
    };
    let mut batch = || {
        let tokens = Distribution::Uniform(0.0, VOCABULARY as f64);
        Tensor::<2, Int>::random([BATCH, TIME + 1], tokens, device)
    };
    let mut step: Box<dyn FnMut(M) -> M> = match line {
        Line::PlainBurn => {
            let mut optim = optim;
            Box::new(move |model| {
                let grads = gradients(&model, model.loss(batch(), line));
                optim.step(LR, model, grads)
            })
        }
        Line::FourMicroBatchesClipGroups => {
            let mut optim = optim;
            Box::new(move |model| {
                let mut sums = GradientsAccumulator::new();
                for _ in 0..MICRO_BATCHES {
                    let loss = model.loss(batch(), line) / MICRO_BATCHES as f64;
                    sums.accumulate(&model, gradients(&model, loss));
                }
                let mut grads = sums.grads();
                clip_grad_norm(&model, &mut grads, 1.0);
                optim.step(LR, model, grads)
            })
        }
        Line::SumsInMoments => {
            let mut optim = optim.with_gradient_release();
            Box::new(move |mut model| {
                for _ in 0..MICRO_BATCHES {
                    let loss = model.loss(batch(), line) / MICRO_BATCHES as f64;
                    model = optim.backward(LR, loss, model);
                }
                model
            })
        }
        _ => {
            let optim = optim.with_gradient_release();
            let clipping = NormClipping::GlobalNorm { max_norm: 1.0 };
            let mut optim = optim.with_norm_clipping(clipping);
            Box::new(move |model| accumulated_step(&mut optim, model, line, &mut batch))
        }
    };
    for _ in 0..2 {
        model = step(model);
    }
    HEAP.reset_peak_usage();
    step(model);
    Ok(HEAP.peak_usage_as_mb())
}

/// Norms and biases do not decay.
fn grouped<O: Optimizer>(model: &impl Module, adamw: impl Fn(f32) -> O) -> ModuleOptimizer {
    ModuleOptimizer::from(adamw(0.1)).with_group(no_decay(model), adamw(0.0), None)
}

fn gradients(model: &impl Module, loss: Tensor<1>) -> GradientsParams {
    GradientsParams::from_grads(loss.backward(), model)
}

/// A step over micro-batches, of which the last one goes through the model twice: for the norm, and
/// for the step.
fn accumulated_step<M: Decoder>(
    optim: &mut ReleaseOptimizer,
    model: M,
    line: Line,
    batch: &mut impl FnMut() -> Tensor<2, Int>,
) -> M {
    for _ in 1..MICRO_BATCHES {
        let loss = model.loss(batch(), line) / MICRO_BATCHES as f64;
        optim.accumulate(loss, &model);
    }
    let last = batch();
    let loss = |model: &M| model.loss(last.clone(), line) / MICRO_BATCHES as f64;
    optim.two_passes(LR, model, loss).0
}
