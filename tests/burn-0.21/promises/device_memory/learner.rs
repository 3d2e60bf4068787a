//! The `Learner` on the device: its metric shows the device's peak.

use burn::train::logger::InMemoryMetricLogger;
use burn::train::{Learner, SupervisedTraining};
use burn_gradient_release_train::metric::PeakMemoryMetric;
use burn_gradient_release_train::{GradientReleaseStrategy, StepMonitor};

use super::Metered;
use super::device_memory::{Device, P, R, memory};
use crate::harness::learner::{RegressionModel, Renderer, Strategy, Task, Training, WeightLog};
use crate::harness::prelude::*;

/// The weights at the end, and the peaks that were shown, in bytes, where there was one.
fn train<B, O>(
    task: &Task,
    optim: O,
    monitor: &StepMonitor,
    strategy: Option<Strategy<B, f64, RegressionModel<B>, O>>,
) -> (u64, Vec<Option<f64>>)
where
    B: AutodiffBackend<InnerBackend = Metered>,
    O: Optimizer<RegressionModel<B>, B> + 'static,
{
    let training = Training {
        size: Size::Large,
        epochs: 2,
        batches: 3,
        ..Training::new()
    };
    let renderer = Renderer::new(training.rendering);
    let mut supervised = SupervisedTraining::new(
        training.directory.path(),
        training.loader::<B>(&WeightLog::none()),
        training.valid_loader::<Metered>(),
    )
    .with_application_logger(None)
    .with_metric_logger(InMemoryMetricLogger::new())
    .renderer(renderer.clone())
    .metric_train_numeric(PeakMemoryMetric::new(monitor))
    .num_epochs(training.epochs);
    if let Some(strategy) = strategy {
        supervised = supervised.with_training_strategy(strategy);
    }
    let model = task.model::<B>();
    let result = supervised.launch(Learner::new(model, optim, RATE));
    let shown = renderer.train("Peak Memory");
    let peaks = shown
        .iter()
        .map(|shown| (shown.count > 0).then_some(shown.value * f64::from(1 << 20)));
    let weights = Weights::of::<Metered, _>(&result.model).digest();
    (weights, peaks.collect())
}

#[test]
fn the_metric_shows_the_peak_of_the_device() {
    let memory = memory();
    let task = Task::large();
    let floor = memory.usage().in_use;
    memory.reset_peak();
    let (expected, unknown) =
        train::<P, _>(&task, AdamConfig::new().init(), &StepMonitor::new(), None);
    let plain = (memory.peak().in_use - floor) as f64;
    assert!(unknown.iter().all(Option::is_none), "{unknown:?}");

    let floor = memory.usage().in_use as f64;
    let monitor = StepMonitor::new().with_memory(memory);
    let strategy = GradientReleaseStrategy::new(Device::default()).with_monitor(monitor.clone());
    let optim = AdamConfig::new().init().with_gradient_release();
    let (weights, shown) = train::<R, _>(&task, optim, &monitor, Some(strategy.into()));
    assert_eq!(weights, expected, "the same run");

    let (parameters, _) = parameter_bytes::<P, _>(&task.model::<P>());
    let parameters = parameters as f64;
    let peak = shown.iter().flatten().copied().fold(0.0, f64::max) - floor;
    println!("P {parameters}; peak: plain {plain}, release {peak}; shown {shown:?}");
    assert_eq!(shown.len(), 6, "one for each iteration");
    assert!(peak >= 3.0 * parameters, "the weights and Adam's states");
    assert!(peak + parameters / 2.0 <= plain, "too little is saved");
}
