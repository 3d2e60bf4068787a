//! `grads_accumulation`: Burn's weights. (Its memory is in [`memory`](super::memory), a loop of
//! one's own in [`accumulator`](crate::accumulator).)

use std::sync::Arc;

use burn::grad_clipping::GradientClipping;

use crate::harness::learner::*;
use crate::harness::prelude::*;

/// What is left of a window at the end of an epoch of seven batches is dropped: one with windows of
/// two, three with windows of four. Burn takes a window of none for one of one.
#[test]
fn weights_and_optimizer_calls_are_burns() {
    let rows = [
        (Net::Chain, false, &[0, 1, 2, 4][..]),
        (Net::Chain, true, &[2]),
        (Net::Tied, false, &[2, 4]),
        // Running statistics move with every micro-batch, stepped or not.
        (Net::Norm, false, &[2, 4]),
        // Most heads have gradients of earlier micro-batches only.
        (Net::Turns, false, &[2, 4]),
    ];
    for (net, clips, windows) in rows {
        let task = Task::new(net);
        for window in windows {
            let context = format!("{net:?}, clipped {clips}, windows of {window}");
            let training = || {
                let optim = Hooked::new();
                Training {
                    accumulation: Some(*window),
                    optim: match clips {
                        true => optim.with_clipping(GradientClipping::Norm(0.01)),
                        false => optim,
                    },
                    ..Training::new()
                }
            };
            let (stock, release) = (training(), training());
            let expected = train::<Stock>(&task, &stock);
            train::<Released>(&task, &release).assert_same(&expected, &context);
            assert_eq!(release.optim.calls(), stock.optim.calls(), "{context}");
            if net == Net::Chain {
                let steps = 3 * (7 / window.max(&1));
                assert_eq!(stock.optim.calls(), 6 * steps, "{context}");
            }
        }
    }
}

/// In the middle of a window: its gradients are dropped, and the weights are those of the step
/// before.
#[test]
fn interrupted() {
    let task = Task::new(Net::Chain);
    let training = || {
        let mut training = Training::new().accumulating(3);
        let interrupter = training.interrupter.clone();
        training.on_step = Arc::new(move |step| {
            if step == 4 {
                interrupter.stop(None);
            }
        });
        training
    };
    let [stock, _] = same(&task, training, "interrupted");
    assert_eq!(stock.found.len(), 5);
    assert!(stock.last.same(&stock.found[4]));
}

#[test]
fn resumes_in_either_mode() {
    let task = Task::new(Net::Chain);
    let training = || Training::saving().accumulating(4);
    let whole = train::<Stock>(&task, &training());
    let (stock, released) = (train::<Stock>, train::<Released>);
    resumed(&task, &training(), &[&released, &stock, &released], &whole);
}
