//! The backend below `Autodiff`.

#[cfg(not(feature = "distributed"))]
use burn::tensor::backend::Backend;
#[cfg(feature = "distributed")]
use burn::tensor::backend::distributed::DistributedBackend;

/// The bound of `Autodiff` on the backend below it: any [`Backend`]; with the feature
/// `distributed`, a `DistributedBackend`.
#[cfg(not(feature = "distributed"))]
pub trait AutodiffInner: Backend {}

#[cfg(not(feature = "distributed"))]
impl<B: Backend> AutodiffInner for B {}

/// The bound of `Autodiff` on the backend below it: with the feature `distributed`, a
/// [`DistributedBackend`].
#[cfg(feature = "distributed")]
pub trait AutodiffInner: DistributedBackend {}

#[cfg(feature = "distributed")]
impl<B: DistributedBackend> AutodiffInner for B {}
