//! The operations of a backend for optimizers.

use burn::tensor::{
    DType, TensorMetadata,
    backend::Backend,
    ops::{FloatTensor, IntTensor},
};

use lean_arithmetic::optim::{Clip, Measure, Noise, Rule};

use crate::moment::{Format, Moment};

/// A backend that optimizers of this crate run on.
///
/// The provided methods make every step of Burn's own operations. Flex, and wgpu and CUDA with and
/// without fusion, step in one pass over memory. A backend of your own takes part with an empty
/// implementation:
///
/// ```ignore
/// impl burn_gradient_release_optim::LeanBackend for MyBackend {}
/// ```
pub trait LeanBackend: Backend {
    /// Whether the backend has a pass for a parameter of these types.
    fn has_pass(types: &Types<'_>) -> bool {
        let _ = types;
        false
    }

    /// Steps a parameter in one pass, in the place of its weight and states. Called for types that
    /// [it has a pass for](Self::has_pass).
    ///
    /// A buffer that something else holds as well, such as a saved record, is copied and not
    /// changed. A state in 8 bits cannot be infinite or NaN: such a state goes into its weight.
    fn step_in_place<R: Rule<N>, const N: usize>(
        rule: &R,
        operands: Operands<Self, N>,
    ) -> Stepped<Self, N> {
        let _ = (rule, operands);
        unreachable!("`has_pass` is false")
    }

    /// The mean of a measure over all elements, `[1]`, in one pass that makes no tensor of the
    /// parameter's size. Called for types that [it has a pass for](Self::has_pass).
    fn mean_in_place<M: Measure<N>, const N: usize>(
        measure: &M,
        operands: &Operands<Self, N>,
    ) -> FloatTensor<Self> {
        let _ = (measure, operands);
        unreachable!("`has_pass` is false")
    }
}

/// The types of the operands of a step.
#[derive(Clone, Copy, Debug)]
pub struct Types<'a> {
    /// The type of the parameter.
    pub weight: DType,
    /// The type of its gradient.
    pub grad: DType,
    /// The formats of its states.
    pub states: &'a [Format],
}

/// A backend that rounds to bf16 in ways that Burn does not: Flex, and wgpu and CUDA with and
/// without fusion.
pub trait RoundToBf16: Backend {
    /// Rounds numbers in 32 bits to one of their two neighbours in bf16, the nearer one with the
    /// larger probability; as a tensor of bf16, or of numbers in 32 bits that bf16 can hold. The
    /// same noise gives the same numbers on every backend.
    fn round_stochastically(tensor: FloatTensor<Self>, noise: Noise) -> FloatTensor<Self>;

    /// Rounds numbers in 32 bits to the nearest that bf16 has, in 32 bits still, and packs the
    /// lower halves of their bits two to a word from the lower one on: `[words]`, of the type
    /// `I32`.
    fn split(tensor: FloatTensor<Self>) -> (FloatTensor<Self>, IntTensor<Self>);

    /// Restores numbers in 32 bits that were [split](Self::split).
    fn rejoin(nearest: FloatTensor<Self>, low: IntTensor<Self>) -> FloatTensor<Self>;
}

/// The operands of a step.
#[derive(Clone, Debug)]
pub struct Operands<B: Backend, const N: usize> {
    /// The parameter.
    pub weight: FloatTensor<B>,
    /// Its gradient, of the same shape.
    pub grad: FloatTensor<B>,
    /// The clipping of the gradient before the step.
    pub clip: Clip,
    /// The states.
    pub states: States<B, N>,
    /// The noise that states in 8 bits are rounded with. Without, it is that of their scales.
    pub noise: Option<Noise>,
}

/// The states before a step.
#[derive(Clone, Debug)]
pub enum States<B: Backend, const N: usize> {
    /// There are no states yet. Those of the first step will have these formats.
    New([Format; N]),
    /// The states after the last step.
    Old([Moment<B>; N]),
}

/// The results of a step.
#[derive(Debug)]
pub struct Stepped<B: Backend, const N: usize> {
    /// The parameter.
    pub weight: FloatTensor<B>,
    /// The states.
    pub states: [Moment<B>; N],
}

impl<B: Backend, const N: usize> Operands<B, N> {
    pub(crate) fn has_pass(&self) -> bool
    where
        B: LeanBackend,
    {
        let states = match &self.states {
            States::New(formats) => *formats,
            States::Old(states) => states.each_ref().map(Moment::format),
        };
        B::has_pass(&Types {
            weight: self.weight.dtype(),
            grad: self.grad.dtype(),
            states: &states,
        })
    }

    /// Converts the tensors to those of another backend, for a decorator.
    pub fn map<C: Backend>(
        self,
        mut float: impl FnMut(FloatTensor<B>) -> FloatTensor<C>,
        mut int: impl FnMut(IntTensor<B>) -> IntTensor<C>,
    ) -> Operands<C, N> {
        Operands {
            weight: float(self.weight),
            grad: float(self.grad),
            clip: self.clip,
            states: match self.states {
                States::New(formats) => States::New(formats),
                States::Old(states) => {
                    States::Old(states.map(|state| state.map(&mut float, &mut int)))
                }
            },
            noise: self.noise,
        }
    }
}

impl<B: Backend, const N: usize> Stepped<B, N> {
    /// Converts the tensors to those of another backend, for a decorator.
    pub fn map<C: Backend>(
        self,
        mut float: impl FnMut(FloatTensor<B>) -> FloatTensor<C>,
        mut int: impl FnMut(IntTensor<B>) -> IntTensor<C>,
    ) -> Stepped<C, N> {
        Stepped {
            weight: float(self.weight),
            states: self.states.map(|state| state.map(&mut float, &mut int)),
        }
    }
}
