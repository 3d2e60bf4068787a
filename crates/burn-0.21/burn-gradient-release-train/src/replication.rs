//! Training in one process or in several.

use burn::{
    tensor::{Tensor, backend::Backend},
    train::{ClassificationOutput, MultiLabelClassificationOutput, RegressionOutput},
};
use burn_gradient_release_data_parallel::{DataParallel, ReplicaError};

/// Training in one process.
#[derive(Clone, Copy, Debug)]
pub struct OneProcess;

/// What a [`GradientReleaseStrategy`](crate::GradientReleaseStrategy) needs of what a training step
/// puts out.
pub trait Replication<Output>: sealed::Sealed + 'static {
    /// The outputs of all replicas.
    #[doc(hidden)]
    fn gather(parallel: &DataParallel, output: Output) -> Result<Output, ReplicaError>;
}

impl<Output> Replication<Output> for OneProcess {
    fn gather(_: &DataParallel, output: Output) -> Result<Output, ReplicaError> {
        Ok(output)
    }
}

impl<Output: GatherOutput> Replication<Output> for DataParallel {
    fn gather(parallel: &DataParallel, output: Output) -> Result<Output, ReplicaError> {
        output.gather(parallel)
    }
}

/// What a training step puts out, to be put together from that of all replicas: the metrics of the
/// first replica are then those of whole batches.
///
/// Burn's outputs are scores and targets, which the first replica is sent in every iteration. Where
/// the metrics need only their sums, an output of a few numbers takes a few bytes:
/// [`ClassificationCounts`](crate::metric::ClassificationCounts) for loss and accuracy, or your own
/// with [`DataParallel::gather_numbers`].
pub trait GatherOutput: Sized {
    /// Puts the outputs together on the first replica, with [`DataParallel::gather`]. What the
    /// others return is not seen.
    ///
    /// # Errors
    ///
    /// If a replica does something else.
    fn gather(self, parallel: &DataParallel) -> Result<Self, ReplicaError>;
}

/// For outputs of a loss, an output and its targets.
macro_rules! gather_output {
    ($($output:ident),*) => {$(
        impl<B: Backend> GatherOutput for $output<B> {
            fn gather(self, parallel: &DataParallel) -> Result<Self, ReplicaError> {
                Ok(Self {
                    loss: mean(parallel, self.loss)?,
                    output: parallel.gather("the outputs of a batch", self.output)?,
                    targets: parallel.gather("the targets of a batch", self.targets)?,
                })
            }
        }
    )*};
}

gather_output!(
    ClassificationOutput,
    MultiLabelClassificationOutput,
    RegressionOutput
);

/// The mean over replicas, as for gradients: each replica counts the same.
fn mean<B: Backend>(
    parallel: &DataParallel,
    loss: Tensor<B, 1>,
) -> Result<Tensor<B, 1>, ReplicaError> {
    Ok(parallel.gather("the losses of a batch", loss)?.mean())
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::OneProcess {}
    impl Sealed for burn_gradient_release_data_parallel::DataParallel {}
}
