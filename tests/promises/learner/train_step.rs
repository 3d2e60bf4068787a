//! `TrainStep::step`, in all the ways it can be written: it works, or it is refused in one
//! sentence.

use burn::module::{AutodiffModule, Module, list_param_ids};
use burn::optim::{AdamConfig, GradientsAccumulator, GradientsParams};
use burn::tensor::Tensor;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::train::{Learner, TrainOutput, TrainStep};

use super::{rates, refusal, unlogged};
use crate::harness::learner::{
    Batch, LossOutput, Mode, Released, Run, Stock, Task, Training, inference_step, launch, task,
};
use crate::harness::models::{Regression, RegressionModel, Scenario, Size};
use crate::harness::run::Start;
use crate::harness::{Recipe, noise};

/// How the training step gets its gradients.
#[derive(Clone, Copy, Debug, Default)]
enum Step {
    /// The step of Burn's book.
    #[default]
    Default,
    /// Two losses of two batches, added up.
    Sum,
    /// A backward for the first layer, and another for the second.
    Disjoint,
    /// Two backward passes through all layers.
    Twice,
    /// No gradients are returned, as for a batch that is to be left out.
    ThrowAway,
    /// The gradients of the first layer only, as for freezing by hand.
    Partly,
    /// Every second batch is left out.
    EverySecond,
    /// A forward pass for a number to log, without backward.
    TwoForwards,
    /// Forward through a copy of the model.
    Copy,
    /// Gradients collected for a copy of the model.
    GradsOfCopy,
    /// Forward and backward through a fork of the model.
    Fork,
    /// Forward through the model without autodiff first, as for a teacher.
    Valid,
    /// Backward on a thread of its own.
    Thread,
}

/// A regression with a training step of its own.
#[derive(Module, Debug)]
struct SteppingModel<B: Backend> {
    inner: RegressionModel<B>,
    #[module(skip)]
    how: Step,
}

impl<B: Backend> SteppingModel<B> {
    fn loss(&self, size: Size, step: u64) -> Tensor<B, 1> {
        self.inner.loss(size, step)
    }

    /// The loss of one layer alone.
    fn layer_loss(&self, layer: usize, step: u64) -> Tensor<B, 1> {
        let x = noise::<B, 2>(step, [4, 8], &B::Device::default());
        self.inner.layers[layer].forward(x).square().mean()
    }
}

impl<B: AutodiffBackend> SteppingModel<B> {
    fn grads(&self, loss: &Tensor<B, 1>) -> GradientsParams {
        GradientsParams::from_grads(loss.backward(), self)
    }

    /// The gradients of two losses, as a user would merge them.
    fn merged(&self, losses: [&Tensor<B, 1>; 2]) -> GradientsParams {
        let mut accumulator = GradientsAccumulator::new();
        for loss in losses {
            accumulator.accumulate(self, self.grads(loss));
        }
        accumulator.grads()
    }
}

impl<B: AutodiffBackend> TrainStep for SteppingModel<B> {
    type Input = Batch;
    type Output = LossOutput<B>;

    fn step(&self, batch: Batch) -> TrainOutput<LossOutput<B>> {
        batch.note(self);
        let Batch { seed, size, .. } = batch;
        let (loss, grads) = match self.how {
            Step::Default => {
                let loss = self.loss(size, seed);
                (loss.clone(), self.grads(&loss))
            }
            Step::Sum => {
                let loss = self.loss(size, seed) + self.loss(size, seed + 7);
                (loss.clone(), self.grads(&loss))
            }
            Step::Disjoint => {
                let losses = [self.layer_loss(0, seed), self.layer_loss(1, seed)];
                let grads = self.merged(losses.each_ref());
                let [first, second] = losses;
                (first + second, grads)
            }
            Step::Twice => {
                let losses = [self.loss(size, seed), self.loss(size, seed + 7)];
                let grads = self.merged(losses.each_ref());
                let [first, second] = losses;
                (first + second, grads)
            }
            Step::ThrowAway => {
                let loss = self.loss(size, seed);
                let _ = loss.backward();
                (loss, GradientsParams::new())
            }
            Step::Partly => {
                let loss = self.loss(size, seed);
                let first = list_param_ids(&self.inner.layers[0]);
                let grads = GradientsParams::from_params(&mut loss.backward(), self, &first);
                (loss, grads)
            }
            Step::EverySecond => {
                let loss = self.loss(size, seed);
                let grads = match seed % 4 {
                    0 => GradientsParams::new(),
                    _ => self.grads(&loss),
                };
                (loss, grads)
            }
            Step::TwoForwards => {
                let _logged = self.loss(size, seed + 7);
                let loss = self.loss(size, seed);
                (loss.clone(), self.grads(&loss))
            }
            Step::Copy => {
                let copy = self.clone();
                let loss = copy.loss(size, seed);
                drop(copy);
                (loss.clone(), self.grads(&loss))
            }
            Step::GradsOfCopy => {
                let copy = self.clone();
                let loss = self.loss(size, seed);
                (loss.clone(), copy.grads(&loss))
            }
            Step::Fork => {
                let fork = self.clone().fork(&B::Device::default());
                let loss = fork.loss(size, seed);
                (loss.clone(), fork.grads(&loss))
            }
            Step::Valid => {
                let teacher = self.valid().loss(size, seed + 7);
                let teacher = Tensor::from_inner(teacher);
                let loss = self.loss(size, seed) * teacher;
                (loss.clone(), self.grads(&loss))
            }
            Step::Thread => std::thread::scope(|scope| {
                let step = scope.spawn(|| {
                    let loss = self.loss(size, seed);
                    (loss.clone(), self.grads(&loss))
                });
                step.join().expect("no panic")
            }),
        };
        let item = LossOutput(loss.detach());
        TrainOutput { grads, item }
    }
}

