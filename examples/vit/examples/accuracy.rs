//! What small states and small weights cost in accuracy: the tiny vision transformer on the digits.
//!
//! ```sh
//! cargo run --release -p vit --example accuracy -- 7
//! ```
//!
//! The number says how many seeds. Each line is a seed; the last lines are means, in percent.

use std::env;

use anyhow::{Context, Result};
use burn::module::{Module, ModuleMapper, Param};
use burn::nn::Embedding;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::optim::{AdamWConfig, GradientsParams, ModuleOptimizer};
use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use burn_lean::optim::{Bf16Weights, EightBitMoments, InOnePass, Lean, MasterWeights, Stochastic};
use vit::model::{Model, Vit, drawn};
use vit::settings::{Preset, WEIGHT_DECAY};
use vit::step::rate;
use vit_common::data::{Dataset, Image, Split, labels};
use vit_common::rng::SeededRng;

const EPOCHS: usize = 20;
const BATCH: usize = 32;
const RATE: f64 = 2e-3;

/// A row of the table.
struct Row {
    name: &'static str,
    /// The type of the weights, and of what is computed with them.
    dtype: DType,
    optimizer: fn(seed: u64) -> ModuleOptimizer,
}

fn adamw() -> AdamWConfig {
    AdamWConfig::new().with_weight_decay(WEIGHT_DECAY as f32)
}

const ROWS: [Row; 7] = [
    Row {
        name: "32 bits",
        dtype: DType::F32,
        optimizer: |_| adamw().in_one_pass().init(),
    },
    Row {
        name: "moments in 8 bits",
        dtype: DType::F32,
        optimizer: |_| {
            let no_embeddings = Vec::<Embedding>::new();
            adamw()
                .in_one_pass()
                .with_8_bit_moments(&no_embeddings)
                .init()
        },
    },
    Row {
        name: "beta_2 0.99, 32 bits",
        dtype: DType::F32,
        optimizer: |_| adamw().with_beta_2(0.99).in_one_pass().init(),
    },
    Row {
        name: "beta_2 0.99, moments in bf16",
        dtype: DType::F32,
        optimizer: |_| {
            let adamw = adamw().with_beta_2(0.99).in_one_pass();
            adamw.with_bf16_moments().init()
        },
    },
    Row {
        name: "weights in bf16, stochastic rounding",
        dtype: DType::BF16,
        optimizer: |seed| Bf16Weights::new(adamw().in_one_pass(), Stochastic { seed }).init(),
    },
    Row {
        name: "weights in bf16, master weights",
        dtype: DType::BF16,
        optimizer: |_| Bf16Weights::new(adamw().in_one_pass(), MasterWeights).init(),
    },
    Row {
        name: "weights in bf16, rounded to the nearest by Burn",
        dtype: DType::BF16,
        optimizer: |_| adamw().init(),
    },
];

struct To(DType);

impl ModuleMapper for To {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|weight| weight.cast(self.0).detach().require_grad())
    }
}

fn batch(
    data: &Dataset,
    split: &Split,
    places: &[usize],
    dtype: DType,
    device: &Device,
) -> Result<(Tensor<4>, Tensor<1, Int>)> {
    let image = |place: &usize| split.get(*place).context("an image is missing");
    let images: Vec<Image> = places.iter().map(image).collect::<Result<_>>()?;
    let (pixels, shape) = data.normalization().pixels(&images);
    let pixels = Tensor::<4>::from_data(TensorData::new(pixels, shape), device);
    Ok((
        pixels.cast(dtype),
        Tensor::from_data(TensorData::new(labels(&images), [images.len()]), device),
    ))
}

/// The share of the validation images that are told right, in percent.
fn train(row: &Row, data: &Dataset, seed: u64) -> Result<f64> {
    let device = Device::flex();
    let autodiff = device.clone().autodiff();
    device.seed(seed);
    let config = Preset::Tiny.config(data.size, data.channels, data.classes);
    let mut model = drawn(Vit::new(&config, &autodiff)).map(&mut To(row.dtype));
    let mut optimizer = (row.optimizer)(seed);
    let batches = data.train.len().div_ceil(BATCH);
    for epoch in 0..EPOCHS {
        let order = SeededRng::new(&[seed, epoch as u64]).permutation(data.train.len());
        for (index, places) in order.chunks(BATCH).enumerate() {
            let iteration = epoch * batches + index;
            let (images, labels) = batch(data, &data.train, places, row.dtype, &autodiff)?;
            let scores = model.forward_seeded(images, seed ^ iteration as u64);
            let loss = CrossEntropyLossConfig::new()
                .init(&autodiff)
                .forward(scores.cast(DType::F32), labels);
            let grads = GradientsParams::from_grads(loss.backward(), &model);
            let rate = rate(RATE, iteration, EPOCHS * batches);
            model = optimizer.step(rate, model, grads);
        }
    }
    let model = model.valid();
    let places: Vec<usize> = (0..data.validation.len()).collect();
    let (images, labels) = batch(data, &data.validation, &places, row.dtype, &device)?;
    let best = model.forward(images).argmax(1).flatten::<1>(0, 1);
    let hits = best.equal(labels).int().sum().into_scalar::<i64>();
    Ok(100.0 * hits as f64 / places.len() as f64)
}

fn main() -> Result<()> {
    let seeds = match env::args().nth(1) {
        Some(seeds) => seeds.parse().context("the number of seeds")?,
        None => 1,
    };
    let data = Dataset::digits()?;
    let mut sums = [0.0; ROWS.len()];
    for seed in 1..=seeds {
        for (row, sum) in ROWS.iter().zip(&mut sums) {
            let accuracy = train(row, &data, seed)?;
            *sum += accuracy;
            println!("seed {seed}  {}  {accuracy:.1}", row.name);
        }
    }
    for (row, sum) in ROWS.iter().zip(sums) {
        println!("{:<50}{:.1}", row.name, sum / seeds as f64);
    }
    Ok(())
}
