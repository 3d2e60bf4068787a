//! Steps in one pass over a batch, or in two.

/// Once.
#[derive(Clone, Copy, Debug)]
pub struct InOnePass;

/// Twice, for clipping by a norm of all gradients: see
/// [`with_two_passes`](crate::GradientReleaseStrategy::with_two_passes).
#[derive(Clone, Copy, Debug)]
pub struct InTwoPasses;

/// Requirements of a [`GradientReleaseStrategy`](crate::GradientReleaseStrategy) on a batch.
pub trait Passes<Input>: sealed::Sealed + 'static {
    /// The batch for the second pass, if there is one.
    fn again(input: &Input) -> Option<Input>;
}

impl<Input> Passes<Input> for InOnePass {
    fn again(_: &Input) -> Option<Input> {
        None
    }
}

impl<Input: Clone> Passes<Input> for InTwoPasses {
    fn again(input: &Input) -> Option<Input> {
        Some(input.clone())
    }
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::InOnePass {}
    impl Sealed for super::InTwoPasses {}
}
