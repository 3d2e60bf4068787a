//! How the code of a scope runs on this thread.

use std::cell::Cell;

use crate::error::ReleaseError;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// No scope runs.
    Outside,
    /// A scope runs for the first time, without a tape.
    Recording,
    /// Backward runs a scope again, on a tape of its own.
    Replaying,
}

thread_local! {
    /// Of this thread: the code of a scope is the user's, and calls us without a word of it.
    static MODE: Cell<Mode> = const { Cell::new(Mode::Outside) };
}

pub(crate) fn mode() -> Mode {
    MODE.get()
}

pub(super) fn recording<R>(run: impl FnOnce() -> R) -> R {
    within(Mode::Recording, run)
}

pub(super) fn replaying<R>(run: impl FnOnce() -> R) -> R {
    within(Mode::Replaying, run)
}

fn within<R>(mode: Mode, run: impl FnOnce() -> R) -> R {
    struct Back(Mode);
    impl Drop for Back {
        fn drop(&mut self) {
            MODE.set(self.0);
        }
    }
    let _back = Back(MODE.replace(mode));
    run()
}

/// Refuses what would have to wait for itself in a scope.
pub(crate) fn check_outside_of_scopes() -> Result<(), ReleaseError> {
    match mode() {
        Mode::Outside => Ok(()),
        Mode::Recording | Mode::Replaying => Err(ReleaseError::InScope),
    }
}
