//! Peak memory of a small language model, as lines are added to its training one by one: the table
//! of `docs/language-model.md`.
//!
//! ```sh
//! cargo run --release -p burn-lean --features operations,optim --example language-model
//! ```
//!
//! Each line runs in a process of its own. With a line's number, only that line runs, in this
//! process.

use std::env;
use std::process::Command;

use burn::module::{Module, ModuleDisplay};
use burn::nn::attention::generate_autoregressive_mask;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::transformer::{TransformerEncoder, TransformerEncoderConfig};
use burn::nn::{Embedding, EmbeddingConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::optim::{AdamWConfig, GradientsAccumulator, GradientsParams, ModuleOptimizer};
use burn::tensor::{Bool, Device, Distribution, Int, Tensor};
use burn_lean::operations::nn::LeanModule;
use burn_lean::operations::{linear_cross_entropy, nn};
use burn_lean::optim::{AccumulateInMoments, EightBitMoments, InOnePass, Lean, MomentDecay};
use burn_lean::{
    NormClipping, ReleaseAccumulator, ReleaseOptimizer, WithGradientRelease, checkpoint,
    clip_grad_norm, no_decay,
};
use peak_alloc::PeakAlloc;

#[global_allocator]
static HEAP: PeakAlloc = PeakAlloc;

const LINES: [&str; 9] = [
    "plain Burn, one batch a step",
    "4 micro-batches, clipping by the global norm, no decay on norms and biases",
    "gradient release",
    "a scope around each layer",
    "operations::nn in place of burn::nn",
    "linear_cross_entropy",
    "the optimizer in one pass",
    "moments in 8 bits",
    "sums in the moments, without clipping and groups",
];

const VOCABULARY: usize = 8000;
const WIDTH: usize = 256;
const TOKENS: usize = 128;
const BATCH: usize = 4;
const MICRO_BATCHES: usize = 4;
const STEPS: usize = 3;
const RATE: f64 = 3e-4;
const MAX_NORM: f64 = 1.0;

/// The layers of the model, of Burn's modules or of this crate's.
trait Layers: Module + ModuleDisplay + Sync + 'static {
    fn forward(&self, x: Tensor<3>, mask: Tensor<3, Bool>, in_scopes: bool) -> Tensor<3>;
}

macro_rules! layers {
    ($encoder:ty) => {
        impl Layers for $encoder {
            fn forward(&self, x: Tensor<3>, mask: Tensor<3, Bool>, in_scopes: bool) -> Tensor<3> {
                self.layers.iter().fold(x, |x, layer| match in_scopes {
                    true => {
                        let mask = mask.clone();
                        checkpoint(layer, x, move |layer, x| {
                            layer.forward(x, None, Some(mask.clone()))
                        })
                    }
                    false => layer.forward(x, None, Some(mask.clone())),
                })
            }
        }
    };
}

layers!(TransformerEncoder);
layers!(nn::transformer::TransformerEncoder);

#[derive(Module, Debug)]
struct Model<L: Module + ModuleDisplay> {
    tokens: Embedding,
    positions: Embedding,
    layers: L,
    norm: LayerNorm,
    head: Linear,
}

impl<L: Layers> Model<L> {
    fn new(layers: L, device: &Device) -> Self {
        Self {
            tokens: EmbeddingConfig::new(VOCABULARY, WIDTH).init(device),
            positions: EmbeddingConfig::new(TOKENS, WIDTH).init(device),
            layers,
            norm: LayerNormConfig::new(WIDTH).init(device),
            head: LinearConfig::new(WIDTH, VOCABULARY)
                .with_bias(false)
                .init(device),
        }
    }

    /// The mean loss of `[batch, time + 1]` tokens.
    fn loss(&self, batch: Tensor<2, Int>, line: usize) -> Tensor<1> {
        let [size, length] = batch.dims();
        let time = length - 1;
        let device = batch.device();
        let inputs = batch.clone().slice([0..size, 0..time]);
        let targets = batch.slice([0..size, 1..length]).reshape([size * time]);
        let positions = Tensor::<1, Int>::arange(0..time as i64, &device).unsqueeze::<2>();
        let x = self.tokens.forward(inputs) + self.positions.forward(positions);
        let mask = generate_autoregressive_mask(size, time, &device);
        let x = self.norm.forward(self.layers.forward(x, mask, line >= 4));
        let x = x.reshape([size * time, WIDTH]);
        let loss = CrossEntropyLossConfig::new().init(&device);
        match line >= 6 {
            true => linear_cross_entropy(&loss, x, self.head.weight.val(), None, targets),
            false => loss.forward(self.head.forward(x), targets),
        }
    }
}

fn batch(device: &Device) -> Tensor<2, Int> {
    let numbers = Distribution::Uniform(0.0, VOCABULARY as f64);
    Tensor::random([BATCH, TOKENS + 1], numbers, device)
}

