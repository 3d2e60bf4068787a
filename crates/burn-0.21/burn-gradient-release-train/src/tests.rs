//! Learners of several replicas, which are threads here.

use std::{
    cell::Cell,
    fs,
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    sync::Arc,
};

use burn::{
    backend::{Autodiff, Flex, flex::FlexDevice},
    data::{
        dataloader::{DataLoader, DataLoaderBuilder, batcher::Batcher},
        dataset::InMemDataset,
    },
    module::{AutodiffModule, Module},
    nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig},
    optim::{AdamConfig, GradientsParams, Optimizer},
    record::DefaultRecorder,
    tensor::{Tensor, TensorData, backend::AutodiffBackend, backend::Backend},
    train::{
        InferenceStep, Learner, RegressionOutput, SupervisedTraining, TrainOutput, TrainStep,
        checkpoint::KeepLastNCheckpoints, metric::LossMetric,
    },
};
use burn_gradient_release::{GradientRelease, WithGradientRelease};
use burn_gradient_release_data_parallel::{DataParallel, ShareBatcher};
use lean_replicas::Threads;

use crate::{GradientReleaseStrategy, log_apart, resume::AtomicFileRecorder};

type B = GradientRelease<Autodiff<Flex>>;

#[derive(Module, Debug)]
struct Line<B: Backend> {
    linear: Linear<B>,
    norm: BatchNorm<B>,
}

impl<B: Backend> Line<B> {
    fn regression(&self, [input, targets]: [Tensor<B, 2>; 2]) -> RegressionOutput<B> {
        let output = self.norm.forward(self.linear.forward(input));
        let loss = (output.clone() - targets.clone()).powi_scalar(2).mean();
        RegressionOutput::new(loss, output, targets)
    }
}

impl<B: AutodiffBackend> TrainStep for Line<B> {
    type Input = [Tensor<B, 2>; 2];
    type Output = RegressionOutput<B>;

    fn step(&self, batch: Self::Input) -> TrainOutput<RegressionOutput<B>> {
        let output = self.regression(batch);
        TrainOutput::new(self, output.loss.backward(), output)
    }

    fn optimize<D, O>(self, optim: &mut O, rate: f64, grads: GradientsParams) -> Self
    where
        D: AutodiffBackend,
        O: Optimizer<Self, D>,
        Self: AutodiffModule<D>,
    {
        let mut model = optim.step(rate, self, grads);
        let step = STEP.get() + 1;
        STEP.set(step);
        if DRIFTS_IN.get() == Some(step) {
            let drift = |weight: Tensor<B, 2>| {
                Tensor::from_inner(weight.inner() * (1.0 + f32::EPSILON)).require_grad()
            };
            model.linear.weight = model.linear.weight.map(drift);
        }
        model
    }
}

thread_local! {
    /// The number of optimizer steps of a replica.
    static STEP: Cell<usize> = const { Cell::new(0) };
    /// The step of a replica after which its weight has another last bit.
    static DRIFTS_IN: Cell<Option<usize>> = const { Cell::new(None) };
}

impl<B: Backend> InferenceStep for Line<B> {
    type Input = [Tensor<B, 2>; 2];
    type Output = RegressionOutput<B>;

    fn step(&self, batch: Self::Input) -> RegressionOutput<B> {
        self.regression(batch)
    }
}

/// Twice a number is to be learned.
struct Doubles;

impl<B: Backend> Batcher<B, f32, [Tensor<B, 2>; 2]> for Doubles {
    fn batch(&self, numbers: Vec<f32>, device: &B::Device) -> [Tensor<B, 2>; 2] {
        let shape = [numbers.len(), 1];
        let input = Tensor::from_data(TensorData::new(numbers, shape), device);
        [input.clone(), input * 2]
    }
}

fn loader<B: Backend>(
    batcher: impl Batcher<B, f32, [Tensor<B, 2>; 2]> + 'static,
) -> Arc<dyn DataLoader<B, [Tensor<B, 2>; 2]>> {
    let numbers = (0..16).map(|number| number as f32).collect();
    let loader = DataLoaderBuilder::new(batcher).batch_size(4);
    loader.build(InMemDataset::new(numbers))
}

