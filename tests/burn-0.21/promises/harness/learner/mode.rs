//! Stock Burn, and what is compared with it.

use std::sync::Arc;

use burn::lr_scheduler::LrScheduler;
use burn::optim::{LearningRate, MultiGradientsParams};
use burn::train::{LearningComponentsMarker, TrainingStrategy};
use burn_gradient_release_train::GradientReleaseStrategy;

use super::{RegressionModel, Training};
use crate::clipping::by_hand::clip_global;
use crate::harness::prelude::*;

/// The strategy of a learner with these components.
pub(crate) type Strategy<B, LR, M, O> = TrainingStrategy<LearningComponentsMarker<B, LR, M, O>>;

/// The strategy of a mode.
pub(crate) type StrategyOf<D, LR> =
    Strategy<<D as Mode>::B, LR, RegressionModel<<D as Mode>::B>, <D as Mode>::Optim>;

/// A backend, an optimizer and a strategy that belong together.
pub(crate) trait Mode {
    /// The backend.
    type B: AutodiffBackend<InnerBackend = Flex>;
    /// The optimizer.
    type Optim: Optimizer<RegressionModel<Self::B>, Self::B> + 'static;

    fn optim(training: &Training) -> Self::Optim;

    /// `None` for what `SupervisedTraining` does by itself.
    fn strategy<LR: LrScheduler + 'static>(training: &Training) -> Option<StrategyOf<Self, LR>>
    where
        Self: Sized;
}

/// Burn's optimizer for a model.
pub(crate) type Adaptor<B> = OptimizerAdaptor<Hooked, RegressionModel<B>, B>;

/// Burn alone: the reference.
pub(crate) struct Stock;

impl Mode for Stock {
    type B = Plain;
    type Optim = Adaptor<Plain>;

    fn optim(training: &Training) -> Self::Optim {
        assert_eq!(training.max_norm, None, "Burn does not clip by it");
        training.optim.make()
    }

    fn strategy<LR: LrScheduler + 'static>(_: &Training) -> Option<StrategyOf<Self, LR>> {
        None
    }
}

/// With gradient release.
pub(crate) struct Released;

impl Mode for Released {
    type B = Release;
    type Optim = ReleaseOptimizer<Hooked, RegressionModel<Release>, Release>;

    fn optim(training: &Training) -> Self::Optim {
        let mut optim = training.optim.make().with_gradient_release();
        if training.accumulation.is_some() {
            // What the optimizer recomputes counts where the strategy does not say otherwise.
            optim = optim.with_recompute(training.recompute);
        }
        match training.max_norm {
            Some(max_norm) => optim.with_norm_clipping(NormClipping::GlobalNorm { max_norm }),
            None => optim,
        }
    }

    fn strategy<LR: LrScheduler + 'static>(training: &Training) -> Option<StrategyOf<Self, LR>> {
        let mut strategy =
            GradientReleaseStrategy::new(Default::default()).with_monitor(training.monitor.clone());
        if training.accumulation.is_none() {
            strategy = strategy.with_recompute(training.recompute);
        }
        Some(match training.max_norm {
            Some(_) => strategy.with_two_passes().into(),
            None => strategy.into(),
        })
    }
}

/// Burn's `Learner` with an optimizer that has all gradients at hand, to clip by the global norm.
pub(crate) struct ByHand;

type Model = RegressionModel<Plain>;

/// The step of [`ByHand`].
type StepByHand =
    dyn Fn(&mut Adaptor<Plain>, LearningRate, Model, GradientsParams) -> Model + Send + Sync;

/// An optimizer whose step the user has written.
#[derive(Clone)]
pub(crate) struct OptimizerByHand {
    optim: Adaptor<Plain>,
    step: Arc<StepByHand>,
}

impl OptimizerByHand {
    pub(crate) fn new(optim: &Hooked, step: Arc<StepByHand>) -> Self {
        let optim = optim.make();
        Self { optim, step }
    }
}

impl Optimizer<Model, Plain> for OptimizerByHand {
    type Record = <Adaptor<Plain> as Optimizer<Model, Plain>>::Record;

    fn step(&mut self, lr: LearningRate, model: Model, grads: GradientsParams) -> Model {
        (self.step)(&mut self.optim, lr, model, grads)
    }

    fn step_multi(&mut self, _: LearningRate, _: Model, _: MultiGradientsParams) -> Model {
        unreachable!("there is one device")
    }

    fn to_record(&self) -> Self::Record {
        self.optim.to_record()
    }

    fn load_record(self, record: Self::Record) -> Self {
        Self {
            optim: self.optim.load_record(record),
            ..self
        }
    }
}

impl Mode for ByHand {
    type B = Plain;
    type Optim = OptimizerByHand;

    fn optim(training: &Training) -> OptimizerByHand {
        let max_norm = training.max_norm.expect("something to clip to");
        let step: Arc<StepByHand> = Arc::new(move |optim, lr, model, mut grads| {
            clip_global::<Plain, _>(&model, &mut grads, max_norm);
            optim.step(lr, model, grads)
        });
        OptimizerByHand::new(&training.optim, step)
    }

    fn strategy<LR: LrScheduler + 'static>(_: &Training) -> Option<StrategyOf<Self, LR>> {
        None
    }
}
