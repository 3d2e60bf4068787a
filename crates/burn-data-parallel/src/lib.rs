//! Data parallel training for Burn with gradient release: reduce, then step.
//!
//! Each process trains a replica of the model on its share of every batch. The moment a gradient is
//! complete, its mean over all [`Replicas`] is taken, stepped with, and freed, while backward computes the
//! next. [`DataParallel`] does that; the processes are those that MPI's `mpirun` has started
//! (`Mpi`, with the feature `mpi`), or any other [`Communicator`]'s.
//!
//! With the feature `distributed` there is `DeviceParallel` for the devices of one process, which Burn's own
//! all-reduce (NCCL on CUDA) takes gradients between.
//!
//! Start with [`DataParallel`]. For burn-train's `Learner` see `GradientReleaseStrategy::with_replicas` of
//! `burn-gradient-release-train`.

#![forbid(unsafe_code)]

mod communicator;
mod data_parallel;
#[cfg(feature = "distributed")]
mod device_parallel;
mod error;
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
#[cfg(any(test, feature = "distributed"))]
mod threads;

#[cfg(feature = "mpi")]
pub use crate::mpi::Mpi;
pub use communicator::{Alone, CommunicationError, Communicator};
pub use data_parallel::DataParallel;
#[cfg(feature = "distributed")]
pub use device_parallel::DeviceParallel;
pub use error::ReplicaError;
pub use replicas::Replicas;
pub use share::ShareBatcher;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
