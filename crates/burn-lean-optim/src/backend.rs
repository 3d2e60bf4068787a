//! What a backend does for an optimizer.

use burn::tensor::{backend::Backend, ops::FloatTensor};

use crate::{
    Rule,
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
    fn first(&self, grad: f32) -> f32;

    /// The number of an element in a later step.
    fn next(&self, grad: f32, state: [f32; N]) -> f32;
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
    /// How a weight in bf16 is rounded; without, it is Burn's arithmetic.
    pub rounding: Option<Rounding<B>>,
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
    /// What rounding left over, with [`Rounding::Kahan`].
    pub compensation: Option<FloatTensor<B>>,
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

/// How a weight in bf16 is rounded after its step in 32 bits.
#[derive(Clone, Debug)]
pub enum Rounding<B: Backend> {
    /// Up or down by chance, so that the mean is right.
    Stochastic {
        /// Chooses the random numbers: of the seed and the number of the step.
        key: u64,
    },
    /// To the nearest, keeping what is lost, in bf16, for the next step; nothing in the first.
    Kahan(Option<FloatTensor<B>>),
}
