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

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::harness::learner::Run;

/// Fails unless the run panics with a text that has all these parts.
#[track_caller]
fn assert_refused(parts: &[&str], run: impl FnOnce() -> Run) {
    let Err(payload) = catch_unwind(AssertUnwindSafe(run)) else {
        panic!("should have been refused: {parts:?}");
    };
    let said = payload.downcast_ref::<String>().expect("a text");
    for part in parts {
        assert!(said.contains(part), "not `{part}`: {said}");
    }
}

/// What the test harness calls a test of this module.
fn full_name(module: &str, test: &str) -> String {
    let (_crate, module) = module.split_once("::").expect("a module of the test crate");
    format!("{module}::{test}")
}
