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
