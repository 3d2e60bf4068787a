//! `grads_accumulation`: Burn's weights, and the memory of one set of gradients.

use std::sync::Arc;

use burn::grad_clipping::GradientClippingConfig;
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::momentum::MomentumConfig;
use burn::optim::{
    AdamConfig, AdamWConfig, GradientsAccumulator, GradientsParams, Optimizer, SgdConfig,
};
use burn::tensor::Tensor;
use burn::tensor::activation::relu;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn_gradient_release::{ReleaseBackend, WithGradientRelease};

use super::rates;
use crate::harness::learner::{
    Bin, Released, Stock, Task, Training, inference_step, task, train, train_step,
};
use crate::harness::models::{Cnn, Regression, Scenario, Size, Tied};
use crate::harness::run::{RATE, Start, outcomes};
use crate::harness::{Hooked, Plain, Recipe, Release, Weights, noise};

/// Batches in an epoch: 1 is left over with windows of 2, 3 with windows of 4.
const BATCHES: usize = 7;

/// Stock and release, for windows of one, two and four micro-batches.
fn same<T: Task + Scenario>(recipe: &impl Recipe) {
    let start = Start::new::<T>(Size::Small);
    // Burn takes a window of none for one of one.
    for window in [0, 1, 2, 4] {
        let training = || Training {
            batches: BATCHES,
            accumulation: Some(window),
            ..Training::new()
        };
        let stock = train::<Stock, T, _, _, _>(&start, recipe, rates(), &training());
        let release = train::<Released, T, _, _, _>(&start, recipe, rates(), &training());
        release.assert_same(&stock, format!("windows of {window}"));
    }
}

/// Once per parameter and window; what is left of a window at the end of an epoch is dropped.
#[test]
fn the_optimizer_is_called_once_per_window() {
    let start = Start::new::<Regression>(Size::Small);
    for window in [1, 2, 4] {
        let training = || Training {
            batches: BATCHES,
            accumulation: Some(window),
            ..Training::new()
        };
        let (stock, release) = (Hooked::new(), Hooked::new());
        train::<Stock, Regression, _, _, _>(&start, &stock, rates(), &training());
        train::<Released, Regression, _, _, _>(&start, &release, rates(), &training());
        assert_eq!(stock.calls(), 6 * 3 * (BATCHES / window));
        assert_eq!(release.calls(), stock.calls());
    }
}

#[test]
fn sgd_with_momentum() {
    same::<Regression>(&SgdConfig::new().with_momentum(Some(MomentumConfig::new())));
}

#[test]
fn adam_clipping_by_norm() {
    let clipping = GradientClippingConfig::Norm(0.01);
    same::<Regression>(&AdamConfig::new().with_grad_clipping(Some(clipping)));
}

#[test]
fn adamw() {
    same::<Regression>(&AdamWConfig::new().with_weight_decay(0.1));
}

/// A parameter that is stepped late.
#[test]
fn tied_weights() {
    same::<Tied>(&AdamConfig::new());
}

/// Running statistics move with every micro-batch, stepped or not.
#[test]
fn batch_norm() {
    same::<Cnn>(&AdamConfig::new());
}

/// In the middle of a window: its gradients are dropped, and the weights are those of the step
/// before.
#[test]
fn interrupted() {
    let start = Start::new::<Regression>(Size::Small);
    let adam = AdamConfig::new();
    let training = || {
        let mut training = Training {
            accumulation: Some(3),
            ..Training::new()
        };
        let interrupter = training.interrupter.clone();
        training.on_step = Arc::new(move |step| {
            if step == 4 {
                interrupter.stop(None);
            }
        });
        training
    };
    let stock = train::<Stock, Regression, _, _, _>(&start, &adam, rates(), &training());
    let release = train::<Released, Regression, _, _, _>(&start, &adam, rates(), &training());
    assert_eq!(stock.found.len(), 5);
    assert!(stock.last.same(&stock.found[4]));
    release.assert_same(&stock, "interrupted");
}

#[test]
fn resumed() {
    let start = Start::new::<Regression>(Size::Small);
    let adam = AdamConfig::new();
    let training = Training {
        accumulation: Some(4),
        ..Training::new().saving_with(Bin::default())
    };
    let until = |epochs: usize| Training {
        epochs,
        checkpoint: (epochs > 1).then(|| epochs - 1),
        ..training.clone()
    };
    let whole = Training {
        accumulation: Some(4),
        ..Training::new()
    };
    let whole = train::<Stock, Regression, _, _, _>(&start, &adam, rates(), &whole);
    train::<Released, Regression, _, _, _>(&start, &adam, rates(), &until(1));
    train::<Stock, Regression, _, _, _>(&start, &adam, rates(), &until(2));
    let last = train::<Released, Regression, _, _, _>(&start, &adam, rates(), &until(3));
    assert_eq!(last.difference_from(&whole, 14), None);
}

/// A trunk, and heads that take turns: most micro-batches give most heads no gradient.
#[derive(Module, Debug)]
struct TurnsModel<B: Backend> {
    trunk: Linear<B>,
    heads: Vec<Linear<B>>,
}

