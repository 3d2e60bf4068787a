//! What a backend does for an optimizer.

use burn::tensor::{backend::Backend, ops::FloatTensor};

use crate::{
    Number, Rule,
    moment::{Format, Moment},
};

/// A backend that optimizers of this crate run on.
///
/// With the provided methods every step is made of Burn's own operations. Flex steps in one pass over memory. A
/// backend of your own takes part with an empty implementation:
///
/// ```ignore
/// impl burn_lean_optim::LeanBackend for MyBackend {}
/// ```
pub trait LeanBackend: Backend {
    /// Steps a parameter in one pass, in the place of its weight and states, or hands everything back where the
    /// backend cannot.
    ///
    /// A buffer that somebody else holds too, as a saved record, is copied and not changed.
    ///
    /// # Errors
    ///
    /// The operands, unchanged, if the backend has no such pass for their types.
    fn step_in_place<R: Rule<N>, const N: usize>(
        rule: &R,
        operands: Operands<Self, N>,
    ) -> Result<Stepped<Self, N>, Box<Operands<Self, N>>> {
        let _ = rule;
        Err(Box::new(operands))
    }

    /// The mean of a measure over all elements, in one pass that makes no tensor; none where the backend would
    /// have to wait for the device.
    fn mean_in_place<M: Measure<N>, const N: usize>(
        measure: &M,
        operands: &Operands<Self, N>,
    ) -> Option<f32> {
        let _ = (measure, operands);
        None
    }
}

/// A number for each element, to be averaged before the step.
pub trait Measure<const N: usize>: Copy + Send + Sync {
    /// The number of an element in the first step.
    fn first<T: Number>(&self, grad: T) -> T;

    /// The number of an element in a later step.
    fn next<T: Number>(&self, grad: T, state: [T; N]) -> T;
}

/// A backend that rounds to bf16 by chance.
pub trait RoundStochastically: Backend {
    /// Rounds a tensor of 32 bits to bf16, up or down with the probability that makes the mean right.
    ///
    /// The same tensor and key give the same numbers.
    fn round_stochastically(tensor: FloatTensor<Self>, key: u64) -> FloatTensor<Self>;
}

/// What a step is made of.
#[derive(Debug)]
pub struct Operands<B: Backend, const N: usize> {
    /// The parameter.
    pub weight: FloatTensor<B>,
    /// Its gradient, of the same shape.
    pub grad: FloatTensor<B>,
    /// What is done to the gradient first.
    pub clip: Clip<B>,
    /// The states.
    pub states: States<B, N>,
}

/// The states before a step.
#[derive(Debug)]
pub enum States<B: Backend, const N: usize> {
    /// There are none yet, and those of the first step are to be in these formats.
    New([Format; N]),
    /// Those of the last step.
    Old([Moment<B>; N]),
}

/// What a step leaves.
#[derive(Debug)]
pub struct Stepped<B: Backend, const N: usize> {
    /// The parameter.
    pub weight: FloatTensor<B>,
    /// The states.
    pub states: [Moment<B>; N],
}

/// Clipping of a gradient.
#[derive(Clone, Debug)]
pub enum Clip<B: Backend> {
    /// None.
    None,
    /// Each element to at most this magnitude.
    Value(f32),
    /// The whole by this factor, a tensor of one element.
    Factor(FloatTensor<B>),
}
