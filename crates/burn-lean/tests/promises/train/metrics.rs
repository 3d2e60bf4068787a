//! What the metrics show.

use super::harness::{BATCHES, Mode, Step, Training, User};
use crate::harness::prelude::*;

/// The numbers of an epoch's steps, without what was not available, and without the mean.
fn numbers(lines: &[String]) -> Vec<f64> {
    let number = |line: &String| line.split(',').next()?.parse().ok();
    let steps = lines.iter().filter(|line| !line.ends_with("final"));
    steps.filter_map(number).collect()
}

#[test]
fn released_parameters_and_applied_rates() {
    for accumulation in [None, Some(3)] {
        let training = Training {
            accumulation,
            ..Training::new(adamw)
        };
        training.run(Mode::Released);
        let steps = BATCHES.div_ceil(accumulation.unwrap_or(1));
        let logged = |epoch, metric| numbers(&training.directory.logged(epoch, metric));
        for epoch in 1..=3 {
            let released = logged(epoch, "Released");
            assert_eq!(released.len(), steps, "{released:?}");
            let are_all = released.iter().all(|released| *released == 100.0);
            assert!(are_all, "{released:?}");

            let applied = logged(epoch, "Applied Learning Rate");
            let scheduled = logged(epoch, "Learning Rate");
            assert_eq!(applied.len(), steps);
            let last = scheduled.last();
            assert_eq!(applied.last(), last, "{applied:?}, {scheduled:?}");
            if accumulation.is_none() {
                assert_eq!(applied, scheduled);
            }
            let mut distinct = applied.clone();
            distinct.dedup();
            assert_eq!(distinct.len(), steps, "the rate moves");
        }
    }
}

/// Nothing is released where a step runs backward itself.
#[test]
fn a_step_that_was_not_changed_is_seen() {
    let training = Training::of_user(User {
        step: Step::Backward,
        ..User::default()
    });
    training.run(Mode::Released);
    let released = numbers(&training.directory.logged(1, "Released"));
    assert_eq!(released, [0.0; BATCHES]);
}

/// With nobody to watch, they have nothing to say.
#[test]
fn a_stock_training_has_no_numbers() {
    let training = Training::new(adamw);
    training.run(Mode::Stock);
    let has_log = |metric: &str| {
        let log = format!("train/epoch-1/{metric}.log");
        training.directory.path().join(log).exists()
    };
    assert!(has_log("Loss"));
    for metric in ["Released", "Applied_Learning_Rate", "Gradient_Norm"] {
        assert!(!has_log(metric), "{metric}");
    }
}
