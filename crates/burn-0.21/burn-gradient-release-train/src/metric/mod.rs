//! Metrics of gradient release, for `.metric_train_numeric(..)`, and of replicas.
//!
//! Each of gradient release is made with the [`StepMonitor`](crate::StepMonitor) that the strategy
//! has. [`ClassificationCounts`] is what replicas send for their loss and accuracy.

mod applied_learning_rate;
mod classification;
mod grad_norm;
mod monitor_metric;
mod peak_memory;
mod released;

pub use applied_learning_rate::{AppliedLearningRate, AppliedLearningRateMetric};
pub use classification::{ClassificationCounts, CountedAccuracyInput, CountedAccuracyMetric};
pub use grad_norm::{GradNorm, GradNormMetric};
pub use monitor_metric::MonitorMetric;
pub use peak_memory::{PeakMemoryMetric, StepPeak};
pub use released::{Released, ReleasedMetric};
