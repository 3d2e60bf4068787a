//! The metrics of gradient release say what happened, at the iteration at which it happened.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use burn::backend::Flex;
use burn::module::Module;
use burn::optim::AdamConfig;
use burn::tensor::Tensor;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn_gradient_release_train::{PeakMemory, StepMonitor};

use super::rates;
use super::selection::early_stopping;
use crate::harness::learner::{
    Released, Run, Shown, Stock, Task, Training, inference_step, train, train_step,
};
use crate::harness::models::{Regression, RegressionModel, Scenario, Size};
use crate::harness::run::{Start, trainable};
use crate::harness::{Plain, noise};

/// Names of the metrics.
const RELEASED: &str = "Released";
const APPLIED: &str = "Applied Learning Rate";
const PEAK: &str = "Peak Memory";

fn run<T: Task + Scenario>(training: &Training) -> Run {
    let start = Start::new::<T>(Size::Small);
    train::<Released, T, _, _, _>(&start, &AdamConfig::new(), rates(), training)
}

fn values(shown: &[Shown]) -> Vec<f64> {
    shown.iter().map(|shown| shown.value).collect()
}

/// Fails unless each of these is said to be no number: one that counts for nothing, and is finite
/// for whoever plots it or adds it up.
#[track_caller]
fn assert_none(shown: &[Shown]) {
    for shown in shown {
        assert_eq!((shown.count, shown.text.as_str()), (0, "none yet"));
        assert!(shown.value.is_finite());
    }
}

/// Number of parameters that a task trains.
fn parameters<T: Task + Scenario>() -> usize {
    let start = Start::new::<T>(Size::Small);
    trainable::<Plain, _>(&<T as Task>::model::<Plain>(&start))
}

/// The rates of so many iterations.
fn scheduled(iterations: usize) -> Vec<f64> {
    use burn::lr_scheduler::LrScheduler;
    let mut rates = rates();
    (0..iterations).map(|_| rates.step()).collect()
}

#[test]
fn an_mlp_is_released_from_the_first_iteration_on() {
    let run = run::<Regression>(&Training::new());
    let shown = run.renderer.train(RELEASED);
    assert_eq!(values(&shown), [100.0; 21]);
    assert_eq!(parameters::<Regression>(), 6);
    for shown in shown {
        assert_eq!(
            shown.text,
            "epoch 100.0 % - batch 100.0 % (6 of 6 parameters)"
        );
    }
}

/// The lowest use of the first layer does not lead to the loss.
#[derive(Module, Debug)]
struct DeadEndModel<B: Backend> {
    regression: RegressionModel<B>,
}

impl<B: Backend> DeadEndModel<B> {
    fn loss(&self, size: Size, step: u64) -> Tensor<B, 1> {
        let layers = &self.regression.layers;
        let mut x = noise::<B, 2>(step, [4, 8], &Default::default());
        let _dead_end = layers[0].forward(x.clone());
        for layer in layers {
            x = layer.forward(x.tanh());
        }
        assert_eq!(size, Size::Small);
        x.square().mean()
    }
}

train_step!(DeadEndModel);
inference_step!(DeadEndModel);

struct DeadEnd;

impl Task for DeadEnd {
    type Model<B: AutodiffBackend<InnerBackend = Flex>> = DeadEndModel<B>;

    fn model<B: AutodiffBackend<InnerBackend = Flex>>(start: &Start) -> DeadEndModel<B> {
        DeadEndModel {
            regression: start.model::<Regression, B>(),
        }
    }
}

#[test]
fn late_parameters_are_named() {
    let start = Start::new::<Regression>(Size::Small);
    let training = Training::new();
    let run = train::<Released, DeadEnd, _, _, _>(&start, &AdamConfig::new(), rates(), &training);
    let percent = 100.0 * 4.0 / 6.0;
    let shown = run.renderer.train(RELEASED);
    assert_eq!(values(&shown), [percent; 21]);
    let said = "(4 of 6 parameters, 2 late)";
    for shown in shown {
        assert!(shown.text.ends_with(said), "{}", shown.text);
    }
}

/// Every iteration has a rate of its own, so that a value shown one iteration off is seen.
#[test]
fn values_are_those_of_their_iteration() {
    let run = run::<Regression>(&Training {
        batches: 30,
        ..Training::new()
    });
    let items: Vec<_> = (1..=3)
        .flat_map(|epoch| (1..=30).map(move |iteration| (epoch, iteration)))
        .collect();
    assert_eq!(run.renderer.items(), items);
    assert_eq!(values(&run.renderer.train(APPLIED)), scheduled(90));
}

/// An allocator whose peak is another at every training step.
#[derive(Clone, Default)]
struct Counting(Arc<AtomicU64>);

impl PeakMemory for Counting {
    fn reset_peak(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }

    fn peak_bytes(&self) -> u64 {
        self.0.load(Ordering::SeqCst) << 20
    }
}

