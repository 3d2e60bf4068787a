//! Metrics of gradient release, for `.metric_train_numeric(..)`, and of replicas.
//!
//! Each of gradient release is made with the [`StepMonitor`](crate::StepMonitor) that the strategy
//! has. [`ClassificationCounts`] is what replicas send for their loss and accuracy.

mod classification;
mod monitor_metric;
mod readings;

pub use classification::{ClassificationCounts, CountedAccuracyInput, CountedAccuracyMetric};
pub use monitor_metric::MonitorMetric;
pub use readings::*;
