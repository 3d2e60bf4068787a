//! Metrics of gradient release, for `.metric_train_numeric(..)`.
//!
//! Each is made with the [`StepMonitor`](crate::train::StepMonitor) that the strategy has.

mod applied_learning_rate;
mod grad_norm;
mod monitor_metric;
mod peak_memory;
mod released;

pub use applied_learning_rate::{AppliedLearningRate, AppliedLearningRateMetric};
pub use grad_norm::{GradNorm, GradNormMetric};
pub use monitor_metric::{MonitorMetric, Reading};
pub use peak_memory::{PeakMemoryMetric, StepPeak};
pub use released::{Released, ReleasedMetric};
