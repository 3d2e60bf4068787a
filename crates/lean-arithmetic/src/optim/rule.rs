//! The step of an optimizer for one element.

use super::Number;

/// The step of one element of a parameter, with `N` elements of state.
///
/// It runs on single numbers or becomes a kernel where a backend can step in place, and runs on
/// whole tensors elsewhere. Factors that are the same for all elements, such as the learning
/// rate, are fields of the rule: a rule lives for one step.
///
/// The sequence of its operations may depend on its configuration and on whether there are states,
/// but not on factors that change from step to step: on a GPU, each sequence is a kernel of its own
/// to compile. The scalars in the operations may change in every step.
pub trait Rule<const N: usize>: Copy + Send + Sync + 'static {
    /// Returns the new weight and states. `states` is `None` in the first step.
    fn step<T: Number>(&self, weight: T, grad: T, states: Option<[T; N]>) -> (T, [T; N]);
}

/// A number for each element, whose mean is needed before the step.
pub trait Measure<const N: usize>: Copy + Send + Sync + 'static {
    /// Returns the number of one element. `states` is `None` in the first step.
    fn measure<T: Number>(&self, grad: T, states: Option<[T; N]>) -> T;
}

/// A rule that updates the states of the rule inside, and leaves the weight unchanged.
#[derive(Clone, Copy, Debug)]
pub struct MomentsAlone<R>(pub R);

impl<R: Rule<N>, const N: usize> Rule<N> for MomentsAlone<R> {
    #[inline(always)]
    fn step<T: Number>(&self, weight: T, grad: T, states: Option<[T; N]>) -> (T, [T; N]) {
        let (_, states) = self.0.step(weight.clone(), grad, states);
        (weight, states)
    }
}
