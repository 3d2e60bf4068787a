//! What small states and small weights cost in accuracy: the tiny vision transformer on the digits.
//!
//! ```sh
//! cargo run --release -p benchmarks --example accuracy -- 7
//! ```
//!
//! The number says how many seeds. Each line is a seed; the last lines are means, in percent.

use anyhow::{Context, Result};
use burn_0_22::module::{Module, ModuleMapper, Param};
use burn_0_22::nn::Embedding;
use burn_0_22::nn::loss::CrossEntropyLossConfig;
use burn_0_22::optim::{AdamWConfig, GradientsParams, ModuleOptimizer};
use burn_0_22::tensor::{DType, Device, Int, Tensor, TensorData};
use burn_lean::optim::{Bf16Weights, EightBitMoments, InOnePass, Lean, MasterWeights, Stochastic};
use std::env;
use std::f64::consts::PI;
use vit::model::{Model, Vit, drawn};
use vit_inputs::{Dataset, Image, Preset, SeededRng, Split, WEIGHT_DECAY, labels};

const EPOCHS: usize = 20;
const BATCH: usize = 32;
const RATE: f64 = 2e-3;

/// The type of the weights, and of what is computed with them; the optimizer, of a seed.
type Row = (&'static str, DType, fn(u64) -> ModuleOptimizer);

const ROWS: [Row; 7] = [
    ("32 bits", DType::F32, |_| adamw().in_one_pass().init()),
    ("moments in 8 bits", DType::F32, |_| {
        let no_embeddings = Vec::<Embedding>::new();
        let adamw = adamw().in_one_pass();
        adamw.with_8_bit_moments(&no_embeddings).init()
    }),
    ("beta_2 0.99, 32 bits", DType::F32, |_| {
        adamw().with_beta_2(0.99).in_one_pass().init()
    }),
    ("beta_2 0.99, moments in bf16", DType::F32, |_| {
        let adamw = adamw().with_beta_2(0.99).in_one_pass();
        adamw.with_bf16_moments().init()
    }),
    ("bf16, stochastic rounding", DType::BF16, |seed| {
        Bf16Weights::new(adamw().in_one_pass(), Stochastic { seed }).init()
    }),
    ("bf16, master weights", DType::BF16, |_| {
        Bf16Weights::new(adamw().in_one_pass(), MasterWeights).init()
    }),
    ("bf16, rounded to the nearest by Burn", DType::BF16, |_| {
        adamw().init()
    }),
];

fn adamw() -> AdamWConfig {
    AdamWConfig::new().with_weight_decay(WEIGHT_DECAY as f32)
}

struct To(DType);

impl ModuleMapper for To {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|weight| weight.cast(self.0).detach().require_grad())
    }
}

/// The share of the validation images that are told right, in percent.
fn train((_, dtype, optimizer): Row, data: &Dataset, seed: u64) -> f64 {
    let device = Device::flex();
    let autodiff = device.clone().autodiff();
    device.seed(seed);
    let config = Preset::Tiny.config(data.size, data.channels, data.classes);
    let mut model = drawn(Vit::new(&config, &autodiff)).map(&mut To(dtype));
    let mut optimizer = optimizer(seed);
    let batches = data.train.len().div_ceil(BATCH);
    for epoch in 0..EPOCHS {
        let order = SeededRng::new(&[seed, epoch as u64]).permutation(data.train.len());
        for (index, places) in order.chunks(BATCH).enumerate() {
            let iteration = epoch * batches + index;
            let (images, labels) = batch(data, &data.train, places, (&autodiff, dtype));
            let scores = model.forward(images, Some(seed ^ iteration as u64));
            let loss = CrossEntropyLossConfig::new().init(&autodiff);
            let loss = loss.forward(scores.cast(DType::F32), labels);
            let grads = GradientsParams::from_grads(loss.backward(), &model);
            model = optimizer.step(rate(iteration, EPOCHS * batches), model, grads);
        }
    }
    let places: Vec<usize> = (0..data.validation.len()).collect();
    let (images, labels) = batch(data, &data.validation, &places, (&device, dtype));
    let scores = model.valid().forward(images, None);
    let best = scores.argmax(1).flatten::<1>(0, 1);
    let hits = best.equal(labels).int().sum().into_scalar::<i64>();
    100.0 * hits as f64 / places.len() as f64
}

/// `[batch, channels, size, size]` images in this type, and `[batch]` labels.
fn batch(
    data: &Dataset,
    split: &Split,
    places: &[usize],
    (device, dtype): (&Device, DType),
) -> (Tensor<4>, Tensor<1, Int>) {
    let images: Vec<Image> = places
        .iter()
        .filter_map(|place| split.get(*place))
        .collect();
    let (pixels, shape) = data.pixels(&images);
    let labels = TensorData::new(labels(&images), [images.len()]);
    (
        Tensor::from_data(TensorData::new(pixels, shape), (device, dtype)),
        Tensor::from_data(labels, device),
    )
}

/// That of `vit train`: a rise over a tenth of the iterations, and a cosine.
fn rate(iteration: usize, iterations: usize) -> f64 {
    let warm_up = (iterations / 10).max(1);
    let rise = ((iteration + 1) as f64 / (warm_up + 1) as f64).min(1.0);
    let fall = (1.0 + (PI * iteration as f64 / iterations as f64).cos()) / 2.0;
    RATE * rise * fall
}

fn main() -> Result<()> {
    let seeds = env::args().nth(1).map_or(Ok(1), |seeds| seeds.parse());
    let seeds = seeds.context("the number of seeds")?;
    let data = Dataset::digits()?;
    let mut sums = [0.0; ROWS.len()];
    for seed in 1..=seeds {
        for (row, sum) in ROWS.into_iter().zip(&mut sums) {
            let accuracy = train(row, &data, seed);
            *sum += accuracy;
            println!("seed {seed}  {}  {accuracy:.1}", row.0);
        }
    }
    for (row, sum) in ROWS.iter().zip(sums) {
        println!("{:<50}{:.1}", row.0, sum / seeds as f64);
    }
    Ok(())
}
