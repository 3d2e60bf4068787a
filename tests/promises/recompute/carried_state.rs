//! A recurrent model whose hidden state is carried over from step to step.

use std::panic::{AssertUnwindSafe, catch_unwind};

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::momentum::MomentumConfig;
use burn::optim::{GradientsParams, Optimizer, SgdConfig};
use burn::tensor::Tensor;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn_gradient_release::{Recompute, WithGradientRelease};

use crate::harness::run::{RATE, ordinary_step};
use crate::harness::weights::{load, save};
use crate::harness::{Plain, Release, Weights, noise};

type P = Plain;
type R = Release;

const WIDTH: usize = 4;
const WINDOW: usize = 6;
const STEPS: u64 = 5;

#[derive(Module, Debug)]
struct Model<B: Backend> {
    input: Linear<B>,
    hidden: Linear<B>,
}

impl<B: AutodiffBackend> Model<B> {
    fn new() -> Self {
        let layer = || LinearConfig::new(WIDTH, WIDTH).init(&Default::default());
        Self {
            input: layer(),
            hidden: layer(),
        }
    }

    /// The loss over a window, and the state after it.
    fn loss(&self, step: u64, mut state: Tensor<B, 2>) -> (Tensor<B, 1>, Tensor<B, 2>) {
        let mut losses = Vec::new();
        for time in 0..WINDOW as u64 {
            let x = noise::<B, 2>(step * 100 + time, [16, WIDTH], &Default::default());
            state = (self.input.forward(x) + self.hidden.forward(state)).tanh();
            losses.push(state.clone().square().mean());
        }
        (Tensor::cat(losses, 0).sum(), state)
    }
}

fn first_state<B: Backend>() -> Tensor<B, 2> {
    Tensor::zeros([16, WIDTH], &Default::default())
}

/// Plain Burn's graph is gone after a backward pass: one that comes to the state carried over ends
/// there, without a word.
fn plain(bytes: &[u8]) -> Vec<Weights> {
    let mut model = load::<P, _>(Model::new(), bytes, &Default::default());
    let recipe = SgdConfig::new().with_momentum(Some(MomentumConfig::new()));
    let mut optim = recipe.init();
    let mut state = first_state();
    let steps = (0..STEPS).map(|step| {
        let (loss, next) = model.loss(step, state.clone());
        state = next;
        model = ordinary_step(RATE, model.clone(), &mut optim, loss);
        Weights::of::<P, _>(&model)
    });
    steps.collect()
}

fn release(bytes: &[u8], recompute: Recompute, is_detached: bool) -> Vec<Weights> {
    let mut model = load::<R, _>(Model::new(), bytes, &Default::default());
    let recipe = SgdConfig::new().with_momentum(Some(MomentumConfig::new()));
    let optim = recipe.init::<R, Model<R>>().with_gradient_release();
    let mut optim = optim.with_recompute(recompute);
    let mut state = first_state();
    let mut weights = Vec::new();
    for step in 0..STEPS {
        model = optim.arm(RATE, model);
        let (loss, next) = model.loss(step, state);
        let grads = GradientsParams::from_grads(loss.backward(), &model);
        model = optim.step(RATE, model, grads);
        state = if is_detached { next.detach() } else { next };
        weights.push(Weights::of::<R, _>(&model));
    }
    weights
}

fn start() -> Vec<u8> {
    save::<P, _>(Model::<P>::new())
}

#[track_caller]
fn assert_same(given: &[Weights], expected: &[Weights]) {
    for (step, (given, expected)) in given.iter().zip(expected).enumerate() {
        given.assert_same(expected, format!("step {step}"));
    }
}

#[test]
fn a_state_that_is_detached() {
    let bytes = start();
    let expected = plain(&bytes);
    for recompute in [
        Recompute::None,
        Recompute::Automatic,
        Recompute::Budget(1 << 11),
    ] {
        assert_same(&release(&bytes, recompute, true), &expected);
    }
}

#[test]
fn a_state_that_is_not_detached_without_recomputing() {
    let bytes = start();
    let expected = plain(&bytes);
    assert_same(&release(&bytes, Recompute::None, false), &expected);
}

/// The graph below the state can be computed again no more, and what of it a pass would still come
/// to depends on the cuts.
#[test]
fn a_state_that_is_not_detached_is_refused_in_words_that_help() {
    let bytes = start();
    let refused = catch_unwind(AssertUnwindSafe(|| {
        release(&bytes, Recompute::Automatic, false)
    }));
    let panic = refused.expect_err("it is refused");
    let text = panic.downcast_ref::<&'static str>().expect("a text");
    assert!(text.contains("`detach`"), "{text}");
}
