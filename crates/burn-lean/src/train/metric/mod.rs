//! Metrics of gradient release, for `.metric_train_numeric(..)`.
//!
//! Each is made with the [`StepMonitor`](crate::train::StepMonitor) that the strategy has.

mod applied_learning_rate;
mod monitor_metric;
mod released;

pub use applied_learning_rate::{AppliedLearningRate, AppliedLearningRateMetric};
pub use monitor_metric::{MonitorMetric, Reading};
pub use released::{Released, ReleasedMetric};
