//! The rate of an iteration is the rate its weights are stepped with, whatever the scheduler.

use std::sync::{Arc, Mutex};

use burn::lr_scheduler::LrScheduler;
use burn::lr_scheduler::composed::ComposedLrSchedulerConfig;
use burn::lr_scheduler::constant::ConstantLr;
use burn::lr_scheduler::cosine::CosineAnnealingLrSchedulerConfig;
use burn::lr_scheduler::exponential::ExponentialLrSchedulerConfig;
use burn::lr_scheduler::linear::LinearLrSchedulerConfig;
use burn::lr_scheduler::noam::NoamLrSchedulerConfig;
use burn::lr_scheduler::step::StepLrSchedulerConfig;
use burn::optim::{Adam, AdamConfig, GradientsParams, LearningRate};
use burn::tensor::backend::Backend;
use burn::train::{
    Learner, LearningComponentsMarker, SupervisedLearningStrategy,
    SupervisedTrainingEventProcessor, TrainLoader, TrainingComponents, TrainingStrategy,
    ValidLoader,
};
use burn_gradient_release::{ModuleLrScheduler, ParamGroup, ReleaseOptimizer};

use super::{rates, refusal, unlogged};
use crate::harness::learner::{Bin, Mode, ModelOf, Released, Run, Stock, Training, launch, train};
use crate::harness::models::{Regression, Size};
use crate::harness::run::Start;
use crate::harness::{Hooked, Recipe, Release};

fn run<D: Mode>(start: &Start, recipe: &impl Recipe, scheduler: impl LrScheduler + 'static) -> Run {
    train::<D, Regression, _, _, _>(start, recipe, scheduler, &Training::new())
}

/// Rates as the logs write them.
fn texts(rates: &[LearningRate]) -> Vec<String> {
    rates.iter().map(|rate| format!("{rate},1")).collect()
}

/// Three epochs stock and with release: the same weights at every step, the same rates in the logs,
/// and those rates applied. Then with interruptions, as far as the scheduler's own record goes.
fn same<LR: LrScheduler + 'static>(scheduler: impl Fn() -> LR) {
    let start = Start::new::<Regression>(Size::Small);
    let adam = AdamConfig::new();
    let stock = run::<Stock>(&start, &adam, scheduler());
    let release = run::<Released>(&start, &adam, scheduler());
    release.assert_same(&stock, "release");

    let mut rates = scheduler();
    for epoch in 1..=3 {
        let rates: Vec<_> = (0..7).map(|_| rates.step()).collect();
        let logged = stock.directory.logged(epoch, "Learning Rate");
        assert_eq!(
            logged,
            texts(&rates),
            "stock logs the rates of epoch {epoch}"
        );
        assert_eq!(release.directory.logged(epoch, "Learning Rate"), logged);
        assert_eq!(
            release.directory.logged(epoch, "Applied Learning Rate"),
            logged
        );
    }
    resumes(&start, &adam, scheduler, &stock);
}

/// Stock for an epoch, release for an epoch, stock for an epoch.
fn resumes<LR: LrScheduler + 'static>(
    start: &Start,
    recipe: &impl Recipe,
    scheduler: impl Fn() -> LR,
    expected: &Run,
) {
    let training = Training::new().saving_with(Bin::default());
    let until = |epoch: usize| Training {
        epochs: epoch,
        checkpoint: (epoch > 1).then(|| epoch - 1),
        ..training.clone()
    };
    train::<Stock, Regression, _, _, _>(start, recipe, scheduler(), &until(1));
    train::<Released, Regression, _, _, _>(start, recipe, scheduler(), &until(2));
    let last = train::<Stock, Regression, _, _, _>(start, recipe, scheduler(), &until(3));
    assert_eq!(last.difference_from(expected, 14), None, "resumed");
}

#[test]
fn constant() {
    same(|| 0.01);
    same(|| ConstantLr::new(0.02));
}

#[test]
fn cosine() {
    same(rates);
}

#[test]
fn exponential() {
    same(|| {
        ExponentialLrSchedulerConfig::new(0.03, 0.9)
            .init()
            .expect("in range")
    });
}

#[test]
fn linear() {
    same(|| {
        LinearLrSchedulerConfig::new(0.03, 0.001, 12)
            .init()
            .expect("in range")
    });
}

#[test]
fn noam() {
    let config = NoamLrSchedulerConfig::new(0.1)
        .with_warmup_steps(6)
        .with_model_size(8);
    same(|| config.init().expect("in range"));
}

#[test]
fn step() {
    let config = StepLrSchedulerConfig::new(0.03, 4).with_gamma(0.5);
    same(|| config.init().expect("in range"));
}

/// What the Learner sees of it is the base; its record has the groups too.
#[test]
fn with_groups() {
    let linear = LinearLrSchedulerConfig::new(0.03, 0.001, 12);
    same(|| {
        ModuleLrScheduler::new(rates())
            .with_group(ParamGroup::all(), linear.init().expect("in range"))
            .with_group(ParamGroup::from_path("bias"), ConstantLr::new(0.1))
    });
}

