//! Accuracy on the bundled digits with micro-batches: added up, or taken into the moments. The vision
//! transformer, batches and schedule are those of `vit-0-21 train`, without dropout; Flex, gradient
//! release. What small weights and states cost tells the example `accuracy`.
//!
//! ```sh
//! cargo run --release -p benchmarks --example digits -- 20 5
//! ```
//!
//! The arguments are the number of epochs and of seeds. A line is printed for each run, and a table
//! of means at the end.

use anyhow::{Context, Result};
use burn::backend::{Autodiff, Flex};
use burn::data::dataloader::DataLoaderBuilder;
use burn::lr_scheduler::LrScheduler;
use burn::module::{AutodiffModule, Module};
use burn::optim::adaptor::OptimizerAdaptor;
use burn::optim::{AdamWConfig, GradientsParams, Optimizer, SimpleOptimizer};
use burn::tensor::ElementConversion;
use burn::tensor::backend::Backend;
use burn_gradient_release::{GradientRelease, ReleaseAccumulator, WithGradientRelease};
use burn_gradient_release_optim::{AccumulateInMoments, InOnePass, MomentDecay};
use vit_0_21::data::{Batch, ImageBatcher, Images};
use vit_0_21::model::Vit;
use vit_0_21::schedule::scheduler;
use vit_inputs::{Dataset, Preset, WEIGHT_DECAY};

type B = GradientRelease<Autodiff<Flex>>;

const BATCH_SIZE: usize = 32;
const RATE: f64 = 1.5e-3;
const MICRO_BATCHES: usize = 4;

/// What is trained, but for the optimizer.
#[derive(Clone, Copy)]
struct Training<'a> {
    data: &'a Dataset,
    epochs: usize,
    seed: u64,
    micro_batches: usize,
    sums_gradients: bool,
}

impl Training<'_> {
    /// Validation accuracy after training, in percent.
    fn accuracy<O: SimpleOptimizer<Flex> + 'static>(&self, optim: O) -> Result<f64> {
        let device = Default::default();
        B::seed(&device, self.seed);
        let Dataset {
            size,
            channels,
            classes,
            ..
        } = *self.data;
        let mut model = Vit::<B>::new(&Preset::Tiny.config(size, channels, classes), &device);
        // Burn draws parameters on first access: access them now, in the order of the model.
        let _ = model.num_params();
        let mut optim = OptimizerAdaptor::<O, Vit<B>, B>::from(optim).with_gradient_release();
        let mut accumulator = ReleaseAccumulator::new();
        let steps = self.epochs * self.data.train.len().div_ceil(BATCH_SIZE);
        let mut scheduler = scheduler(RATE, steps)?;
        let loader = DataLoaderBuilder::<B, _, _>::new(ImageBatcher::new(self.data))
            .batch_size(BATCH_SIZE / self.micro_batches)
            .shuffle(self.seed)
            .build(Images(self.data.train.clone()));
        let mut rate = scheduler.step();
        let batches = (0..self.epochs).flat_map(|_| loader.iter());
        for (place, batch) in batches.enumerate() {
            let is_last = (place + 1) % self.micro_batches == 0;
            model = match (self.sums_gradients, is_last) {
                (true, false) => accumulator.arm(model),
                (true, true) => optim.arm_accumulated(rate, model, accumulator.grads()),
                (false, _) => optim.arm(rate, model),
            };
            let loss = model.forward_classification(batch).loss / self.micro_batches as f64;
            let grads = GradientsParams::from_grads(loss.backward(), &model);
            if self.sums_gradients && !is_last {
                accumulator.accumulate(&model, grads);
            } else {
                model = optim.step(rate, model, grads);
            }
            if is_last {
                rate = scheduler.step();
            }
        }
        self.validate(&model.valid())
    }

    fn validate(&self, model: &Vit<Flex>) -> Result<f64> {
        let images = &self.data.validation;
        let loader = DataLoaderBuilder::<Flex, _, Batch<Flex>>::new(ImageBatcher::new(self.data))
            .batch_size(images.len())
            .build(Images(images.clone()));
        let batch = loader.iter().next().context("there are no images")?;
        let found = model.forward(batch.images).argmax(1).flatten::<1>(0, 1);
        let right: i64 = found.equal(batch.labels).int().sum().into_scalar().elem();
        Ok(100.0 * right as f64 / images.len() as f64)
    }
}

type Run = fn(Training<'_>) -> Result<f64>;

/// Each has an optimizer of another type.
const ROWS: [(&str, Run); 4] = [
    ("whole batches", |whole| {
        let micro_batches = 1;
        Training {
            micro_batches,
            ..whole
        }
        .accuracy(adamw().in_one_pass())
    }),
    ("4 micro-batches, in sums", |training| {
        let sums_gradients = true;
        Training {
            sums_gradients,
            ..training
        }
        .accuracy(adamw().in_one_pass())
    }),
    ("in the moments, decay each step", |training| {
        let decay = MomentDecay::EachStep;
        training.accuracy(adamw().in_one_pass().accumulating(MICRO_BATCHES, decay)?)
    }),
    ("in the moments, decay each micro-batch", |training| {
        let decay = MomentDecay::EachMicroBatch;
        training.accuracy(adamw().in_one_pass().accumulating(MICRO_BATCHES, decay)?)
    }),
];

fn adamw() -> AdamWConfig {
    AdamWConfig::new().with_weight_decay(WEIGHT_DECAY as f32)
}

fn main() -> Result<()> {
    let mut arguments = std::env::args()
        .skip(1)
        .map(|number| number.parse::<usize>());
    let epochs = arguments.next().transpose()?.unwrap_or(20);
    let seeds = arguments.next().transpose()?.unwrap_or(5);
    let data = Dataset::digits()?;
    let mut runs = ROWS.map(|_| Vec::new());
    for seed in 1..=seeds as u64 {
        for ((name, run), runs) in ROWS.iter().zip(&mut runs) {
            let accuracy = run(Training {
                data: &data,
                epochs,
                seed,
                micro_batches: MICRO_BATCHES,
                sums_gradients: false,
            })?;
            println!("seed {seed}, {name}: {accuracy:.1} %");
            runs.push(accuracy);
        }
    }
    println!("\n{:40} {:>6} {:>6} {:>6}", "%", "mean", "least", "most");
    for ((name, _), runs) in ROWS.iter().zip(runs) {
        let mean = runs.iter().sum::<f64>() / runs.len() as f64;
        let least = runs.iter().copied().fold(100.0, f64::min);
        let most = runs.iter().copied().fold(0.0, f64::max);
        println!("{name:40} {mean:6.1} {least:6.1} {most:6.1}");
    }
    Ok(())
}
