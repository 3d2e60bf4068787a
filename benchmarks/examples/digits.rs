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
use std::sync::Arc;
use vit_0_21::config::{Preset, WEIGHT_DECAY};
use vit_0_21::data::{Batch, Dataset, ImageBatcher, ImageSize, Images, Source};
use vit_0_21::model::Vit;
use vit_0_21::train::scheduler;

type B = GradientRelease<Autodiff<Flex>>;
type Optim<O> = OptimizerAdaptor<O, Vit<B>, B>;

const BATCH_SIZE: usize = 32;
const RATE: f64 = 1.5e-3;
const MICRO_BATCHES: usize = 4;

/// What is trained, but for the optimizer.
#[derive(Clone)]
struct Training {
    data: Arc<Dataset>,
    epochs: usize,
    seed: u64,
    dtype: DType,
    micro_batches: usize,
    sums_gradients: bool,
}

impl Training {
    fn model(&self) -> Vit<B> {
        let device = Default::default();
        B::seed(&device, self.seed);
        let Dataset {
            size,
            channels,
            classes,
            ..
        } = *self.data;
        let model = Vit::<B>::new(&Preset::Tiny.config(size, channels, classes), &device);
        // Burn draws parameters on first access: access them now, in the order of the model.
        let _ = model.num_params();
        match self.dtype {
            DType::F32 => model,
            dtype => model.map(&mut Cast(dtype)),
        }
    }

    /// Validation accuracy after training.
    fn accuracy<O: SimpleOptimizer<Flex> + 'static>(&self, optim: O) -> Result<f64> {
        let mut optim = Optim::from(optim).with_gradient_release();
        let mut accumulator = ReleaseAccumulator::new();
        let mut model = self.model();
        let steps = self.epochs * self.data.train.len().div_ceil(BATCH_SIZE);
        let mut scheduler = scheduler(RATE, steps)?;
        let loader = DataLoaderBuilder::<B, _, _>::new(ImageBatcher::new(&self.data))
            .batch_size(BATCH_SIZE / self.micro_batches)
            .shuffle(self.seed)
            .build(Images(self.data.train.clone()));
        let mut rate = scheduler.step();
        let mut place = 0;
        for _ in 0..self.epochs {
            for batch in loader.iter() {
                place += 1;
                let is_last = place % self.micro_batches == 0;
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
        let loader = DataLoaderBuilder::<Flex, _, Batch<Flex>>::new(ImageBatcher::new(&self.data))
            .batch_size(BATCH_SIZE)
            .build(Images(self.data.validation.clone()));
        let right = |batch: Batch<Flex>| -> i64 {
            let scores = model.forward(batch.images.cast(self.dtype));
            let found = scores.argmax(1).flatten::<1>(0, 1);
            found.equal(batch.labels).int().sum().into_scalar().elem()
        };
        loader.iter().map(right).sum::<i64>() as f64 / self.data.validation.len() as f64
    }
}

struct Cast(DType);

impl ModuleMapper<B> for Cast {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        param.map(|weight| Tensor::from_inner(weight.inner().cast(self.0)).require_grad())
    }
}

fn main() -> Result<()> {
    let mut arguments = std::env::args()
        .skip(1)
        .map(|number| number.parse::<usize>());
    let epochs = arguments.next().transpose()?.unwrap_or(20);
    let seeds = arguments.next().transpose()?.unwrap_or(5);
    let first = arguments.next().transpose()?.unwrap_or(1);
    let size = ImageSize {
        requested: None,
        patch_size: Preset::Tiny.patch_size(),
    };
    let data = Arc::new(Dataset::load(&Source::Digits, size)?);
    let config = || AdamWConfig::new().with_weight_decay(WEIGHT_DECAY as f32);
    let adamw = || config().in_one_pass();
    let embeddings = Vec::<Embedding<Flex>>::new();

    let mut runs: Vec<(&str, Vec<f64>)> = Vec::new();
    for seed in (first..first + seeds).map(|seed| seed as u64) {
        let exact = Training {
            data: data.clone(),
            epochs,
            seed,
            dtype: DType::F32,
            micro_batches: 1,
            sums_gradients: false,
        };
        let bf16 = Training {
            dtype: DType::BF16,
            ..exact.clone()
        };
        let in_moments = Training {
            micro_batches: MICRO_BATCHES,
            ..exact.clone()
        };
        let in_sums = Training {
            sums_gradients: true,
            ..in_moments.clone()
        };
        let accumulating = |decay| adamw().accumulating(MICRO_BATCHES, decay);
        let accuracies = [
            ("fp32", exact.accuracy(adamw())?),
            (
                "moments in 8 bits",
                exact.accuracy(adamw().with_8_bit_moments(&embeddings))?,
            ),
            (
                "bf16, stochastic rounding",
                bf16.accuracy(Bf16Weights::new(adamw(), Stochastic { seed }))?,
            ),
            (
                "bf16, master weights",
                bf16.accuracy(Bf16Weights::new(adamw(), MasterWeights))?,
            ),
            (
                "bf16, rounded to the nearest",
                bf16.accuracy(config().build())?,
            ),
            ("4 micro-batches, in sums", in_sums.accuracy(adamw())?),
            (
                "4 micro-batches, in the moments, decay each step",
                in_moments.accuracy(accumulating(MomentDecay::EachStep)?)?,
            ),
            (
                "4 micro-batches, in the moments, decay each micro-batch",
                in_moments.accuracy(accumulating(MomentDecay::EachMicroBatch)?)?,
            ),
        ];
        for (place, (name, accuracy)) in accuracies.into_iter().enumerate() {
            println!("seed {seed}, {name}: {:.1} %", 100.0 * accuracy);
            if runs.len() == place {
                runs.push((name, Vec::new()));
            }
            runs[place].1.push(accuracy);
        }
    }
    println!("\n{:56} {:>6} {:>6} {:>6}", "%", "mean", "least", "most");
    for (name, accuracies) in runs {
        let mean = accuracies.iter().sum::<f64>() / accuracies.len() as f64;
        let least = accuracies.iter().copied().fold(1.0, f64::min);
        let most = accuracies.iter().copied().fold(0.0, f64::max);
        println!(
            "{name:56} {:6.1} {:6.1} {:6.1}",
            100.0 * mean,
            100.0 * least,
            100.0 * most
        );
    }
    Ok(())
}
