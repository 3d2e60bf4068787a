//! `grads_accumulation`: Burn's weights. (Its memory is in [`memory`](super::memory).)

use std::sync::Arc;

use burn::grad_clipping::GradientClipping;
use burn::optim::{AdamConfig, GradientsAccumulator, GradientsParams, Optimizer};
use burn::tensor::backend::AutodiffBackend;
use burn_gradient_release::WithGradientRelease;

use crate::harness::learner::{
    Net, RegressionModel, Released, Stock, Task, Training, resumed, same, train,
};
use crate::harness::models::Size;
use crate::harness::run::{OUTCOMES, RATE, outcomes};
use crate::harness::{Hooked, Plain, Release, Weights};

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

/// A loop that keeps Burn's accumulator has only its last micro-batch to change: it is armed with
/// the sums. (For `ReleaseAccumulator` see [`accumulator`](crate::accumulator).)
#[test]
fn a_loop_with_burns_accumulator() {
    fn grads<B: AutodiffBackend>(model: &RegressionModel<B>, seed: u64) -> GradientsParams {
        GradientsParams::from_grads(model.loss(Size::Small, seed).backward(), model)
    }

    for (net, window, expected) in [
        (Net::Chain, 1, [6, 0, 0, 0]),
        (Net::Chain, 2, [6, 0, 0, 0]),
        (Net::Tied, 4, [6, 0, 0, 0]),
        // The trunk and the last head inside backward, the heads of earlier micro-batches in
        // `step`.
        (Net::Turns, 1, [4, 0, 0, 4]),
        (Net::Turns, 2, [4, 0, 2, 2]),
        (Net::Turns, 3, [4, 0, 4, 0]),
    ] {
        let task = Task::new(net);
        let (mut plain, mut model) = (task.model::<Plain>(), task.model::<Release>());
        let mut plain_optim = AdamConfig::new().init();
        let mut optim = AdamConfig::new().init().with_gradient_release();
        let (mut sums, mut release_sums) =
            (GradientsAccumulator::new(), GradientsAccumulator::new());
        for step in 0..5 {
            let (first, last) = (step * window, (step + 1) * window - 1);
            for seed in first..=last {
                sums.accumulate(&plain, grads(&plain, seed));
            }
            let before = Weights::of::<Plain, _>(&plain);
            plain = plain_optim.step(RATE, plain, sums.grads());

            for seed in first..last {
                release_sums.accumulate(&model, grads(&model, seed));
            }
            model = optim.arm_accumulated(RATE, model, release_sums.grads());
            let of_last = grads(&model, last);
            assert!(of_last.is_empty(), "released");
            model = optim.step(RATE, model, of_last);

            let context = format!("{net:?}, windows of {window}, step {step}");
            let plain = Weights::of::<Plain, _>(&plain);
            Weights::of::<Release, _>(&model).assert_same(&plain, &context);
            plain.assert_moved(&before, &context);
            let report = optim.last_step().expect("a step was taken");
            assert_eq!(outcomes(&report), expected, "{context}: {OUTCOMES}");
        }
    }
}
