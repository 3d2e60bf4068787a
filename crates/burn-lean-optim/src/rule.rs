//! What an optimizer does with one element.

use crate::Number;

/// The step of one element of a parameter, with `N` elements of state.
///
/// Written once, it runs on single numbers or becomes a kernel where a backend can step [in
/// place](crate::LeanBackend), and runs on whole tensors elsewhere. Factors that are the same for all elements, as
/// the learning rate, are fields of the rule, so that a rule lives for one step.
///
/// Which operations it does should depend on its configuration rather than on factors that change from step to step: on a
/// GPU another sequence of operations is another kernel to compile. Scalars of the operations may change freely.
pub trait Rule<const N: usize>: Copy + Send + Sync + 'static {
    /// The weight and the states after the first step.
    fn first<T: Number>(&self, weight: T, grad: T) -> (T, [T; N]);

    /// The weight and the states after a later step.
    fn next<T: Number>(&self, weight: T, grad: T, state: [T; N]) -> (T, [T; N]);
}
