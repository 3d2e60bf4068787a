//! What an optimizer does with one element.

use crate::Number;

/// The step of one element of a parameter, with `N` elements of state.
///
/// Written once, it runs on single numbers where a backend can step [in place](crate::LeanBackend), and on
/// whole tensors elsewhere. Factors that are the same for all elements, as the learning rate, are fields of
/// the rule, so that a rule lives for one step.
pub trait Rule<const N: usize>: Copy + Send + Sync + 'static {
    /// The weight and the states after the first step.
    fn first<T: Number>(&self, weight: T, grad: T) -> (T, [T; N]);

    /// The weight and the states after a later step.
    fn next<T: Number>(&self, weight: T, grad: T, state: [T; N]) -> (T, [T; N]);
}
