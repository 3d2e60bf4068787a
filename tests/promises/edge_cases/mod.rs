//! Each thing that could go wrong, by name, one room per kind, on the backend of the module above.

mod changing_models;
mod contributions;
mod copies;
mod leaving;
mod misuse;
mod numbers;
mod owners;
mod parts;
mod rates;
mod threads;

use burn::optim::{Adam, AdamConfig, GradientsParams, Optimizer};
use burn::tensor::Tensor;
use burn::tensor::backend::AutodiffBackend;
use burn_gradient_release::{ReleaseOptimizer, WithGradientRelease};

use crate::harness::models::{Mlp, MlpModel, Scenario, Size};
use crate::harness::run::{self, RATE, Start, Trajectory};
use crate::harness::{Plain, Release, Weights, turn};

/// Where tensors live.
use super::Inner;

/// Plain Burn, the reference.
type P = Plain<Inner>;
/// With release.
type R = Release<Inner>;
/// The model of most of these tests.
type Model = MlpModel<R>;
/// And its optimizer.
type Optim = ReleaseOptimizer<Adam, Model, R>;

/// Parameters of [`Model`].
const PARAMETERS: usize = 6;

/// A model, its optimizer, and what plain Burn makes of the same in the same steps.
struct Bench {
    model: Model,
    optim: Optim,
    expected: Trajectory,
}

/// First weights of a small model, and this test's turn on the device.
fn start<S: Scenario>() -> Start {
    turn::take::<Inner>();
    Start::new::<S>(Size::Small)
}

fn bench(steps: u64) -> Bench {
    let start = start::<Mlp>();
    Bench {
        model: start.model::<Mlp, R>(),
        optim: AdamConfig::new().init().with_gradient_release(),
        expected: run::plain::<Mlp, _, P>(&start, &AdamConfig::new(), steps),
    }
}

/// The loss of the step.
fn loss<B: AutodiffBackend>(model: &MlpModel<B>, step: u64) -> Tensor<B, 1> {
    Mlp::loss::<B>(model, Size::Small, step)
}

/// Forward and backward.
fn gradients(model: &Model, step: u64) -> GradientsParams {
    GradientsParams::from_grads(loss(model, step).backward(), model)
}

/// A whole step with release.
fn armed_step(optim: &mut Optim, model: Model, step: u64) -> Model {
    let model = optim.arm(RATE, model);
    let grads = gradients(&model, step);
    assert!(
        grads.is_empty(),
        "armed parameters have no gradients to return"
    );
    optim.step(RATE, model, grads)
}

/// What the model's weights are now.
fn weights(model: &Model) -> Weights {
    Weights::of::<R, _>(model)
}
