//! The saving of gradient release, with the Learner around it.

use std::sync::{Arc, Mutex};

use burn::data::dataloader::batcher::Batcher;
use burn::data::dataloader::{DataLoader, DataLoaderBuilder};
use burn::data::dataset::InMemDataset;
use burn::train::{
    InferenceStep, Learner, RegressionOutput, SupervisedTraining, TrainOutput, TrainStep,
};
use burn_lean::train::metric::ReleasedMetric;
use burn_lean::train::{GradientReleaseStrategy, StepMonitor, release_learner};

use crate::harness::prelude::*;
use crate::harness::zero_linear;
use crate::memory::HEAP;

const WIDTH: usize = 160;
const LAYERS: usize = 24;
/// In bytes.
const PARAMS: usize = 4 * LAYERS * (WIDTH * WIDTH + WIDTH);

#[derive(Module, Debug)]
struct Deep {
    layers: Vec<Linear>,
    /// The most bytes from the launch to the first forward pass, and from each to the next.
    #[module(skip)]
    log: Arc<Mutex<Vec<usize>>>,
}

impl Deep {
    fn new() -> Self {
        Self {
            layers: seeded(&flex(), |device| {
                (0..LAYERS)
                    .map(|_| zero_linear(WIDTH, WIDTH, device))
                    .collect()
            }),
            log: Arc::default(),
        }
    }

    fn output(&self, seed: usize) -> RegressionOutput {
        let x = numbers([1, WIDTH], seed, &flex());
        let forward = |x: Tensor<2>, layer: &Linear| x.clone() + relu(layer.forward(x)) * 0.1;
        let output = self.layers.iter().fold(x, forward);
        let loss = output.clone().square().mean();
        RegressionOutput::new(loss, output.clone(), output)
    }
}

impl TrainStep for Deep {
    type Input = usize;
    type Output = RegressionOutput;

    fn step(&self, seed: usize) -> TrainOutput<RegressionOutput> {
        self.log.lock().unwrap().push(HEAP.peak_usage());
        HEAP.reset_peak_usage();
        let item = self.output(seed);
        burn_lean::train::output(self, item.loss.clone(), item)
    }
}

impl InferenceStep for Deep {
    type Input = usize;
    type Output = RegressionOutput;

    fn step(&self, seed: usize) -> RegressionOutput {
        self.output(seed)
    }
}

struct First;

impl Batcher<usize, usize> for First {
    fn batch(&self, items: Vec<usize>, _: &Device) -> usize {
        items[0]
    }
}

fn loader(batches: usize) -> Arc<dyn DataLoader<usize>> {
    let items = (1..=batches).collect();
    DataLoaderBuilder::new(First)
        .batch_size(1)
        .build(InMemDataset::new(items))
}

/// The weights after two epochs of six steps, the peak of the launch, and the highest of all steps
/// but the last one, in units of the parameters' bytes.
fn train(
    optim: fn() -> ModuleOptimizer,
    is_released: bool,
    window: Option<usize>,
) -> (Bits, f64, f64) {
    let before = HEAP.current_usage();
    let model = Deep::new();
    let log = model.log.clone();
    let folder = tempfile::tempdir().unwrap();
    let monitor = StepMonitor::new();
    let mut training = SupervisedTraining::new(folder.path(), loader(6), loader(1))
        .with_application_logger(None)
        .metric_train_numeric(ReleasedMetric::new(&monitor))
        .num_epochs(2);
    if let Some(window) = window {
        training = training.grads_accumulation(window);
    }
    HEAP.reset_peak_usage();
    let result = if is_released {
        let strategy = GradientReleaseStrategy::new(flex()).with_monitor(monitor);
        training
            .with_training_strategy(strategy.into())
            .launch(release_learner(model, optim(), 0.01))
    } else {
        let strategy = burn::train::ExecutionStrategy::single(flex());
        training
            .with_training_strategy(strategy.into())
            .launch(Learner::new(model, optim(), 0.01))
    };
    let log = log.lock().unwrap();
    let in_params = |peak: &usize| (peak - before) as f64 / PARAMS as f64;
    let steps = log[1..].iter().max().unwrap();
    (bits(&result.model), in_params(&log[0]), in_params(steps))
}

/// Of parameters and states nothing exists twice, and of the gradients one at a time. With windows
/// there is one set of gradients, where Burn holds two.
#[test]
fn a_set_of_gradients_is_saved() {
    // The most that a released training takes, and the least by which a stock one takes more.
    type MakeOptimizer = fn() -> ModuleOptimizer;
    let rows: [(&str, MakeOptimizer, Option<usize>, f64, f64); 3] = [
        ("AdamW", adamw, None, 3.4, 0.8),
        ("momentum", momentum, None, 2.4, 0.8),
        ("AdamW in windows", adamw, Some(3), 4.25, 0.6),
    ];
    alone(|| {
        for (what, optim, window, most, saved) in rows {
            let (expected, _, stock) = train(optim, false, window);
            let (found, launch, released) = train(optim, true, window);
            assert_eq!(found, expected, "{what}");
            // The weights.
            assert!(launch < 1.25, "{what}: {launch:.2} at launch");
            println!("{what}: peak in P: stock {stock:.2}, released {released:.2}");
            assert!(released < most, "{what}: {released:.2}");
            let is_saved = stock > released + saved;
            assert!(is_saved, "{what}: stock {stock:.2}, released {released:.2}");
        }
    });
}
