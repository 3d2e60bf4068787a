//! Scopes of recomputed activations in the models: where a user would set them, but only where a
//! test asks for them.

use std::cell::Cell;

use burn_gradient_release::checkpoint;

thread_local! {
    static IN_USE: Cell<bool> = const { Cell::new(false) };
}

/// One block of a model.
pub(crate) fn block<R>(forward: impl FnOnce() -> R) -> R {
    if IN_USE.get() {
        checkpoint(forward)
    } else {
        forward()
    }
}

/// Runs with a scope around each block.
pub(crate) fn in_use<R>(run: impl FnOnce() -> R) -> R {
    /// Also when `run` panics.
    struct Reset(bool);

    impl Drop for Reset {
        fn drop(&mut self) {
            IN_USE.set(self.0);
        }
    }

    let _reset = Reset(IN_USE.replace(true));
    run()
}