/// Three epochs of four iterations in this folder. Returns the running mean.
fn train(folder: &Path, parallel: &DataParallel, accumulated: usize) -> f32 {
    let replicas = parallel.replicas();
    let model = Line {
        linear: LinearConfig::new(1, 1).init::<B>(&FlexDevice),
        norm: BatchNormConfig::new(1).init(&FlexDevice),
    };
    let model = parallel.broadcast(model).unwrap();
    let train = loader(ShareBatcher::new(Doubles, replicas));
    let strategy = GradientReleaseStrategy::new(FlexDevice).with_replicas(parallel.clone());
    let training = SupervisedTraining::new(folder, train, loader(Doubles))
        .metrics((LossMetric::new(),))
        .with_file_checkpointer(AtomicFileRecorder::new(DefaultRecorder::new()))
        .with_checkpointing_strategy(KeepLastNCheckpoints::new(1))
        .num_epochs(3)
        .grads_accumulation(accumulated)
        .with_training_strategy(strategy.into());
    let optim = AdamConfig::new().init().with_gradient_release();
    let training = log_apart(training, folder, replicas);
    let result = training.launch(Learner::new(model, optim, 1e-2));
    result.model.norm.running_mean.value().into_scalar()
}

/// Message of a learner's panic.
fn refusal<T: std::fmt::Debug>(train: impl FnOnce() -> T) -> String {
    let panic = catch_unwind(AssertUnwindSafe(train)).unwrap_err();
    panic.downcast_ref::<String>().cloned().unwrap_or_default()
}

/// The losses that a process has logged for an epoch.
fn losses(folder: &Path, epoch: usize) -> usize {
    let file = folder.join(format!("train/epoch-{epoch}/Loss.log"));
    fs::read_to_string(file).unwrap().lines().count()
}

#[test]
fn processes_log_apart() {
    let home = tempfile::tempdir().unwrap();
    let means = Threads::run(2, |replicas| {
        let parallel = DataParallel::new(replicas).with_sharded_optimizer();
        train(home.path(), &parallel, 1)
    });
    // Of the first replica's shares.
    assert_eq!(means[0], means[1]);
    for folder in [home.path(), &home.path().join("rank-1")] {
        for epoch in 1..=3 {
            assert_eq!(
                losses(folder, epoch),
                4,
                "{}, epoch {epoch}",
                folder.display()
            );
        }
    }
    assert!(home.path().join("checkpoint/optim-3.mpk").exists());
    assert!(!home.path().join("rank-1/checkpoint").exists());
}

#[test]
fn an_epoch_without_a_step_is_refused() {
    let home = tempfile::tempdir().unwrap();
    let refused = Threads::run(1, |replicas| {
        let parallel = DataParallel::new(replicas);
        refusal(|| train(home.path(), &parallel, 5))
    });
    let text = "no step was taken in epoch 1: its 4 iterations are fewer than the 5";
    assert!(refused[0].contains(text), "{refused:?}");
}

/// In the last step of the second epoch: no later one could find it.
#[test]
fn weights_that_drift_are_found_before_the_checkpoint() {
    let home = tempfile::tempdir().unwrap();
    let refused = Threads::run(3, |replicas| {
        if replicas.rank() == 1 {
            DRIFTS_IN.set(Some(8));
        }
        let parallel = DataParallel::new(replicas);
        refusal(|| train(home.path(), &parallel, 1))
    });
    for (rank, text) in refused.iter().enumerate() {
        let who = format!("gradient release: rank {rank} of 3: the replicas do not do the same: ");
        assert!(text.starts_with(&who), "{text}");
        for ranks in ["0, 2", "1"] {
            let said = format!("rank {ranks}: parameter linear.weight");
            assert!(text.contains(&said), "{text}");
        }
    }
    let saved = |epoch| home.path().join(format!("checkpoint/model-{epoch}.mpk"));
    assert!(saved(1).exists() && !saved(2).exists());
}
