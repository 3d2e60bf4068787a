//! Groups inside the Learner: their rates come from the scheduler that the Learner steps and saves.

use burn::lr_scheduler::LrScheduler;
use burn::lr_scheduler::linear::{LinearLrScheduler, LinearLrSchedulerConfig};
use burn::module::AutodiffModule;
use burn::optim::adaptor::OptimizerAdaptor;
use burn::optim::{
    AdamW, AdamWConfig, GradientsParams, LearningRate, MultiGradientsParams, Optimizer,
};
use burn::train::Learner;
use burn_gradient_release::{GroupOptions, ModuleLrScheduler, ParamGroup, WithGradientRelease};

use super::{rates, refusal, unlogged};
use crate::groups::parts::{having, part};
use crate::harness::learner::{Bin, Mode, ModelOf, Released, Run, Stock, Training, launch};
use crate::harness::models::{Regression, Size};
use crate::harness::run::Start;
use crate::harness::{Plain, Release};

const DECAY: f32 = 0.4;

fn own() -> LinearLrScheduler {
    let config = LinearLrSchedulerConfig::new(0.03, 0.002, 17);
    config.init().expect("in range")
}

fn adamw<B, M>(decay: f32) -> OptimizerAdaptor<AdamW, M, B>
where
    B: burn::tensor::backend::AutodiffBackend,
    M: AutodiffModule<B>,
{
    AdamWConfig::new().with_weight_decay(decay).init()
}

/// Burn's Learner, with an optimizer for each part: biases without decay at half the rate, and the
/// first layer at rates of its own.
#[derive(Clone)]
struct ByPart<M: AutodiffModule<Plain>> {
    rest: OptimizerAdaptor<AdamW, M, Plain>,
    biases: OptimizerAdaptor<AdamW, M, Plain>,
    first: OptimizerAdaptor<AdamW, M, Plain>,
    rates: LinearLrScheduler,
}

impl<M: AutodiffModule<Plain>> Optimizer<M, Plain> for ByPart<M> {
    type Record = ();

    fn step(&mut self, lr: LearningRate, mut model: M, mut grads: GradientsParams) -> M {
        let first = part(
            &model,
            &mut grads,
            &having::<Plain, _>(&model, &["layers.0.w"]),
        );
        let biases = part(&model, &mut grads, &having::<Plain, _>(&model, &["bias"]));
        model = self.first.step(self.rates.step(), model, first);
        model = self.biases.step(lr * 0.5, model, biases);
        self.rest.step(lr, model, grads)
    }

    fn step_multi(&mut self, _: LearningRate, _: M, _: MultiGradientsParams) -> M {
        unreachable!("there is one device")
    }

    fn to_record(&self) -> Self::Record {}

    fn load_record(self, _: Self::Record) -> Self {
        unreachable!("the reference is not resumed")
    }
}

fn expected(start: &Start) -> Run {
    let optim = ByPart {
        rest: adamw(DECAY),
        biases: adamw(0.0),
        first: adamw(DECAY),
        rates: own(),
    };
    let model = start.model::<Regression, Plain>();
    let strategy = None::<crate::harness::learner::Strategy<_, _, _, _>>;
    launch(
        Learner::new(model, optim, rates()),
        strategy,
        &Training::new(),
    )
}

fn run(start: &Start, training: &Training, is_linked: bool) -> Run {
    let scheduler = || {
        let first = ParamGroup::from_path("layers.0.weight");
        ModuleLrScheduler::new(rates()).with_group(first, own())
    };
    let scheduler_of_the_learner = scheduler();
    let linked = if is_linked {
        scheduler_of_the_learner.rates()
    } else {
        scheduler().rates()
    };
    let undecayed = adamw::<Release, ModelOf<Released, Regression>>(0.0);
    let optim = adamw(DECAY)
        .with_gradient_release()
        .with_learning_rates(linked)
        .with_group(
            ParamGroup::from_predicate("bias"),
            GroupOptions::new()
                .with_optimizer(&undecayed)
                .with_lr_factor(0.5),
        );
    let model = start.model::<Regression, Release>();
    let strategy = Released::strategy::<Regression, _, _>(training.monitor.clone());
    launch(
        Learner::new(model, optim, scheduler_of_the_learner),
        strategy,
        training,
    )
}

#[test]
fn weights_are_those_of_an_optimizer_for_each_part() {
    let start = Start::new::<Regression>(Size::Small);
    let expected = expected(&start);
    run(&start, &Training::new(), true).assert_same(&expected, "groups");

    let stock = crate::harness::learner::train::<Stock, Regression, _, _, _>(
        &start,
        &AdamWConfig::new().with_weight_decay(DECAY),
        rates(),
        &Training::new(),
    );
    assert!(
        !stock.last.same(&expected.last),
        "the groups differ from the rest"
    );

    // An epoch at a time, resumed from checkpoints.
    let training = Training::new().saving_with(Bin::default());
    let until = |epoch: usize| Training {
        epochs: epoch,
        checkpoint: (epoch > 1).then(|| epoch - 1),
        ..training.clone()
    };
    run(&start, &until(1), true);
    run(&start, &until(2), true);
    let last = run(&start, &until(3), true);
    assert_eq!(last.difference_from(&expected, 14), None, "resumed");
}

/// An optimizer that reads the rates of a scheduler that nobody steps.
#[test]
fn rates_of_another_scheduler_are_refused() {
    let start = Start::new::<Regression>(Size::Small);
    let text = refusal(|| run(&start, &unlogged(), false));
    assert!(text.contains("gave nothing yet"), "{text}");
}