/// One training with plain Burn's optimizer.
fn plain<L: Layers>(mut model: Model<L>, mut optim: ModuleOptimizer, device: &Device, line: usize) {
    for step in 0..STEPS {
        after_warm_up(step);
        let mut sums = GradientsAccumulator::new();
        let micro_batches = if line == 1 { 1 } else { MICRO_BATCHES };
        for _ in 0..micro_batches {
            let loss = model.loss(batch(device), line) / micro_batches as f64;
            sums.accumulate(&model, GradientsParams::from_grads(loss.backward(), &model));
        }
        let mut grads = sums.grads();
        if line > 1 {
            clip_grad_norm(&model, &mut grads, MAX_NORM);
        }
        model = optim.step(RATE, model, grads);
    }
}

/// One training with gradient release.
fn released<L: Layers>(
    mut model: Model<L>,
    mut optim: ReleaseOptimizer,
    device: &Device,
    line: usize,
) {
    optim = optim.with_norm_clipping(NormClipping::GlobalNorm { max_norm: MAX_NORM });
    for step in 0..STEPS {
        after_warm_up(step);
        let mut sums = ReleaseAccumulator::new();
        for _ in 1..MICRO_BATCHES {
            model = sums.arm(model);
            let loss = model.loss(batch(device), line) / MICRO_BATCHES as f64;
            let grads = GradientsParams::from_grads(loss.backward(), &model);
            sums.accumulate(&model, grads);
        }
        let last = batch(device);
        let stepped = optim.try_two_passes(RATE, model, sums.grads(), |model| {
            model.loss(last.clone(), line) / MICRO_BATCHES as f64
        });
        (model, _) = stepped.expect("the step is not refused");
    }
}

/// One training whose micro-batches go into the moments of the optimizer.
fn in_moments<L: Layers>(
    mut model: Model<L>,
    mut optim: ReleaseOptimizer,
    device: &Device,
    line: usize,
) {
    for step in 0..STEPS {
        after_warm_up(step);
        for _ in 0..MICRO_BATCHES {
            model = optim.arm(RATE, model);
            let loss = model.loss(batch(device), line) / MICRO_BATCHES as f64;
            let grads = GradientsParams::from_grads(loss.backward(), &model);
            model = optim.step(RATE, model, grads);
        }
    }
}

/// The first step makes the optimizer's states: the peak is that of the later ones.
fn after_warm_up(step: usize) {
    if step == 1 {
        HEAP.reset_peak_usage();
    }
}

fn train<L: Layers>(layers: L, device: &Device, line: usize) {
    let model = Model::new(layers, device);
    let config = AdamWConfig::new().with_weight_decay(0.1);
    let undecayed = AdamWConfig::new().with_weight_decay(0.0);
    let group = no_decay(&model);
    match line {
        1 => plain(model, config.init(), device, line),
        2 => {
            let optim = config.init().with_group(group, undecayed.build(), None);
            plain(model, optim, device, line);
        }
        3..=6 => {
            let optim = config.init().with_gradient_release();
            released(
                model,
                optim.with_group(group, undecayed.build(), None),
                device,
                line,
            );
        }
        7 => {
            let optim = config.in_one_pass().init().with_gradient_release();
            released(
                model,
                optim.with_group(group, undecayed.in_one_pass(), None),
                device,
                line,
            );
        }
        8 => {
            let undecayed = undecayed.in_one_pass().with_8_bit_moments(&model);
            let config = config.in_one_pass().with_8_bit_moments(&model);
            let optim = config.init().with_gradient_release();
            released(
                model,
                optim.with_group(group, undecayed, None),
                device,
                line,
            );
        }
        _ => {
            let config = config.in_one_pass().with_8_bit_moments(&model);
            let config = config.accumulating(MICRO_BATCHES, MomentDecay::EachStep);
            let config = config.expect("AdamW can accumulate in its moments");
            in_moments(model, config.init().with_gradient_release(), device, line);
        }
    }
}

fn main() {
    let Some(line) = env::args().nth(1) else {
        for line in 1..=LINES.len() {
            let program = env::current_exe().expect("the program is a file");
            let status = Command::new(program).arg(line.to_string()).status();
            assert!(status.expect("the program can be started").success());
        }
        return;
    };
    let line: usize = line.parse().expect("the number of a line");
    let device = Device::flex().autodiff();
    device.seed(1);
    let in_use = HEAP.current_usage();
    let layers = TransformerEncoderConfig::new(WIDTH, 4 * WIDTH, 8, 6)
        .with_norm_first(true)
        .init(&device);
    match line >= 5 {
        true => train(layers.lean(), &device, line),
        false => train(layers, &device, line),
    }
    let peak = (HEAP.peak_usage() - in_use) as f64 / f64::from(1 << 20);
    println!("{line}  {peak:6.1} MiB  {}", LINES[line - 1]);
}
