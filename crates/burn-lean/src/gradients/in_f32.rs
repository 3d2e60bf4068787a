//! Whether an optimizer takes gradients in f32 of weights in half precision.
//!
//! Burn's optimizers do not: the backend panics in the middle of the backward pass, or reads the one
//! type as the other. An optimizer cannot be asked, so those that do say so in each step.

use std::cell::Cell;

thread_local! {
    static TAKES: Cell<bool> = const { Cell::new(false) };
}

/// Called by an optimizer that takes them, in its step.
#[cfg(feature = "optim")]
pub(crate) fn takes_f32_gradients() {
    TAKES.set(true);
}

/// Whether the optimizer of a step takes them.
pub(crate) fn asked(step: impl FnOnce()) -> bool {
    TAKES.set(false);
    step();
    TAKES.get()
}
