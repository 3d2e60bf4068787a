//! Early stopping and interruption: in the same epoch, at the same step.

use std::sync::Arc;

use burn::module::Lora;
use burn::train::Interrupter;
use burn_lean::{Alone, DataParallel, Replicas};

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
    for (accumulation, has_adapters) in [(None, false), (Some(3), false), (Some(3), true)] {
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
                let mut training = Training {
                    interrupter,
                    accumulation,
                    ..Training::of_user(user)
                };
                if has_adapters {
                    // Replicas are asked for the model, too.
                    let replicas = Replicas::new(|| Ok(Alone)).unwrap();
                    let folder = training.directory.path().to_path_buf();
                    training.replicas = Some((DataParallel::new(replicas), folder));
                    training.model.query = seeded(&flex(), |_| {
                        let query = training.model.query.clone();
                        query.apply_lora(Lora::new(2, 4.0))
                    });
                }
                training.run(mode)
            });
            let [stock, released] = runs;
            assert_eq!(stock.losses.len(), last + 1);
            released.assert_same(&stock, "interrupted");
            assert_eq!(released.interrupted.as_deref(), Some("enough"));
        }
    }
}
