//! The learning rate over a training.

use anyhow::{Result, anyhow};
use burn::lr_scheduler::composed::{ComposedLrScheduler, ComposedLrSchedulerConfig};
use burn::lr_scheduler::cosine::CosineAnnealingLrSchedulerConfig;
use burn::lr_scheduler::linear::LinearLrSchedulerConfig;
use burn::optim::LearningRate;

/// The schedule of a training: a rise to the learning rate, and a cosine from there on.
///
/// # Errors
///
/// Burn takes no such rate.
pub fn scheduler(learning_rate: LearningRate, iterations: usize) -> Result<ComposedLrScheduler> {
    let warm_up = (iterations / 10).max(1);
    ComposedLrSchedulerConfig::new()
        .cosine(CosineAnnealingLrSchedulerConfig::new(
            learning_rate,
            iterations,
        ))
        .linear(LinearLrSchedulerConfig::new(
            1.0 / (warm_up + 1) as f64,
            1.0,
            warm_up,
        ))
        .init()
        .map_err(|text| anyhow!("the learning rate cannot be scheduled: {text}"))
}
