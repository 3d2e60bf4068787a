//! What `TrainStep::step` and `TrainStep::optimize` of a user may do, and what is refused.

use burn_lean::train::release_learner;

use super::harness::{LARGEST, Mode, Optimize, Step, Training, User, rates};
use crate::harness::prelude::*;

fn step(step: Step) -> Training {
    let user = User {
        step,
        ..User::default()
    };
    Training::without_third_use(user)
}

fn optimize(optimize: Optimize) -> Training {
    let user = User {
        optimize,
        ..User::default()
    };
    Training::without_third_use(user)
}

fn in_windows(window: usize, training: Training) -> Training {
    Training {
        accumulation: Some(window),
        ..training
    }
}

#[test]
fn a_step_with_two_backward_passes_or_without_gradients() {
    for training in [
        step(Step::TwoParts),
        in_windows(3, step(Step::TwoParts)),
        step(Step::Skip),
        in_windows(2, step(Step::Skip)),
        step(Step::SkipForward),
        in_windows(2, step(Step::SkipForward)),
    ] {
        let what = format!("{:?}, {:?}", training.model.user, training.accumulation);
        training.assert_same(&what);
    }
}

#[test]
fn weights_clamped_after_the_step() {
    let training = optimize(Optimize::ClampAfter);
    for training in [training.clone(), in_windows(2, training)] {
        let run = training.assert_same("clamped");
        let weights = run.last.iter();
        let weights = weights.filter(|(path, _)| !path.contains("running"));
        let numbers = weights.flat_map(|(_, bits)| bits);
        let sizes = numbers.map(|bits| f32::from_bits(*bits).abs());
        // The parameter without a gradient is clamped, too.
        assert_eq!(sizes.fold(0.0, f32::max), LARGEST);
    }
}

#[test]
fn a_copy_of_before_backward_is_dropped_before_the_step() {
    let training = optimize(Optimize::DropEarlyCopy);
    training.assert_same("a copy");
    in_windows(2, training).assert_same("copies");
}

#[test]
fn a_part_frozen_after_the_second_step() {
    let training = optimize(Optimize::Freeze);
    let run = training.assert_same("frozen");
    let head = |bits: &Bits| {
        let of_head = bits.iter().filter(|(path, _)| path.starts_with("head"));
        of_head.cloned().collect::<Vec<_>>()
    };
    assert_ne!(head(&run.last), head(&bits(&training.model)), "two steps");
    assert_eq!(head(&run.last), head(&run.seen[2]), "and no third");
    // It stays frozen, also for whoever trains on.
    let learner = release_learner(training.model.clone(), adamw(), rates());
    let model = training.supervised(Mode::Released).launch(learner).model;
    assert!(!model.train().head.weight.is_require_grad());
}

/// The model that `optimize` gets is the one that backward has stepped.
#[test]
fn the_weights_before_the_step_are_the_stepped_ones() {
    let training = optimize(Optimize::LookAtCopy);
    let stock = training.run(Mode::Stock);
    let released = training.run(Mode::Released);
    released.assert_same(&stock, "with a look at a copy");
    for (step, found) in released.seen.iter().enumerate() {
        let expected = stock.seen.get(step + 1).unwrap_or(&stock.last);
        for ((path, found), (_, expected)) in found.iter().zip(expected) {
            let is_weight = !path.contains("running");
            assert!(!is_weight || found == expected, "{path} in step {step}");
        }
    }
}

#[test]
fn what_would_train_otherwise_than_stock_is_refused() {
    let changed = |path| format!("{path} was changed in `TrainStep::optimize` before `optim.step`");
    let unclaimed = "its gradient was never asked for";
    let left_out = "14 of 15 armed parameters have been stepped inside backward";
    let one_backward = "run one backward";
    let rate = "armed with the learning rate 0.05, but `step` was given 0.025";
    let copy = "a copy of input.weight was taken after backward had stepped it";
    let refused: [(Training, &[&str]); 15] = [
        (step(Step::Twice), &[one_backward]),
        (in_windows(2, step(Step::Twice)), &[one_backward]),
        (step(Step::ThrowAway), &[unclaimed]),
        (in_windows(2, step(Step::ThrowAway)), &[unclaimed]),
        (
            step(Step::Some),
            &["head.weight was stepped inside backward", unclaimed],
        ),
        (optimize(Optimize::ClampBefore), &[&changed("input.weight")]),
        (
            optimize(Optimize::ScaleFieldBefore),
            &[&changed("head.weight")],
        ),
        (optimize(Optimize::HalfRate), &[rate]),
        // In the iteration that leaves it out, the very last one included.
        (optimize(Optimize::Skip(1)), &[left_out]),
        (optimize(Optimize::Skip(5)), &[left_out]),
        (optimize(Optimize::Skip(21)), &[left_out]),
        // As slow weights are: it would have other weights than stock's.
        (optimize(Optimize::KeepCopy), &[copy]),
        (
            optimize(Optimize::ScaleGradients),
            &["the gradient of head.weight was changed"],
        ),
        (
            optimize(Optimize::DropGradients),
            &["have been stepped inside backward"],
        ),
        (optimize(Optimize::SaveStates), &["has no states to save"]),
    ];
    for (training, expected) in refused {
        let text = training.refused();
        for expected in expected {
            assert!(text.contains(expected), "{:?}: {text}", training.model.user);
        }
    }
}

/// As with every optimizer of ours.
#[test]
fn a_learner_of_burns_is_refused() {
    let training = optimize(Optimize::Default);
    let learner = burn::train::Learner::new(training.model.clone(), adamw(), 0.01);
    let refused = panic_of(|| training.supervised(Mode::Released).launch(learner)).map(drop);
    let text = refused.unwrap_err();
    assert!(text.contains("release_learner"), "{text}");
}
