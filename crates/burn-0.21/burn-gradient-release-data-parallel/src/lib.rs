//! Data parallel training for Burn 0.21 with gradient release: reduce, then step.
//!
//! Each process trains a replica of the model on its share of every batch. The moment a gradient is
//! complete, its mean over all [`Replicas`] is taken, stepped with, and freed, while backward
//! computes the next. [`DataParallel`] does that; the processes are those that MPI's `mpirun` has
//! started (`Mpi`, with the feature `mpi`), or any other [`Communicator`]'s.
//!
//! With the feature `distributed` there is `DeviceParallel` for the devices of one process, which
//! Burn's own all-reduce (NCCL on CUDA) takes gradients between.
//!
//! The processes, their means and their agreement know no version of Burn: they are
//! `lean-replicas`.
//!
//! Start with [`DataParallel`]. For burn-train's `Learner` see
//! `GradientReleaseStrategy::with_replicas` of `burn-gradient-release-train`.

#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]

mod data_parallel;
#[cfg(feature = "distributed")]
mod device_parallel;
mod model;
mod share;
mod states;
#[cfg(test)]
mod tests;

pub use data_parallel::DataParallel;
#[cfg(feature = "distributed")]
pub use device_parallel::DeviceParallel;
#[cfg(feature = "mpi")]
pub use lean_replicas::Mpi;
pub use lean_replicas::{Alone, CommunicationError, Communicator, ReplicaError, Replicas};
pub use share::ShareBatcher;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
