//! Training with burn-train's `Learner`: with gradient release it does what it does without.

mod accumulation;
mod blocking;
mod checkpoints;
mod data_loader;
mod groups;
mod killed;
mod monitor;
mod optimize;
mod parameters;
mod peak;
mod recompute;
mod resume_point;
mod schedulers;
mod selection;
mod strategies;
mod train_step;
mod two_passes;

use std::panic::{AssertUnwindSafe, catch_unwind};

use burn::lr_scheduler::cosine::{CosineAnnealingLrScheduler, CosineAnnealingLrSchedulerConfig};

use crate::harness::learner::{Run, Training};

/// The text of the panic that a training run ends with.
#[track_caller]
fn refusal(run: impl FnOnce() -> Run) -> String {
    let Err(payload) = catch_unwind(AssertUnwindSafe(run)) else {
        panic!("should have been refused");
    };
    let text = payload.downcast_ref::<String>().cloned();
    text.expect("panics with a text")
}

/// For runs that are refused: nobody is left writing to a log whose folder is gone.
fn unlogged() -> Training {
    Training {
        metrics_in_memory: true,
        ..Training::new()
    }
}

/// Rates that are different at every step.
fn rates() -> CosineAnnealingLrScheduler {
    CosineAnnealingLrSchedulerConfig::new(0.05, 5)
        .with_min_lr(0.001)
        .init()
        .expect("the rates are in range")
}

/// What the test harness calls a test of this module.
fn full_name(module: &str, test: &str) -> String {
    let (_crate, module) = module.split_once("::").expect("a module of the test crate");
    format!("{module}::{test}")
}