inference_step!(SteppingModel);

struct Stepping;

impl Scenario for Stepping {
    type Model<B: AutodiffBackend> = SteppingModel<B>;

    fn init<B: AutodiffBackend>(size: Size, device: &B::Device) -> SteppingModel<B> {
        SteppingModel {
            inner: Regression::init(size, device),
            how: Step::default(),
        }
    }

    fn loss<B: AutodiffBackend>(model: &SteppingModel<B>, size: Size, step: u64) -> Tensor<B, 1> {
        model.loss(size, step)
    }
}

task!(Stepping, SteppingModel);

fn run<D: Mode>(start: &Start, how: Step, training: &Training) -> Run {
    let model = SteppingModel {
        how,
        ..<Stepping as Task>::model::<D::B>(start)
    };
    let optim = D::optim(AdamConfig::new().make());
    let strategy = D::strategy::<Stepping, _, _>(training.monitor.clone());
    launch(Learner::new(model, optim, rates()), strategy, training)
}

/// The same weights as stock, with and without accumulation. Returns what `ReleasedMetric` said.
#[track_caller]
fn same(how: Step) -> Vec<String> {
    let start = Start::new::<Stepping>(Size::Small);
    let mut said = Vec::new();
    for accumulation in [Some(3), None] {
        let training = || Training {
            accumulation,
            ..Training::new()
        };
        let stock = run::<Stock>(&start, how, &training());
        let release = run::<Released>(&start, how, &training());
        release.assert_same(&stock, format!("{how:?}, accumulation {accumulation:?}"));
        let shown = release.renderer.train("Released");
        said = shown.into_iter().map(|shown| shown.text).collect();
    }
    said
}

/// The text with which release refuses what stock takes.
#[track_caller]
fn refused(how: Step) -> String {
    let start = Start::new::<Stepping>(Size::Small);
    let stock = run::<Stock>(&start, how, &Training::new());
    assert!(stock.last.finite(), "stock takes it");
    refusal(|| run::<Released>(&start, how, &unlogged()))
}

#[track_caller]
fn assert_all(said: &[String], end: &str) {
    assert!(!said.is_empty());
    for said in said {
        assert!(said.ends_with(end), "{said}");
    }
}

#[test]
fn as_in_the_book() {
    assert_all(&same(Step::Default), "(6 of 6 parameters)");
}

#[test]
fn the_sum_of_two_losses() {
    same(Step::Sum);
}

#[test]
fn two_backward_passes_over_disjoint_parts() {
    // Each layer is at the bottom of its own tape.
    let said = same(Step::Disjoint);
    assert!(
        said.iter().all(|said| !said.contains("not armed")),
        "{said:?}"
    );
}

#[test]
fn two_backward_passes_over_the_same_parameters_are_refused() {
    let said = refused(Step::Twice);
    assert!(
        said.contains("was stepped inside an earlier backward of this optimizer step"),
        "{said}"
    );
    assert!(
        said.contains("run one backward per step on the sum of the losses"),
        "{said}"
    );
}

#[test]
fn gradients_thrown_away_are_refused() {
    let said = refused(Step::ThrowAway);
    assert!(said.contains("its gradient was never asked for"), "{said}");
    assert!(said.contains("`GradientsParams::from_grads`"), "{said}");
}

#[test]
fn gradients_of_some_parameters_only_are_refused() {
    let said = refused(Step::Partly);
    assert!(said.contains("its gradient was never asked for"), "{said}");
    assert!(said.contains("arm only what is to be stepped"), "{said}");
}

#[test]
fn a_batch_without_backward() {
    same(Step::EverySecond);
}

#[test]
fn a_second_forward_pass() {
    same(Step::TwoForwards);
}

#[test]
fn forward_through_a_copy() {
    same(Step::Copy);
}

#[test]
fn gradients_collected_for_a_copy() {
    assert_all(&same(Step::GradsOfCopy), "(6 of 6 parameters)");
}

/// The fork is a model of its own: its gradients are ordinary ones, and so is the step.
#[test]
fn through_a_fork() {
    assert_all(&same(Step::Fork), "(0 of 6 parameters, 6 not armed)");
}

#[test]
fn with_a_teacher_without_autodiff() {
    assert_all(&same(Step::Valid), "(6 of 6 parameters)");
}

#[test]
fn backward_on_another_thread() {
    assert_all(&same(Step::Thread), "(6 of 6 parameters)");
}
