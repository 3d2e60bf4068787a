//! Metrics of gradient release, for `.metric_train_numeric(..)`.
//!
//! Each is made with the [`StepMonitor`](crate::StepMonitor) that the strategy has.

mod applied_learning_rate;
mod gauge;
mod peak_memory;
mod released;

pub use applied_learning_rate::AppliedLearningRateMetric;
pub use peak_memory::PeakMemoryMetric;
pub use released::ReleasedMetric;
