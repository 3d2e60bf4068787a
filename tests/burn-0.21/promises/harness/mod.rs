//! The shared tools: models, optimizers, runs over both backends, and comparisons.

pub(crate) mod hooked;
pub(crate) mod learner;
pub(crate) mod memory;
pub(crate) mod models;
pub(crate) mod noise;
pub(crate) mod process;
#[cfg(has_mpi)]
pub(crate) mod ranks;
pub(crate) mod recipes;
pub(crate) mod run;
pub(crate) mod scopes;
pub(crate) mod turn;
pub(crate) mod weights;

use std::panic::{AssertUnwindSafe, catch_unwind};

use burn::backend::{Autodiff, Flex, autodiff::checkpoint::strategy::NoCheckpointing};
use burn_gradient_release::GradientRelease;
#[cfg(has_mpi)]
use burn_gradient_release_data_parallel::{Mpi, Replicas};

/// Plain Burn, the reference.
pub(crate) type Plain<B = Flex, C = NoCheckpointing> = Autodiff<B, C>;
/// That backend with gradient release.
pub(crate) type Release<B = Flex, C = NoCheckpointing> = GradientRelease<Autodiff<B, C>>;

pub(crate) use hooked::Hooked;
pub(crate) use noise::noise;
pub(crate) use recipes::Recipe;
pub(crate) use weights::Weights;

/// The text of the panic that `run` ends with.
#[track_caller]
pub(crate) fn panic_of<T>(run: impl FnOnce() -> T) -> String {
    let Err(payload) = catch_unwind(AssertUnwindSafe(run)) else {
        panic!("it does not panic");
    };
    let text = payload.downcast_ref::<String>().cloned();
    text.unwrap_or_else(|| payload.downcast_ref::<&str>().expect("a text").to_string())
}

/// What a call hands back that is refused with an error like this pattern.
macro_rules! refused {
    ($call:expr, $($error:tt)+) => {{
        let refused = match $call {
            Ok(_) => panic!("it is not refused"),
            Err(refused) => refused,
        };
        let error = refused.error();
        assert!(matches!(error, $($error)+), "{error:?}");
        refused.into_given()
    }};
}
pub(crate) use refused;

/// What most tests need.
pub(crate) mod prelude {
    pub(crate) use burn::backend::Flex;
    pub(crate) use burn::backend::autodiff::checkpoint::strategy::{
        BalancedCheckpointing, CheckpointStrategy, NoCheckpointing,
    };
    pub(crate) use burn::grad_clipping::GradientClippingConfig;
    pub(crate) use burn::module::{
        AutodiffModule, Module, ModuleMapper, ModuleVisitor, Param, ParamId,
    };
    pub(crate) use burn::nn::{LayerNorm, LayerNormConfig, Linear, LinearConfig};
    pub(crate) use burn::optim::adaptor::OptimizerAdaptor;
    pub(crate) use burn::optim::decay::WeightDecayConfig;
    pub(crate) use burn::optim::momentum::MomentumConfig;
    pub(crate) use burn::optim::{
        Adam, AdamConfig, AdamWConfig, GradientsAccumulator, GradientsParams, Optimizer, Sgd,
        SgdConfig, SimpleOptimizer,
    };
    pub(crate) use burn::tensor::backend::{AutodiffBackend, Backend, BackendTypes};
    pub(crate) use burn::tensor::{Int, Tensor, TensorData};
    pub(crate) use burn_gradient_release::{
        GroupOptions, NormClipping, Outcome, ParamGroup, Recompute, ReleaseAccumulator,
        ReleaseError, ReleaseOptimizer, StepReport, WithGradientRelease, checkpoint,
    };

    pub(crate) use super::memory::{alone, parameter_bytes};
    pub(crate) use super::models::{
        Cnn, Deep, Mlp, MlpModel, NormalisedRecurrent, Recurrent, RecurrentModel, Scenario, Size,
        Tied, Transformer, UNet, Views, WeightNorm,
    };
    pub(crate) use super::run::{
        OUTCOMES, RATE, Start, Trajectory, armed_step, assert_all_released, assert_run_released,
        assert_same_steps, gradients, ordinary_step, outcomes, trainable,
    };
    pub(crate) use super::weights::{load, readable, save};
    pub(crate) use super::{
        Hooked, Plain, Recipe, Release, Weights, noise, panic_of, refused, run, scopes, turn,
    };
    pub(crate) use crate::ALLOCATIONS;

    pub(crate) type P = Plain;
    pub(crate) type R = Release;
}
