//! Clipping by the global norm inside the Learner.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use burn::backend::Flex;
use burn::lr_scheduler::LrScheduler;
use burn::module::{AutodiffModule, Module};
use burn::optim::adaptor::OptimizerAdaptor;
use burn::optim::{
    AdamConfig, GradientsParams, LearningRate, MultiGradientsParams, Optimizer, SimpleOptimizer,
};
use burn::tensor::Tensor;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::train::Learner;
use burn_gradient_release::{NormClipping, ReleaseOptimizer, WithGradientRelease};
use burn_gradient_release_train::{GradientReleaseStrategy, StepMonitor};

use super::rates;
use crate::clipping::by_hand::{clip_global, global_norm};
use crate::harness::learner::{
    Bin, Mode, Released, Run, StrategyOf, Task, Training, inference_step, launch, task, train,
    train_step,
};
use crate::harness::models::{Cnn, Regression, RegressionModel, Scenario, Size, Tied};
use crate::harness::run::Start;
use crate::harness::{Plain, Release};

const MAX_NORM: f64 = 0.15;

/// Burn's Learner, with an optimizer that clips by hand.
struct ByHand;

#[derive(Clone)]
struct Clipping<O>(O);

impl<O, M> Optimizer<M, Plain> for Clipping<O>
where
    O: Optimizer<M, Plain>,
    M: AutodiffModule<Plain>,
{
    type Record = O::Record;

    fn step(&mut self, lr: LearningRate, module: M, mut grads: GradientsParams) -> M {
        clip_global::<Plain, M>(&module, &mut grads, MAX_NORM);
        self.0.step(lr, module, grads)
    }

    fn step_multi(&mut self, _: LearningRate, _: M, _: MultiGradientsParams) -> M {
        unreachable!("there is one device")
    }

    fn to_record(&self) -> Self::Record {
        self.0.to_record()
    }

    fn load_record(self, record: Self::Record) -> Self {
        Self(self.0.load_record(record))
    }
}

impl Mode for ByHand {
    type B = Plain;
    type Optim<O, M>
        = Clipping<OptimizerAdaptor<O, M, Plain>>
    where
        O: SimpleOptimizer<Flex> + 'static,
        M: AutodiffModule<Plain> + 'static;

    fn optim<O, M>(optim: OptimizerAdaptor<O, M, Plain>) -> Self::Optim<O, M>
    where
        O: SimpleOptimizer<Flex> + 'static,
        M: AutodiffModule<Plain> + 'static,
    {
        Clipping(optim)
    }

    fn strategy<T, LR, O>(_: StepMonitor) -> Option<StrategyOf<Self, T, LR, O>>
    where
        T: Task,
        LR: LrScheduler + 'static,
        O: SimpleOptimizer<Flex> + 'static,
    {
        None
    }
}

struct TwoPasses;

impl Mode for TwoPasses {
    type B = Release;
    type Optim<O, M>
        = ReleaseOptimizer<O, M, Release>
    where
        O: SimpleOptimizer<Flex> + 'static,
        M: AutodiffModule<Release> + 'static;

    fn optim<O, M>(optim: OptimizerAdaptor<O, M, Release>) -> Self::Optim<O, M>
    where
        O: SimpleOptimizer<Flex> + 'static,
        M: AutodiffModule<Release> + 'static,
    {
        let clipping = NormClipping::GlobalNorm { max_norm: MAX_NORM };
        optim.with_gradient_release().with_norm_clipping(clipping)
    }

    fn strategy<T, LR, O>(monitor: StepMonitor) -> Option<StrategyOf<Self, T, LR, O>>
    where
        T: Task,
        LR: LrScheduler + 'static,
        O: SimpleOptimizer<Flex> + 'static,
    {
        let strategy = GradientReleaseStrategy::new(Default::default());
        Some(strategy.with_monitor(monitor).with_two_passes().into())
    }
}

/// The weights that each second pass found: the first one finds the same.
fn second_passes(mut run: Run) -> Run {
    let mut window = 0;
    let found = std::mem::take(&mut run.found);
    let mut found = found.into_iter().peekable();
    while let Some(weights) = found.next() {
        if found.peek().is_some_and(|next| next.same(&weights)) {
            window += 1;
            continue;
        }
        run.found.push(weights);
    }
    assert!(window > 0);
    run
}

