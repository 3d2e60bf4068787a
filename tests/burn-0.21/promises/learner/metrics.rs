//! The metrics of gradient release say what happened, at the iteration at which it happened.

use std::sync::atomic::{AtomicU64, Ordering};

use burn::lr_scheduler::LrScheduler;
use burn_gradient_release_train::{PeakMemory, StepMonitor};

use crate::harness::learner::*;

/// Names of the metrics.
const RELEASED: &str = "Released";
const APPLIED: &str = "Applied Learning Rate";
const PEAK: &str = "Peak Memory";

fn values(shown: &[Shown]) -> Vec<f64> {
    shown.iter().map(|shown| shown.value).collect()
}

/// Fails unless each of these is said to be no number: one that counts for nothing, and is finite
/// for whoever plots it or adds it up.
#[track_caller]
fn assert_none(shown: &[Shown]) {
    assert!(!shown.is_empty());
    for shown in shown {
        assert_eq!((shown.count, shown.text.as_str()), (0, "none yet"));
        assert!(shown.value.is_finite());
    }
}

/// The rates of so many iterations.
fn scheduled(iterations: usize) -> Vec<f64> {
    let mut rates = rates();
    (0..iterations).map(|_| rates.step()).collect()
}

/// A monitor of an allocator whose peak is another at every training step, in MiB.
fn counting() -> StepMonitor {
    #[derive(Default)]
    struct Counting(AtomicU64);

    impl PeakMemory for Counting {
        fn reset_peak(&self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }

        fn peak_bytes(&self) -> u64 {
            self.0.load(Ordering::SeqCst) << 20
        }
    }

    StepMonitor::new().with_memory(Counting::default())
}

/// Every iteration has a rate and a peak of its own, so that a value shown one iteration off is
/// seen. Burn registers most metrics for both splits: nothing of training is shown as
/// validation's.
#[test]
fn values_are_those_of_their_iteration() {
    let training = Training {
        batches: 30,
        valid_batches: 7,
        monitor: counting(),
        ..Training::new()
    };
    let run = train::<Released>(&Task::new(Net::Chain), &training);
    let items: Vec<_> = (1..=3)
        .flat_map(|epoch| (1..=30).map(move |iteration| (epoch, iteration)))
        .collect();
    assert_eq!(run.renderer.items(), items);
    assert_eq!(values(&run.renderer.train(APPLIED)), scheduled(90));

    let released = run.renderer.train(RELEASED);
    assert_eq!(values(&released), [100.0; 90]);
    for shown in released {
        assert_eq!(
            shown.text,
            "epoch 100.0 % - batch 100.0 % (6 of 6 parameters)"
        );
    }

    let peaks = run.renderer.train(PEAK);
    assert_eq!(values(&peaks), (1..=90).map(f64::from).collect::<Vec<_>>());
    assert_eq!(peaks[1].text, "epoch 1.5 MiB - batch 2.0 MiB");

    for metric in [RELEASED, APPLIED, PEAK] {
        let shown = run.renderer.valid(metric);
        assert_eq!(shown.len(), 3 * 7);
        assert_none(&shown);
    }
}

#[test]
fn late_parameters_are_named() {
    let run = train::<Released>(&Task::new(Net::DeadEnd), &Training::new());
    let shown = run.renderer.train(RELEASED);
    assert_eq!(values(&shown), [100.0 * 4.0 / 6.0; 21]);
    for shown in shown {
        let said = "(4 of 6 parameters, 2 late)";
        assert!(shown.text.ends_with(said), "{}", shown.text);
    }
    // Without a source of numbers there is none, rather than a zero.
    assert_none(&run.renderer.train(PEAK));
}

/// With stock training nobody fills the monitor: the metrics say so instead of naming a number.
#[test]
fn a_monitor_that_nobody_fills_shows_nothing() {
    let run = train::<Stock>(&Task::new(Net::Chain), &Training::new());
    for metric in [RELEASED, APPLIED, PEAK] {
        let shown = run.renderer.train(metric);
        assert_eq!(shown.len(), 21);
        assert_none(&shown);
    }
}

/// While gradients accumulate there is no step, and the last one's numbers are shown again: they
/// count for nothing. Of five batches in windows of two, the second and the fourth step, and the
/// fifth is dropped.
#[test]
fn with_accumulation_only_a_step_counts() {
    let training = Training {
        batches: 5,
        accumulation: Some(2),
        monitor: counting(),
        ..Training::new()
    };
    let run = train::<Released>(&Task::new(Net::Chain), &training);
    let rates = scheduled(15);
    let (released, applied) = (run.renderer.train(RELEASED), run.renderer.train(APPLIED));
    let mut last = None;
    for (place, (epoch, iteration)) in run.renderer.items().into_iter().enumerate() {
        let context = format!("epoch {epoch}, iteration {iteration}");
        let is_step = matches!(iteration, 2 | 4);
        if is_step {
            last = Some(rates[place]);
        }
        let (released, applied) = (&released[place], &applied[place]);
        match last {
            None => assert_none(&[released.clone(), applied.clone()]),
            Some(rate) => assert_eq!((applied.value, released.value), (rate, 100.0), "{context}"),
        }
        let counts = (released.count, applied.count);
        assert_eq!(counts, (is_step.into(), is_step.into()), "{context}");
        // The mean shown is that of the epoch, and there is none before its first step.
        let text = match iteration {
            1 => "none yet",
            2 | 4 => "epoch 100.0 % - batch 100.0 % (6 of 6 parameters)",
            _ => "epoch 100.0 % - batch 100.0 %",
        };
        assert_eq!(released.text, text, "{context}");
    }
    // Memory is that of each iteration, step or not.
    let expected: Vec<_> = (1..=15).map(f64::from).collect();
    assert_eq!(values(&run.renderer.train(PEAK)), expected);
}
