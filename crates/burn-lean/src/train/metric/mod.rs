//! Metrics of gradient release, for `.metric_train_numeric(..)`.
//!
//! Each is made with the [`StepMonitor`](crate::train::StepMonitor) that the strategy has.

mod monitor_metric;
mod readings;

pub use monitor_metric::{MonitorMetric, Reading};
pub use readings::*;
