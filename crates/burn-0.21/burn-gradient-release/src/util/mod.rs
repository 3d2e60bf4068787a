//! Helpers that know nothing of tapes and parameters.

pub(crate) mod discard;
pub(crate) mod inner;
pub(crate) mod lend;
pub(crate) mod lock;
pub(crate) mod progress;
pub(crate) mod stale_copy;
