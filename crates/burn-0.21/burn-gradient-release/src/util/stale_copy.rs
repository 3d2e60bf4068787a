//! Copies of a parameter that plain Burn would not have.

use std::sync::atomic::{AtomicBool, Ordering};

use burn::module::ParamId;

/// Guards copies of a parameter that were taken after the parameter was stepped and before the
/// optimizer's step ended.
#[derive(Debug)]
pub(crate) struct StaleCopyGuard {
    param: ParamId,
    is_finished: AtomicBool,
}

impl StaleCopyGuard {
    pub(crate) fn new(param: ParamId) -> Self {
        Self {
            param,
            is_finished: AtomicBool::new(false),
        }
    }

    /// Ends the step. From now on the copies have weights that plain Burn's copies would not have.
    pub(crate) fn finish(&self) {
        self.is_finished.store(true, Ordering::Relaxed);
    }

    /// # Panics
    ///
    /// Once the step is finished: in plain Burn the copy would have the weights from before it.
    pub(crate) fn check(&self) {
        assert!(
            !self.is_finished.load(Ordering::Relaxed),
            "gradient release: parameter {} is read from a copy of the model that was taken after \
             backward had stepped it and before `step`: without gradient release the copy would \
             have the weights from before the step; take a copy that is to be kept before backward, \
             or of the model that `step` returns",
            self.param
        );
    }
}