fn clips_as_by_hand<S: Scenario + Task>() {
    let start = Start::new::<S>(Size::Small);
    let adam = AdamConfig::new();
    let training = Training::new().saving_with(Bin::default());
    let expected = train::<ByHand, S, _, _, _>(&start, &adam, rates(), &training);
    let unclipped = train::<Released, S, _, _, _>(&start, &adam, rates(), &Training::new());
    assert!(!unclipped.last.same(&expected.last), "nothing was clipped");

    let run = train::<TwoPasses, S, _, _, _>(&start, &adam, rates(), &Training::new());
    assert_eq!(run.found.len(), 2 * expected.found.len());
    second_passes(run).assert_same(&expected, "two passes");

    // By hand for an epoch, in two passes for an epoch, by hand for an epoch.
    let until = |epoch: usize| Training {
        epochs: epoch,
        checkpoint: (epoch > 1).then(|| epoch - 1),
        ..training.clone()
    };
    train::<ByHand, S, _, _, _>(&start, &adam, rates(), &until(1));
    train::<TwoPasses, S, _, _, _>(&start, &adam, rates(), &until(2));
    let last = train::<ByHand, S, _, _, _>(&start, &adam, rates(), &until(3));
    assert_eq!(last.difference_from(&expected, 14), None, "resumed");
}

#[test]
fn clips_as_plain_burn_does_by_hand() {
    clips_as_by_hand::<Regression>();
    clips_as_by_hand::<Tied>();
}

/// The running means of batch norm are those of one pass.
#[test]
fn running_means_are_updated_once() {
    let start = Start::new::<Cnn>(Size::Small);
    let adam = AdamConfig::new();
    let expected = train::<ByHand, Cnn, _, _, _>(&start, &adam, rates(), &Training::new());
    let run = train::<TwoPasses, Cnn, _, _, _>(&start, &adam, rates(), &Training::new());
    assert!(
        run.last.same(&expected.last),
        "weights or running means differ"
    );
}

#[test]
fn clips_the_sums_of_micro_batches() {
    let start = Start::new::<Regression>(Size::Small);
    let adam = AdamConfig::new();
    let training = Training {
        accumulation: Some(3),
        ..Training::new()
    };
    let expected = train::<ByHand, Regression, _, _, _>(&start, &adam, rates(), &training);
    let run = train::<TwoPasses, Regression, _, _, _>(&start, &adam, rates(), &training);
    assert!(run.last.same(&expected.last), "weights differ");
    expected.assert_trained();
}

#[test]
fn a_strategy_of_one_pass_refuses() {
    let start = Start::new::<Regression>(Size::Small);
    let text = super::refusal(|| {
        let optim = TwoPasses::optim(AdamConfig::new().init());
        let learner = Learner::new(start.model::<Regression, Release>(), optim, rates());
        let strategy = Released::strategy::<Regression, _, _>(StepMonitor::new());
        launch(learner, strategy, &super::unlogged())
    });
    assert!(text.contains("with_two_passes"), "{text}");
}

#[test]
fn the_norm_is_a_metric() {
    let start = Start::new::<Regression>(Size::Small);
    let run = train::<TwoPasses, Regression, _, _, _>(
        &start,
        &AdamConfig::new(),
        rates(),
        &Training::new(),
    );
    let shown = run.renderer.train("Gradient Norm");
    assert_eq!(shown.len(), 21);
    // The first two items make the first batch.
    let model = start.model::<Regression, Plain>();
    let loss = Regression::loss::<Plain>(&model, Size::Small, 102);
    let mut grads = GradientsParams::from_grads(loss.backward(), &model);
    let norm = global_norm::<Plain, _>(&model, &mut grads);
    assert_eq!(shown[0].value, norm);
    assert!(
        norm > MAX_NORM && shown[0].text.contains("clipped by"),
        "{}",
        shown[0].text
    );
}

/// A regression whose loss grows with every forward pass.
#[derive(Module, Debug)]
struct DriftingModel<B: Backend> {
    inner: RegressionModel<B>,
    #[module(skip)]
    passes: Arc<AtomicU32>,
}

impl<B: Backend> DriftingModel<B> {
    fn loss(&self, size: Size, step: u64) -> Tensor<B, 1> {
        let passes = self.passes.fetch_add(1, Ordering::Relaxed);
        self.inner.loss(size, step) * (1.0 + f64::from(passes))
    }
}

train_step!(DriftingModel);
inference_step!(DriftingModel);

struct Drifting;

impl Scenario for Drifting {
    type Model<B: AutodiffBackend> = DriftingModel<B>;

    fn init<B: AutodiffBackend>(size: Size, device: &B::Device) -> DriftingModel<B> {
        DriftingModel {
            inner: Regression::init(size, device),
            passes: Arc::default(),
        }
    }

    fn loss<B: AutodiffBackend>(model: &DriftingModel<B>, size: Size, step: u64) -> Tensor<B, 1> {
        model.loss(size, step)
    }
}

task!(Drifting, DriftingModel);

#[test]
fn passes_that_differ_are_refused() {
    let start = Start::new::<Drifting>(Size::Small);
    let adam = AdamConfig::new();
    let text = super::refusal(|| {
        train::<TwoPasses, Drifting, _, _, _>(&start, &adam, rates(), &super::unlogged())
    });
    assert!(text.contains("gave different losses"), "{text}");
    assert!(
        text.contains("draw random numbers with Burn's tensors"),
        "{text}"
    );
}
