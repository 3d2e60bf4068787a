//! Early stopping and interruption: in the same epoch, at the same step.

use std::sync::Arc;

use burn::train::Interrupter;

use super::harness::{BATCHES, Mode, OnStep, Training, User, stopping_once_worse};
use crate::harness::prelude::*;

#[test]
fn early_stopping() {
    let training = Training {
        epochs: 9,
        early_stopping: Some(stopping_once_worse()),
        ..Training::new(adamw)
    };
    let run = training.assert_same("early stopping");
    let epochs = run.losses.len() / (BATCHES + 2);
    assert!((2..9).contains(&epochs), "{epochs} epochs");
}

#[test]
fn interruption() {
    // In the middle of an epoch, at its end, and in the middle of a window.
    for accumulation in [None, Some(3)] {
        for last in [2, BATCHES - 1, BATCHES + 2 + 1] {
            let runs = [Mode::Stock, Mode::Released].map(|mode| {
                let interrupter = Interrupter::new();
                let stop = interrupter.clone();
                let on_step = OnStep(Arc::new(move |step| {
                    if step == last {
                        stop.stop(Some("enough"));
                    }
                }));
                let user = User {
                    on_step,
                    ..User::default()
                };
                let training = Training {
                    interrupter,
                    accumulation,
                    ..Training::of_user(user)
                };
                training.run(mode)
            });
            let [stock, released] = runs;
            assert_eq!(stock.losses.len(), last + 1);
            released.assert_same(&stock, "interrupted");
            assert_eq!(released.interrupted.as_deref(), Some("enough"));
        }
    }
}
