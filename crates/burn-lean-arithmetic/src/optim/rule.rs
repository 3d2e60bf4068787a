//! What an optimizer does with one element.

use super::Number;

/// The step of one element of a parameter, with `N` elements of state.
///
/// Written once, it runs on single numbers or becomes a kernel where a backend can step in place,
/// and runs on whole tensors elsewhere. Factors that are the same for all elements, as the learning
/// rate, are fields of the rule, so that a rule lives for one step.
///
/// Which operations it does should depend on its configuration rather than on factors that change
/// from step to step: on a GPU another sequence of operations is another kernel to compile. Scalars
/// of the operations may change freely.
pub trait Rule<const N: usize>: Copy + Send + Sync + 'static {
    /// The weight and the states after the first step.
    fn first<T: Number>(&self, weight: T, grad: T) -> (T, [T; N]);

    /// The weight and the states after a later step.
    fn next<T: Number>(&self, weight: T, grad: T, state: [T; N]) -> (T, [T; N]);
}

/// A number for each element, to be averaged before the step.
pub trait Measure<const N: usize>: Copy + Send + Sync + 'static {
    /// The number of an element in the first step.
    fn first<T: Number>(&self, grad: T) -> T;

    /// The number of an element in a later step.
    fn next<T: Number>(&self, grad: T, state: [T; N]) -> T;
}

/// The square of the gradient.
#[derive(Clone, Copy, Debug)]
pub struct Squares;

impl Measure<0> for Squares {
    #[inline(always)]
    fn first<T: Number>(&self, grad: T) -> T {
        grad.square()
    }

    #[inline(always)]
    fn next<T: Number>(&self, grad: T, []: [T; 0]) -> T {
        self.first(grad)
    }
}

/// A rule that leaves the weight as it is.
#[derive(Clone, Copy, Debug)]
pub struct MomentsAlone<R>(pub R);

impl<R: Rule<N>, const N: usize> Rule<N> for MomentsAlone<R> {
    #[inline(always)]
    fn first<T: Number>(&self, weight: T, grad: T) -> (T, [T; N]) {
        let (_, states) = self.0.first(weight.clone(), grad);
        (weight, states)
    }

    #[inline(always)]
    fn next<T: Number>(&self, weight: T, grad: T, states: [T; N]) -> (T, [T; N]) {
        let (_, states) = self.0.next(weight.clone(), grad, states);
        (weight, states)
    }
}
