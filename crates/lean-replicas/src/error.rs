//! Why replicas cannot go on.

use std::time::Duration;

/// Why the replicas of a model cannot go on together. After it, every call is refused with it: let
/// the process end, which ends the others.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ReplicaError {
    /// A replica makes another call than the others.
    #[error("rank {rank} of {size}: the replicas do not do the same: {differences}")]
    Differs {
        /// Rank of the process that reports it.
        rank: usize,
        /// Number of processes.
        size: usize,
        /// The operations of the processes, in words.
        differences: String,
    },

    /// The others did not reach this call in time.
    #[error(
        "rank {rank} of {size} has waited {waited:?} for the others at {what}; a longer time is set with \
         `Replicas::with_timeout`"
    )]
    Timeout {
        /// Rank of the process that waited.
        rank: usize,
        /// Number of processes.
        size: usize,
        /// Time that this process waited.
        waited: Duration,
        /// The operation that it waited at.
        what: String,
    },

    /// The other processes did not join in time.
    #[error(
        "the other processes were not joined within {waited:?}: each of them has to run and to join; a longer \
         time is set with `Replicas::new_within`"
    )]
    NotJoined {
        /// Time that this process waited.
        waited: Duration,
    },

    /// The communicator has failed.
    #[error("the replicas cannot communicate: {reason}")]
    Communication {
        /// The message of the communicator.
        reason: String,
    },

    /// A tensor cannot be sent.
    #[error("{what} is of type {dtype}, which cannot be sent to the other replicas")]
    DType {
        /// The tensor.
        what: String,
        /// Its type.
        dtype: String,
    },

    /// A device with several replicas (with the feature `distributed`).
    #[error("{device} is given twice, and a device has one replica")]
    SameDevice {
        /// The device.
        device: String,
    },

    /// A gradient on the device of another replica, or of none (with the feature `distributed`).
    #[error(
        "the gradient is on {device}, and this replica's device is {own}: move the model there with \
         `model.fork(&device)`, and make its batches there"
    )]
    OtherDevice {
        /// Device of the gradient.
        device: String,
        /// Device of this replica.
        own: String,
    },

    /// A parameter that was in no model known to all replicas.
    #[error(
        "parameter {param} is in no model that the replicas have compared: give the model to \
         `broadcast` or `verify` before it is trained"
    )]
    UnknownParameter {
        /// The id of the parameter.
        param: String,
    },

    /// A model in the middle of a step.
    #[error(
        "{path} is armed, and has no weight of its own: give the model to `broadcast` or `verify` \
         before `arm`, or after `step`, and `materialize()` a copy that was taken between"
    )]
    Armed {
        /// Path of the parameter in the model.
        path: String,
    },

    /// Optimizer states that are half old, half new, or are no record of Burn's.
    #[error("optimizer states cannot be put together: {reason}")]
    States {
        /// The reason.
        reason: String,
    },
}