#[test]
fn composed() {
    let config = ComposedLrSchedulerConfig::new()
        .linear(LinearLrSchedulerConfig::new(0.01, 1.0, 6))
        .exponential(ExponentialLrSchedulerConfig::new(0.05, 0.95))
        .cosine(CosineAnnealingLrSchedulerConfig::new(1.0, 9).with_min_lr(0.1));
    same(|| config.init().expect("in range"));
}

/// Gives the rate of the step before.
#[derive(Clone)]
struct OneStepLate<LR> {
    scheduler: LR,
    previous: Option<LearningRate>,
}

impl<LR: LrScheduler> LrScheduler for OneStepLate<LR> {
    type Record<B: Backend> = LR::Record<B>;

    fn step(&mut self) -> LearningRate {
        let rate = self.scheduler.step();
        self.previous.replace(rate).unwrap_or(rate)
    }

    fn to_record<B: Backend>(&self) -> Self::Record<B> {
        self.scheduler.to_record::<B>()
    }

    fn load_record<B: Backend>(mut self, record: Self::Record<B>) -> Self {
        self.scheduler = self.scheduler.load_record::<B>(record);
        self
    }
}

#[test]
fn a_rate_one_step_late_would_be_noticed() {
    let start = Start::new::<Regression>(Size::Small);
    let stock = run::<Stock>(&start, &AdamConfig::new(), rates());
    let late = OneStepLate {
        scheduler: rates(),
        previous: None,
    };
    let release = run::<Released>(&start, &AdamConfig::new(), late);
    // The first step has no step before it.
    let difference = release.difference(&stock);
    assert_eq!(
        difference.as_deref(),
        Some("weights differ before training step 2")
    );
    assert_ne!(
        release.directory.logged(1, "Applied Learning Rate"),
        stock.directory.logged(1, "Learning Rate")
    );
}

/// Here every log is right and only the weights tell.
#[test]
fn an_optimizer_with_a_stale_rate_would_be_noticed() {
    let start = Start::new::<Regression>(Size::Small);
    let stock = run::<Stock>(&start, &AdamConfig::new(), rates());
    // Of the step before, and of this one; each is given once for every parameter.
    let rates_given = Mutex::new([0.05; 2]);
    let stale = Hooked::with_hook(move |_, lr| {
        let mut given = rates_given.lock().expect("not poisoned");
        if given[1] != lr {
            *given = [given[1], lr];
        }
        given[0]
    });
    let release = run::<Released>(&start, &stale, rates());
    let difference = release.difference(&stock);
    assert_eq!(
        difference.as_deref(),
        Some("weights differ before training step 2")
    );
    assert_eq!(
        release.directory.logged(1, "Applied Learning Rate"),
        stock.directory.logged(1, "Learning Rate")
    );
}

/// Arms with the rate of the iteration before, as a strategy would that arms before `lr_step`.
struct ArmsTooEarly;

/// The learner that it trains.
type Components<LR> = LearningComponentsMarker<
    Release,
    LR,
    ModelOf<Released, Regression>,
    ReleaseOptimizer<Adam, ModelOf<Released, Regression>, Release>,
>;

impl<LR: LrScheduler + 'static> SupervisedLearningStrategy<Components<LR>> for ArmsTooEarly {
    fn fit(
        &self,
        components: TrainingComponents<Components<LR>>,
        mut learner: Learner<Components<LR>>,
        dataloader_train: TrainLoader<Components<LR>>,
        _: ValidLoader<Components<LR>>,
        _: usize,
    ) -> (
        ModelOf<Released, Regression>,
        SupervisedTrainingEventProcessor<Components<LR>>,
    ) {
        let mut optim: ReleaseOptimizer<Adam, ModelOf<Released, Regression>, Release> =
            ReleaseOptimizer::handle_of(&learner).expect("the learner has one");
        for item in dataloader_train.iter() {
            let (lr, copy) = (learner.lr_current(), learner.model());
            optim
                .try_arm_by_fork(lr, copy, GradientsParams::new(), || {
                    learner.fork(&Default::default())
                })
                .expect("nothing is under way");
            learner.lr_step();
            let output = learner.train_step(item);
            learner.optimizer_step(output.grads);
        }
        (learner.model(), components.event_processor)
    }
}

/// What a strategy armed with is what `step` is held to: the mistake does not get as far as the
/// weights.
#[test]
fn a_strategy_that_arms_too_early_is_refused() {
    let start = Start::new::<Regression>(Size::Small);
    let optim = Released::optim(AdamConfig::new().init());
    let model = start.model::<Regression, Release>();
    let learner = Learner::new(model, optim, rates());
    let strategy = TrainingStrategy::Custom(Arc::new(ArmsTooEarly));
    let said = refusal(|| launch(learner, Some(strategy), &unlogged()));
    assert!(
        said.contains("armed with the learning rate 0, but `step` was given 0.05"),
        "{said}"
    );
    assert!(
        said.contains("pass `step` the rate that `arm` was given"),
        "{said}"
    );
}
