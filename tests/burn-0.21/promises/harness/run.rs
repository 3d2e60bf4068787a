//! One training run, plain or with release, weights noted after every step.

use core::fmt::Display;

use burn_gradient_release::ReleaseBackend;

use super::noise::reseed;
use crate::harness::prelude::*;

/// The rate of every run that does not say otherwise.
pub(crate) const RATE: f64 = 0.01;

/// First weights, as bytes that any backend can load.
pub(crate) struct Start {
    size: Size,
    bytes: Vec<u8>,
}

impl Start {
    /// First weights, equal for every backend and run.
    pub(crate) fn new<S: Scenario>(size: Size) -> Self {
        let model = S::init::<Plain>(size, &Default::default());
        Self::from_bytes(size, save(reseed(model, 42)))
    }

    /// Makes a start from a saved model, also of another process.
    pub(crate) fn from_bytes(size: Size, bytes: Vec<u8>) -> Self {
        Self { size, bytes }
    }

    /// How big the model is.
    pub(crate) fn size(&self) -> Size {
        self.size
    }

    /// The model with these weights.
    pub(crate) fn model<S: Scenario, B: AutodiffBackend>(&self) -> S::Model<B> {
        let device = <B as BackendTypes>::Device::default();
        load::<B, _>(S::init::<B>(self.size, &device), &self.bytes, &device)
    }
}

/// Results of a run.
pub(crate) struct Trajectory {
    /// The weights before the first step.
    pub(crate) first: Weights,
    /// The weights after each step.
    pub(crate) steps: Vec<Weights>,
}

/// Plain Burn.
pub(crate) fn plain<S, R, B>(start: &Start, recipe: &R, steps: u64) -> Trajectory
where
    S: Scenario,
    R: Recipe,
    B: AutodiffBackend,
{
    let mut optim = recipe.make::<B, S::Model<B>>();
    ordinary(start.model::<S, B>(), &mut optim, steps, &|model, step| {
        S::loss::<B>(model, start.size, step)
    })
}

/// With release, each step armed.
pub(crate) fn release<S, R, B>(
    start: &Start,
    recipe: &R,
    steps: u64,
) -> (Trajectory, Vec<StepReport>)
where
    S: Scenario,
    R: Recipe,
    B: ReleaseBackend,
{
    let mut optim = recipe.make::<B, S::Model<B>>().with_gradient_release();
    armed(start.model::<S, B>(), &mut optim, steps, &|model, step| {
        S::loss::<B>(model, start.size, step)
    })
}

/// Plain Burn and release, on the same backend: the weights are as near as `tolerance` says after
/// each step, and move.
#[track_caller]
pub(crate) fn compare<S, R, B, C>(
    start: &Start,
    recipe: &R,
    steps: u64,
    tolerance: f32,
) -> (Trajectory, Vec<StepReport>)
where
    S: Scenario,
    R: Recipe,
    B: Backend,
    C: CheckpointStrategy,
{
    let plain = plain::<S, R, Plain<B, C>>(start, recipe, steps);
    let (release, reports) = release::<S, R, Release<B, C>>(start, recipe, steps);
    release
        .first
        .assert_same(&plain.first, "before the first step");
    assert_near_steps(&release.steps, &plain.steps, tolerance, "release");
    let last = plain.steps.last().expect("there are steps");
    last.assert_moved(&plain.first, "plain");
    assert!(last.finite(), "the run blew up");
    (release, reports)
}

/// Trains any model on any loss as plain Burn does.
pub(crate) fn ordinary<M, B, O>(
    mut model: M,
    optim: &mut O,
    steps: u64,
    loss: &dyn Fn(&M, u64) -> Tensor<B, 1>,
) -> Trajectory
where
    B: AutodiffBackend,
    M: AutodiffModule<B>,
    O: Optimizer<M, B>,
{
    let first = Weights::of(&model);
    let mut weights = Vec::new();
    for step in 0..steps {
        let loss = loss(&model, step);
        model = ordinary_step(RATE, model, optim, loss);
        weights.push(Weights::of(&model));
    }
    Trajectory {
        first,
        steps: weights,
    }
}

