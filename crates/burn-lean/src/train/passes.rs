//! Steps in one pass over a batch, or in two.

/// One pass.
#[derive(Clone, Copy, Debug)]
pub struct InOnePass;

/// Two passes: see
/// [`with_two_passes`](crate::train::GradientReleaseStrategy::with_two_passes).
#[derive(Clone, Copy, Debug)]
pub struct InTwoPasses;

/// What a [`GradientReleaseStrategy`](crate::train::GradientReleaseStrategy) needs of a batch:
/// `Clone` for two passes.
pub trait Passes<Batch>: sealed::Sealed + 'static {
    #[doc(hidden)]
    const ARE_TWO: bool;

    /// The batch for the second pass, if there is one.
    #[doc(hidden)]
    fn again(batch: &Batch) -> Option<Batch>;
}

impl<Batch> Passes<Batch> for InOnePass {
    const ARE_TWO: bool = false;

    fn again(_: &Batch) -> Option<Batch> {
        None
    }
}

impl<Batch: Clone> Passes<Batch> for InTwoPasses {
    const ARE_TWO: bool = true;

    fn again(batch: &Batch) -> Option<Batch> {
        Some(batch.clone())
    }
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::InOnePass {}
    impl Sealed for super::InTwoPasses {}
}
