//! Accuracy on the bundled digits of what is not exact: moments in 8 bits, weights in bf16, and
//! micro-batches that go into the moments. The vision transformer, batches and schedule are those
//! of `vit-0-21 train`, without dropout; Flex, gradient release.
//!
//! ```sh
//! cargo run --release -p benchmarks --example digits -- 20 5
//! ```
//!
//! The arguments are the number of epochs and of seeds, and the first seed. A line is printed for
//! each run, and a table of means at the end.

use anyhow::Result;
use burn::backend::{Autodiff, Flex};
use burn::data::dataloader::DataLoaderBuilder;
use burn::lr_scheduler::LrScheduler;
use burn::module::{AutodiffModule, Module, ModuleMapper, Param};
use burn::nn::Embedding;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::optim::adaptor::OptimizerAdaptor;
use burn::optim::{AdamWConfig, GradientsParams, Optimizer, SimpleOptimizer};
use burn::tensor::backend::Backend;
use burn::tensor::{DType, ElementConversion, Tensor};
use burn_gradient_release::{GradientRelease, ReleaseAccumulator, WithGradientRelease};
use burn_gradient_release_optim::{
    AccumulateInMoments, Bf16Weights, EightBitMoments, InOnePass, MasterWeights, MomentDecay,
    Stochastic,
};
use vit_0_21::data::{Batch, Dataset, ImageBatcher, Images};
use vit_0_21::model::Vit;
use vit_0_21::train::scheduler;
use vit_common::config::{Preset, WEIGHT_DECAY};

type B = GradientRelease<Autodiff<Flex>>;

const BATCH_SIZE: usize = 32;
const RATE: f64 = 1.5e-3;
const MICRO_BATCHES: usize = 4;

const ROWS: [&str; 8] = [
    "fp32",
    "moments in 8 bits",
    "bf16, stochastic rounding",
    "bf16, master weights",
    "bf16, rounded to the nearest",
    "4 micro-batches, in sums",
    "4 micro-batches, in the moments, decay each step",
    "4 micro-batches, in the moments, decay each micro-batch",
];

/// What is trained, but for the optimizer.
#[derive(Clone, Copy)]
struct Training<'a> {
    data: &'a Dataset,
    epochs: usize,
    seed: u64,
    dtype: DType,
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
        if self.dtype != DType::F32 {
            model = model.map(&mut Cast(self.dtype));
        }
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
            let loss = self.loss(&model, batch);
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
        Ok(self.validate(&model.valid()))
    }

    fn loss(&self, model: &Vit<B>, batch: Batch<B>) -> Tensor<B, 1> {
        let scores = model.forward(batch.images.cast(self.dtype));
        let loss = CrossEntropyLossConfig::new().init(&scores.device());
        loss.forward(scores.cast(DType::F32), batch.labels)
            .div_scalar(self.micro_batches as f64)
    }

    fn validate(&self, model: &Vit<Flex>) -> f64 {
        let loader = DataLoaderBuilder::<Flex, _, Batch<Flex>>::new(ImageBatcher::new(self.data))
            .batch_size(BATCH_SIZE)
            .build(Images(self.data.validation.clone()));
        let right = |batch: Batch<Flex>| -> i64 {
            let scores = model.forward(batch.images.cast(self.dtype));
            let found = scores.argmax(1).flatten::<1>(0, 1);
            found.equal(batch.labels).int().sum().into_scalar().elem()
        };
        let right: i64 = loader.iter().map(right).sum();
        100.0 * right as f64 / self.data.validation.len() as f64
    }
}

struct Cast(DType);

impl ModuleMapper<B> for Cast {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        param.map(|weight| Tensor::from_inner(weight.inner().cast(self.0)).require_grad())
    }
}

/// The accuracy of a row. Each has an optimizer of another type.
fn accuracy(row: usize, exact: Training<'_>) -> Result<f64> {
    let config = || AdamWConfig::new().with_weight_decay(WEIGHT_DECAY as f32);
    let adamw = || config().in_one_pass();
    let embeddings = Vec::<Embedding<Flex>>::new();
    let seed = exact.seed;
    let (mut bf16, mut micro) = (exact, exact);
    bf16.dtype = DType::BF16;
    micro.micro_batches = MICRO_BATCHES;
    let accumulating = |decay| adamw().accumulating(MICRO_BATCHES, decay);
    match row {
        0 => exact.accuracy(adamw()),
        1 => exact.accuracy(adamw().with_8_bit_moments(&embeddings)),
        2 => bf16.accuracy(Bf16Weights::new(adamw(), Stochastic { seed })),
        3 => bf16.accuracy(Bf16Weights::new(adamw(), MasterWeights)),
        4 => bf16.accuracy(config().build()),
        5 => {
            micro.sums_gradients = true;
            micro.accuracy(adamw())
        }
        6 => micro.accuracy(accumulating(MomentDecay::EachStep)?),
        _ => micro.accuracy(accumulating(MomentDecay::EachMicroBatch)?),
    }
}

fn main() -> Result<()> {
    let mut arguments = std::env::args()
        .skip(1)
        .map(|number| number.parse::<usize>());
    let epochs = arguments.next().transpose()?.unwrap_or(20);
    let seeds = arguments.next().transpose()?.unwrap_or(5);
    let first = arguments.next().transpose()?.unwrap_or(1);
    let data = Dataset::digits()?;
    let mut runs = ROWS.map(|_| Vec::new());
    for seed in (first..first + seeds).map(|seed| seed as u64) {
        for (row, name) in ROWS.iter().enumerate() {
            let exact = Training {
                data: &data,
                epochs,
                seed,
                dtype: DType::F32,
                micro_batches: 1,
                sums_gradients: false,
            };
            let accuracy = accuracy(row, exact)?;
            println!("seed {seed}, {name}: {accuracy:.1} %");
            runs[row].push(accuracy);
        }
    }
    println!("\n{:56} {:>6} {:>6} {:>6}", "%", "mean", "least", "most");
    for (name, runs) in ROWS.iter().zip(runs) {
        let mean = runs.iter().sum::<f64>() / runs.len() as f64;
        let least = runs.iter().copied().fold(100.0, f64::min);
        let most = runs.iter().copied().fold(0.0, f64::max);
        println!("{name:56} {mean:6.1} {least:6.1} {most:6.1}");
    }
    Ok(())
}
