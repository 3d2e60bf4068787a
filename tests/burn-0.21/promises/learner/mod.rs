//! Training with burn-train's `Learner`: with gradient release it does what it does without.

mod accumulation;
mod checkpoints;
mod data_loader;
mod groups_and_clipping;
mod killed;
mod memory;
mod metrics;
mod models;
mod selection;
mod strategies;

use crate::harness::learner::Run;
use crate::harness::panic_of;

/// Fails unless the run panics with a text that has all these parts.
#[track_caller]
fn assert_refused(parts: &[&str], run: impl FnOnce() -> Run) {
    let said = panic_of(run);
    for part in parts {
        assert!(said.contains(part), "not `{part}`: {said}");
    }
}
