//! Training with burn-train's `Learner`: with gradient release it does what it does without.

mod checkpoints;
mod equality;
mod gradients;
mod harness;
mod killed;
mod metrics;
mod peak;
mod replicas;
mod resume;
mod selection;
mod user_code;
