//! Training with burn-train's `Learner`: with gradient release it does what it does without.

mod checkpoints;
mod checksums;
mod equality;
mod harness;
mod killed;
mod metrics;
mod optimize;
mod peak;
mod resume_point;
mod selection;
mod train_step;
