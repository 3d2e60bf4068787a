//! The models of the harness as burn-train trains them.

use burn::backend::Flex;
use burn::module::AutodiffModule;
use burn::tensor::Tensor;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::train::metric::{Adaptor, ItemLazy, LossInput};
use burn::train::{InferenceStep, TrainStep};

use super::Batch;
use crate::harness::models::{Cnn, CnnModel, Regression, RegressionModel, Tied, TiedModel};
use crate::harness::run::Start;

/// Output of a step for the metrics.
pub(crate) struct LossOutput<B: Backend>(pub(crate) Tensor<B, 1>);

impl<B: Backend> ItemLazy for LossOutput<B> {
    type ItemSync = LossOutput<Flex>;

    fn sync(self) -> LossOutput<Flex> {
        LossOutput(Tensor::from_data(self.0.into_data(), &Default::default()))
    }
}

impl Adaptor<LossInput<Flex>> for LossOutput<Flex> {
    fn adapt(&self) -> LossInput<Flex> {
        LossInput::new(self.0.clone())
    }
}

/// A model that the `Learner` can train, on either backend.
pub(crate) trait Task {
    /// The model on a backend.
    type Model<B: AutodiffBackend<InnerBackend = Flex>>: AutodiffModule<B, InnerModule: InferenceStep<Input = Batch, Output = LossOutput<Flex>>>
        + TrainStep<Input = Batch, Output = LossOutput<B>>
        + std::fmt::Display
        + 'static;

    /// The model with these weights.
    fn model<B: AutodiffBackend<InnerBackend = Flex>>(start: &Start) -> Self::Model<B>;
}

/// For models that have a `loss` on every backend: Burn's training step as its book writes it.
macro_rules! train_step {
    ($model:ident) => {
        impl<B: burn::tensor::backend::AutodiffBackend> burn::train::TrainStep for $model<B> {
            type Input = $crate::harness::learner::Batch;
            type Output = $crate::harness::learner::LossOutput<B>;

            fn step(&self, batch: Self::Input) -> burn::train::TrainOutput<Self::Output> {
                batch.note(self);
                let loss = self.loss(batch.size, batch.seed);
                let grads = loss.backward();
                burn::train::TrainOutput::new(
                    self,
                    grads,
                    $crate::harness::learner::LossOutput(loss),
                )
            }
        }
    };
}

/// Implements validation for a model.
macro_rules! inference_step {
    ($model:ident) => {
        impl<B: burn::tensor::backend::Backend> burn::train::InferenceStep for $model<B> {
            type Input = $crate::harness::learner::Batch;
            type Output = $crate::harness::learner::LossOutput<B>;

            fn step(&self, batch: Self::Input) -> Self::Output {
                batch.note(self);
                $crate::harness::learner::LossOutput(self.loss(batch.size, batch.seed))
            }
        }
    };
}

/// The task of training a scenario's model from the given weights.
macro_rules! task {
    ($scenario:ident, $model:ident) => {
        impl $crate::harness::learner::Task for $scenario {
            type Model<
                B: burn::tensor::backend::AutodiffBackend<InnerBackend = burn::backend::Flex>,
            > = $model<B>;

            fn model<B>(start: &$crate::harness::run::Start) -> $model<B>
            where
                B: burn::tensor::backend::AutodiffBackend<InnerBackend = burn::backend::Flex>,
            {
                start.model::<$scenario, B>()
            }
        }
    };
}

pub(crate) use {inference_step, task, train_step};

train_step!(RegressionModel);
inference_step!(RegressionModel);
task!(Regression, RegressionModel);

train_step!(TiedModel);
inference_step!(TiedModel);
task!(Tied, TiedModel);

train_step!(CnnModel);
inference_step!(CnnModel);
task!(Cnn, CnnModel);
