//! What the edge cases share: a small model, its optimizer, and what plain Burn makes of both.

pub(super) use crate::harness::models::{Mlp, MlpModel, Scenario, Size};
pub(super) use crate::harness::run::{self, RATE, Start, Trajectory};

use super::Inner;
use crate::harness::prelude::*;

/// Plain Burn, the reference.
pub(super) type P = Plain<Inner>;
/// With release.
pub(super) type R = Release<Inner>;
/// The model of most of these tests.
pub(super) type Model = MlpModel<R>;
/// Optimizer of that model.
pub(super) type Optim = ReleaseOptimizer<Adam, Model, R>;

/// Parameters of [`Model`].
pub(super) const PARAMETERS: usize = 6;

/// First weights of a small model, and this test's turn on the device.
pub(super) fn start<S: Scenario>() -> Start {
    turn::take::<Inner>();
    Start::new::<S>(Size::Small)
}

/// Adam with release, for any model.
pub(super) fn adam<M: AutodiffModule<R>>() -> ReleaseOptimizer<Adam, M, R> {
    AdamConfig::new().init().with_gradient_release()
}

/// A model, its optimizer, and what plain Burn makes of the same in the same steps.
pub(super) fn bench(steps: u64) -> (Model, Optim, Trajectory) {
    let start = start::<Mlp>();
    let expected = run::plain::<Mlp, _, P>(&start, &AdamConfig::new(), steps);
    (start.model::<Mlp, R>(), adam(), expected)
}

/// The loss of the step.
pub(super) fn loss<B: AutodiffBackend>(model: &MlpModel<B>, step: u64) -> Tensor<B, 1> {
    Mlp::loss::<B>(model, Size::Small, step)
}

/// Forward and backward.
pub(super) fn gradients(model: &Model, step: u64) -> GradientsParams {
    run::gradients(model, loss(model, step))
}

/// A whole step with release.
pub(super) fn armed_step(optim: &mut Optim, model: Model, step: u64) -> Model {
    run::armed_step(RATE, model, optim, |model| loss(model, step))
}

/// Weights of the model as they are now.
pub(super) fn weights(model: &Model) -> Weights {
    Weights::of(model)
}
