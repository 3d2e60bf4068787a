//! Replicas of a model in threads: the weights of one process that adds up their gradients.

mod batch_norm;
mod budget;
mod clipping;
mod failure;
mod memory;
#[cfg(feature = "mpi")]
mod processes;
mod reference;
mod states;
mod tokens;
mod weights;