/// Trains any model on any loss with release, each step armed.
pub(crate) fn armed<M, B, O>(
    mut model: M,
    optim: &mut ReleaseOptimizer<O, M, B>,
    steps: u64,
    loss: &dyn Fn(&M, u64) -> Tensor<B, 1>,
) -> (Trajectory, Vec<StepReport>)
where
    B: ReleaseBackend,
    M: AutodiffModule<B>,
    O: SimpleOptimizer<B::InnerBackend> + 'static,
{
    let first = Weights::of(&model);
    let (mut weights, mut reports) = (Vec::new(), Vec::new());
    for step in 0..steps {
        model = armed_step(RATE, model, optim, |model| loss(model, step));
        weights.push(Weights::of(&model));
        reports.push(optim.last_step().expect("a step was taken"));
    }
    let trajectory = Trajectory {
        first,
        steps: weights,
    };
    (trajectory, reports)
}

/// One armed step, which returns no gradient.
pub(crate) fn armed_step<M, B, O>(
    rate: f64,
    model: M,
    optim: &mut ReleaseOptimizer<O, M, B>,
    loss: impl FnOnce(&M) -> Tensor<B, 1>,
) -> M
where
    B: ReleaseBackend,
    M: AutodiffModule<B>,
    O: SimpleOptimizer<B::InnerBackend> + 'static,
{
    let model = optim.arm(rate, model);
    let grads = gradients(&model, loss(&model));
    assert!(
        grads.is_empty(),
        "an armed parameter left a gradient behind"
    );
    optim.step(rate, model, grads)
}

/// Fails unless the weights after each step are equal to the last bit.
#[track_caller]
pub(crate) fn assert_same_steps(given: &[Weights], expected: &[Weights], context: impl Display) {
    assert_near_steps(given, expected, 0.0, context);
}

/// Fails unless the weights after each step are as near as `tolerance` says.
#[track_caller]
pub(crate) fn assert_near_steps(
    given: &[Weights],
    expected: &[Weights],
    tolerance: f32,
    context: impl Display,
) {
    assert_eq!(given.len(), expected.len(), "{context}: steps");
    for (step, (given, expected)) in given.iter().zip(expected).enumerate() {
        given.assert_near(expected, tolerance, format!("{context}, after step {step}"));
    }
}

/// Number of trained parameters of a model.
pub(crate) fn trainable<B: Backend, M: Module<B>>(model: &M) -> usize {
    struct Count(usize);

    impl<B: Backend> ModuleVisitor<B> for Count {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
            self.0 += usize::from(param.is_require_grad());
        }
    }

    let mut count = Count(0);
    model.visit(&mut count);
    count.0
}

/// What [`outcomes`] counts.
pub(crate) const OUTCOMES: &str = "released, late, ordinary, unused";

/// How often each outcome occurred: released, late, ordinary, unused.
pub(crate) fn outcomes(report: &StepReport) -> [usize; 4] {
    let counts = [
        Outcome::Released,
        Outcome::ReleasedLate,
        Outcome::Ordinary,
        Outcome::Unused,
    ]
    .map(|outcome| report.count(outcome));
    assert_eq!(counts.iter().sum::<usize>(), report.outcomes().count());
    counts
}

/// Fails unless every parameter was stepped inside backward, as soon as it was complete.
#[track_caller]
pub(crate) fn assert_all_released(report: &StepReport, parameters: usize) {
    assert_eq!(outcomes(report), [parameters, 0, 0, 0], "{OUTCOMES}");
}

/// Checks that each step of a run released all parameters.
#[track_caller]
pub(crate) fn assert_run_released(reports: &[StepReport], parameters: usize) {
    assert!(!reports.is_empty());
    for (step, report) in reports.iter().enumerate() {
        let all_released = [parameters, 0, 0, 0];
        assert_eq!(outcomes(report), all_released, "step {step}: {OUTCOMES}");
    }
}

/// The gradients of the loss for the parameters of the model, taken by a backward pass.
pub(crate) fn gradients<M, B>(model: &M, loss: Tensor<B, 1>) -> GradientsParams
where
    B: AutodiffBackend,
    M: AutodiffModule<B>,
{
    GradientsParams::from_grads(loss.backward(), model)
}

/// One ordinary step of plain Burn's loop, for tests that write their own.
pub(crate) fn ordinary_step<M, B, O>(rate: f64, model: M, optim: &mut O, loss: Tensor<B, 1>) -> M
where
    B: AutodiffBackend,
    M: AutodiffModule<B>,
    O: Optimizer<M, B>,
{
    let grads = gradients(&model, loss);
    optim.step(rate, model, grads)
}
