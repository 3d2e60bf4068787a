//! One training run, plain or with release, weights noted after every step.

use burn::module::AutodiffModule;
use burn::optim::{GradientsParams, Optimizer};
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn_gradient_release::{Outcome, ReleaseBackend, StepReport, WithGradientRelease};

use super::models::{Scenario, Size};
use super::noise::reseed;
use super::weights::{load, save};
use super::{Plain, Recipe, Weights};

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
        Self::seeded::<S>(size, 42)
    }

    /// Other weights, for every seed others.
    pub(crate) fn seeded<S: Scenario>(size: Size, seed: u64) -> Self {
        let model = S::init::<Plain>(size, &Default::default());
        Self {
            size,
            bytes: save(reseed(model, seed)),
        }
    }

    /// Makes a start from the [`bytes`](Self::bytes) of another process.
    pub(crate) fn from_bytes(size: Size, bytes: Vec<u8>) -> Self {
        Self { size, bytes }
    }

    /// For another process: ids of parameters are drawn anew in each.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The model with these weights.
    pub(crate) fn model<S: Scenario, B: AutodiffBackend>(&self) -> S::Model<B> {
        let device = <B as burn::tensor::backend::BackendTypes>::Device::default();
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
    let mut model = start.model::<S, B>();
    let mut optim = recipe.make::<B, S::Model<B>>();
    let first = Weights::of::<B, _>(&model);
    let mut weights = Vec::new();
    for step in 0..steps {
        let loss = S::loss::<B>(&model, start.size, step);
        let grads = GradientsParams::from_grads(loss.backward(), &model);
        model = optim.step(RATE, model, grads);
        weights.push(Weights::of::<B, _>(&model));
    }
    Trajectory {
        first,
        steps: weights,
    }
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
    let mut model = start.model::<S, B>();
    let mut optim = recipe.make::<B, S::Model<B>>().with_gradient_release();
    let first = Weights::of::<B, _>(&model);
    let mut weights = Vec::new();
    let mut reports = Vec::new();
    for step in 0..steps {
        model = optim.arm(RATE, model);
        let loss = S::loss::<B>(&model, start.size, step);
        let grads = GradientsParams::from_grads(loss.backward(), &model);
        assert!(
            grads.is_empty(),
            "an armed parameter left a gradient behind"
        );
        model = optim.step(RATE, model, grads);
        weights.push(Weights::of::<B, _>(&model));
        reports.push(optim.last_step().expect("a step was taken").clone());
    }
    (
        Trajectory {
            first,
            steps: weights,
        },
        reports,
    )
}

/// Number of trained parameters of a model.
pub(crate) fn trainable<B: Backend, M: burn::module::Module<B>>(model: &M) -> usize {
    struct Count(usize);

    impl<B: Backend> burn::module::ModuleVisitor<B> for Count {
        fn visit_float<const D: usize>(
            &mut self,
            param: &burn::module::Param<burn::tensor::Tensor<B, D>>,
        ) {
            self.0 += usize::from(param.is_require_grad());
        }
    }

    let mut count = Count(0);
    model.visit(&mut count);
    count.0
}

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
    assert_eq!(
        outcomes(report),
        [parameters, 0, 0, 0],
        "released, late, ordinary, unused"
    );
}

/// Checks that each step of a run released all parameters.
#[track_caller]
pub(crate) fn assert_run_released(reports: &[StepReport], parameters: usize) {
    assert!(!reports.is_empty());
    for (step, report) in reports.iter().enumerate() {
        assert_eq!(
            outcomes(report),
            [parameters, 0, 0, 0],
            "step {step}: released, late, ordinary, unused"
        );
    }
}

/// One ordinary step of plain Burn's loop, for tests that write their own.
pub(crate) fn ordinary_step<M, B, O>(
    rate: f64,
    model: M,
    optim: &mut O,
    loss: burn::tensor::Tensor<B, 1>,
) -> M
where
    B: AutodiffBackend,
    M: AutodiffModule<B>,
    O: Optimizer<M, B>,
{
    let grads = GradientsParams::from_grads(loss.backward(), &model);
    optim.step(rate, model, grads)
}