impl<B: Backend> TurnsModel<B> {
    /// Uses one head alone.
    fn loss(&self, _: Size, step: u64) -> Tensor<B, 1> {
        let head = &self.heads[step as usize % self.heads.len()];
        let x = noise::<B, 2>(step, [4, 8], &B::Device::default());
        head.forward(relu(self.trunk.forward(x))).square().mean()
    }
}

struct Turns;

impl Scenario for Turns {
    type Model<B: AutodiffBackend> = TurnsModel<B>;

    fn init<B: AutodiffBackend>(_: Size, device: &B::Device) -> TurnsModel<B> {
        let linear = || LinearConfig::new(8, 8).init(device);
        TurnsModel {
            trunk: linear(),
            heads: vec![linear(), linear(), linear()],
        }
    }

    fn loss<B: AutodiffBackend>(model: &TurnsModel<B>, size: Size, step: u64) -> Tensor<B, 1> {
        model.loss(size, step)
    }
}

train_step!(TurnsModel);
inference_step!(TurnsModel);
task!(Turns, TurnsModel);

#[test]
fn gradients_of_earlier_micro_batches_only() {
    same::<Turns>(&AdamConfig::new());
}

/// The seed of each micro-batch of a step.
fn seeds(step: u64, window: u64) -> impl Iterator<Item = u64> {
    step * window..(step + 1) * window
}

/// Burn's own loop with its accumulator: the weights after each step.
fn by_hand<S: Scenario, B: AutodiffBackend>(
    start: &Start,
    recipe: &impl Recipe,
    window: u64,
) -> Vec<Weights> {
    let mut model = start.model::<S, B>();
    let mut optim = recipe.make::<B, S::Model<B>>();
    let mut accumulator = GradientsAccumulator::new();
    (0..5)
        .map(|step| {
            for seed in seeds(step, window) {
                let loss = S::loss::<B>(&model, Size::Small, seed);
                let grads = GradientsParams::from_grads(loss.backward(), &model);
                accumulator.accumulate(&model, grads);
            }
            model = optim.step(RATE, model.clone(), accumulator.grads());
            Weights::of::<B, _>(&model)
        })
        .collect()
}

/// The same but for the last micro-batch, which is armed: the weights and the outcomes of each
/// step.
fn by_hand_released<S: Scenario, B: ReleaseBackend>(
    start: &Start,
    recipe: &impl Recipe,
    window: u64,
) -> Vec<(Weights, [usize; 4])> {
    let mut model = start.model::<S, B>();
    let mut optim = recipe.make::<B, S::Model<B>>().with_gradient_release();
    let mut accumulator = GradientsAccumulator::new();
    (0..5)
        .map(|step| {
            let mut seeds: Vec<_> = seeds(step, window).collect();
            let last = seeds.pop().expect("a window has a last micro-batch");
            for seed in seeds {
                let loss = S::loss::<B>(&model, Size::Small, seed);
                let grads = GradientsParams::from_grads(loss.backward(), &model);
                accumulator.accumulate(&model, grads);
            }
            model = optim.arm_accumulated(RATE, model.clone(), accumulator.grads());
            let loss = S::loss::<B>(&model, Size::Small, last);
            let grads = GradientsParams::from_grads(loss.backward(), &model);
            assert!(grads.is_empty(), "released");
            model = optim.step(RATE, model.clone(), grads);
            let report = optim.last_step().expect("a step was taken");
            (Weights::of::<B, _>(&model), outcomes(&report))
        })
        .collect()
}

/// A loop that keeps Burn's accumulator has only its last micro-batch to change. (For
/// `ReleaseAccumulator` see [`accumulator`](crate::accumulator).)
#[test]
fn a_loop_with_burns_accumulator() {
    fn same<S: Scenario>(recipe: &impl Recipe, window: u64, expected: [usize; 4]) {
        let start = Start::new::<S>(Size::Small);
        let plain = by_hand::<S, Plain>(&start, recipe, window);
        let release = by_hand_released::<S, Release>(&start, recipe, window);
        for (step, (plain, (release, outcomes))) in plain.iter().zip(&release).enumerate() {
            release.assert_same(plain, format!("windows of {window}, step {step}"));
            assert_eq!(*outcomes, expected, "released, late, ordinary, unused");
        }
        plain[0].assert_moved(&plain[1], "the second step");
    }

    for window in [1, 2, 4] {
        same::<Regression>(&SgdConfig::new(), window, [6, 0, 0, 0]);
        same::<Regression>(&AdamConfig::new(), window, [6, 0, 0, 0]);
        same::<Tied>(&AdamWConfig::new(), window, [5, 0, 0, 0]);
    }
    // The trunk and the last head inside backward, the heads of earlier micro-batches in `step`.
    same::<Turns>(&AdamConfig::new(), 1, [4, 0, 0, 4]);
    same::<Turns>(&AdamConfig::new(), 2, [4, 0, 2, 2]);
    same::<Turns>(&AdamConfig::new(), 3, [4, 0, 4, 0]);
}