#[test]
fn the_peak_is_the_allocators() {
    let run = run::<Regression>(&Training {
        monitor: StepMonitor::new().with_memory(Counting::default()),
        ..Training::new()
    });
    let shown = run.renderer.train(PEAK);
    let expected: Vec<_> = (1..=21).map(f64::from).collect();
    assert_eq!(values(&shown), expected);
    assert_eq!(shown[1].text, "epoch 1.5 MiB - batch 2.0 MiB");
    // Without a source of numbers there is none, rather than a zero.
    let run = self::run::<Regression>(&Training::new());
    assert_none(&run.renderer.train(PEAK));
}

/// While gradients accumulate there is no step, and the last one's numbers stand.
#[test]
fn with_accumulation_the_last_steps_numbers_stand() {
    let run = run::<Regression>(&Training {
        batches: 5,
        accumulation: Some(2),
        monitor: StepMonitor::new().with_memory(Counting::default()),
        ..Training::new()
    });
    let rates = scheduled(15);
    let (released, applied) = (run.renderer.train(RELEASED), run.renderer.train(APPLIED));
    let mut last = f64::NAN;
    for (place, (epoch, iteration)) in run.renderer.items().into_iter().enumerate() {
        // The second and the fourth of five; the fifth is dropped.
        if matches!(iteration, 2 | 4) {
            last = rates[place];
        }
        let (released, applied) = (&released[place], &applied[place]);
        if (epoch, iteration) == (1, 1) {
            assert_none(&[released.clone(), applied.clone()]);
        } else {
            assert_eq!(applied.value, last, "epoch {epoch}, iteration {iteration}");
            assert_eq!(released.value, 100.0);
        }
        // Only a step counts.
        let steps = usize::from(matches!(iteration, 2 | 4));
        assert_eq!((released.count, applied.count), (steps, steps));
        // The mean shown is that of the epoch, and there is none before its first step.
        match iteration {
            1 => assert_eq!(released.text, "none yet"),
            2 | 4 => assert_eq!(
                released.text,
                "epoch 100.0 % - batch 100.0 % (6 of 6 parameters)"
            ),
            _ => assert_eq!(released.text, "epoch 100.0 % - batch 100.0 %"),
        }
    }
    // Memory is that of each iteration, step or not.
    let expected: Vec<_> = (1..=15).map(f64::from).collect();
    assert_eq!(values(&run.renderer.train(PEAK)), expected);
}

/// With stock training nobody fills the monitor: the metrics say so instead of naming a number.
#[test]
fn a_monitor_that_nobody_fills_shows_nothing() {
    let start = Start::new::<Regression>(Size::Small);
    let training = Training::new();
    let run = train::<Stock, Regression, _, _, _>(&start, &AdamConfig::new(), rates(), &training);
    for metric in [RELEASED, APPLIED, PEAK] {
        let shown = run.renderer.train(metric);
        assert_eq!(shown.len(), 21);
        assert_none(&shown);
    }
}

/// Burn registers most metrics for both splits: nothing of training is shown as validation's.
#[test]
fn validation_has_none_of_it() {
    let run = run::<Regression>(&Training {
        valid_batches: 7,
        monitor: StepMonitor::new().with_memory(Counting::default()),
        ..Training::new()
    });
    for metric in [RELEASED, APPLIED, PEAK] {
        let shown = run.renderer.valid(metric);
        assert_eq!(shown.len(), 3 * 7);
        assert_none(&shown);
    }
}

/// The mean of each epoch of a training metric, as Burn's summary has it.
///
/// Without the last epoch, whose log Burn reads while it may still be written.
fn epoch_means(run: &Run, metric: &str, last: usize) -> Vec<(usize, f64)> {
    let (_, summary) = run.renderer.end();
    let summary = summary.expect("a summary was asked for");
    let metrics = &summary.metrics.train;
    let found = metrics.iter().find(|found| found.name == metric);
    let entries = found.into_iter().flat_map(|found| &found.entries);
    let complete = entries.filter(|entry| entry.step < last);
    complete.map(|entry| (entry.step, entry.value)).collect()
}

/// Five batches in windows of two: an epoch steps at its second and fourth iteration.
fn accumulating() -> Training {
    Training {
        batches: 5,
        accumulation: Some(2),
        summary: true,
        // Never stops, but waits for the log of every epoch.
        early_stopping: Some(early_stopping(1000)),
        settles: true,
        ..Training::new()
    }
}

#[test]
fn with_accumulation_an_epochs_mean_is_over_its_steps() {
    let rates = scheduled(15);
    let mean = |epoch: usize| {
        let first = (epoch - 1) * 5;
        (rates[first + 1] + rates[first + 3]) / 2.0
    };
    let applied = epoch_means(&run::<Regression>(&accumulating()), APPLIED, 3);
    assert_eq!(applied, [(1, mean(1)), (2, mean(2))]);
    let released = epoch_means(&run::<Regression>(&accumulating()), RELEASED, 3);
    assert_eq!(released, [(1, 100.0), (2, 100.0)]);
}
