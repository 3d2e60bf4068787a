//! Replicas of a model in threads: the weights of one process that adds up their gradients.

mod batch_norm;
mod budget;
mod clipping;
mod failure;
mod memory;
#[cfg(feature = "mpi")]
#[path = "../../../../../tests/burn-0.21/promises/harness/ranks.rs"]
mod processes;
pub(crate) mod reference;
mod states;
mod weights;

#[cfg(feature = "mpi")]
use burn_lean::{Mpi, Replicas};
