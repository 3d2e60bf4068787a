//! Processes that train replicas of a model together, whatever version of Burn the model is of.
//!
//! [`Replicas`] are the processes, which MPI's `mpirun` has started (`Mpi`, with the feature
//! `mpi`), or any other [`Communicator`]'s. [`Exchange`] is what they exchange in training:
//! gradients for their mean, the weights of owners, and whether they do the same.
//!
//! Nothing here depends on Burn: tensors are shapes, numbers and bytes. `burn-gradient-release-data-parallel` (Burn
//! 0.21) and `burn-lean` with its feature `data-parallel` (Burn 0.22) give them theirs.

#![forbid(unsafe_code)]

mod channel;
mod communicator;
mod error;
mod exchange;
#[cfg(any(feature = "mpi", test))]
mod machines;
mod mean;
mod model;
#[cfg(feature = "mpi")]
mod mpi;
mod replicas;
mod segments;
mod sharding;
mod share;
#[cfg(test)]
mod tests;
mod threads;

#[cfg(feature = "mpi")]
pub use crate::mpi::Mpi;
pub use communicator::{Alone, CommunicationError, Communicator};
pub use error::ReplicaError;
pub use exchange::{Exchange, Recipients};
pub use mean::Summand;
pub use model::{Known, ModelWalk, kind};
pub use replicas::{Pending, Replicas};
pub use share::share;
pub use threads::Threads;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
