//! Stock Burn, and what is compared with it.

use burn::backend::Flex;
use burn::lr_scheduler::LrScheduler;
use burn::module::AutodiffModule;
use burn::optim::adaptor::OptimizerAdaptor;
use burn::optim::{Optimizer, SimpleOptimizer};
use burn::tensor::backend::AutodiffBackend;
use burn::train::{LearningComponentsMarker, TrainingStrategy};
use burn_gradient_release::{ReleaseOptimizer, WithGradientRelease};
use burn_gradient_release_train::{GradientReleaseStrategy, StepMonitor};

use super::Task;
use crate::harness::{Plain, Release};

/// The strategy of a learner with these components.
pub(crate) type Strategy<B, LR, M, O> = TrainingStrategy<LearningComponentsMarker<B, LR, M, O>>;

/// The strategy of a mode for a task.
pub(crate) type StrategyOf<D, T, LR, O> =
    Strategy<<D as Mode>::B, LR, ModelOf<D, T>, <D as Mode>::Optim<O, ModelOf<D, T>>>;

/// The model of a task in a mode.
pub(crate) type ModelOf<D, T> = <T as Task>::Model<<D as Mode>::B>;

/// A backend, an optimizer and a strategy that belong together.
pub(crate) trait Mode: Sized {
    /// The backend.
    type B: AutodiffBackend<InnerBackend = Flex>;
    /// The optimizer.
    type Optim<O, M>: Optimizer<M, Self::B> + 'static
    where
        O: SimpleOptimizer<Flex> + 'static,
        M: AutodiffModule<Self::B> + 'static;

    /// Made of Burn's own.
    fn optim<O, M>(optim: OptimizerAdaptor<O, M, Self::B>) -> Self::Optim<O, M>
    where
        O: SimpleOptimizer<Flex> + 'static,
        M: AutodiffModule<Self::B> + 'static;

    /// `None` for what `SupervisedTraining` does by itself.
    fn strategy<T, LR, O>(monitor: StepMonitor) -> Option<StrategyOf<Self, T, LR, O>>
    where
        T: Task,
        LR: LrScheduler + 'static,
        O: SimpleOptimizer<Flex> + 'static;
}

/// Burn alone: the reference.
pub(crate) struct Stock;

impl Mode for Stock {
    type B = Plain;
    type Optim<O, M>
        = OptimizerAdaptor<O, M, Plain>
    where
        O: SimpleOptimizer<Flex> + 'static,
        M: AutodiffModule<Plain> + 'static;

    fn optim<O, M>(optim: OptimizerAdaptor<O, M, Plain>) -> OptimizerAdaptor<O, M, Plain>
    where
        O: SimpleOptimizer<Flex> + 'static,
        M: AutodiffModule<Plain> + 'static,
    {
        optim
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

/// With gradient release.
pub(crate) struct Released;

impl Mode for Released {
    type B = Release;
    type Optim<O, M>
        = ReleaseOptimizer<O, M, Release>
    where
        O: SimpleOptimizer<Flex> + 'static,
        M: AutodiffModule<Release> + 'static;

    fn optim<O, M>(optim: OptimizerAdaptor<O, M, Release>) -> ReleaseOptimizer<O, M, Release>
    where
        O: SimpleOptimizer<Flex> + 'static,
        M: AutodiffModule<Release> + 'static,
    {
        optim.with_gradient_release()
    }

    fn strategy<T, LR, O>(monitor: StepMonitor) -> Option<StrategyOf<Self, T, LR, O>>
    where
        T: Task,
        LR: LrScheduler + 'static,
        O: SimpleOptimizer<Flex> + 'static,
    {
        let strategy = GradientReleaseStrategy::new(Default::default()).with_monitor(monitor);
        Some(strategy.into())
    }
}
