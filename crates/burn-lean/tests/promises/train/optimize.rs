//! `TrainStep::optimize`, overridden: free after the optimizer's step, refused before it.

use burn::module::Module;

use super::harness::{LARGEST, Mode, Net, Optimize, Training, User, refusal};
use crate::harness::{adamw, bits, flex};

fn training(optimize: Optimize) -> Training {
    Training {
        model: Net {
            user: User {
                optimize,
                ..User::default()
            },
            ..Net::without_third_use(&flex())
        },
        ..Training::new(adamw)
    }
}

#[test]
fn weights_clamped_after_the_step() {
    for accumulation in [None, Some(2)] {
        let training = Training {
            accumulation,
            ..training(Optimize::ClampAfter)
        };
        let run = training.assert_same();
        let numbers = run
            .last
            .iter()
            .filter(|(path, _)| !path.contains("running"));
        let numbers = numbers
            .flat_map(|(_, bits)| bits)
            .copied()
            .map(f32::from_bits);
        let largest = numbers.map(f32::abs).fold(0.0, f32::max);
        // All but the parameter without a gradient, which is clamped, too.
        assert_eq!(largest, LARGEST);
    }
}

#[test]
fn a_part_frozen_after_the_second_step() {
    let training = training(Optimize::Freeze);
    let run = training.assert_same();
    let head = |bits: &crate::harness::Bits| {
        let of_head = bits.iter().filter(|(path, _)| path.starts_with("head"));
        of_head.cloned().collect::<Vec<_>>()
    };
    assert_ne!(head(&run.last), head(&bits(&training.model)), "two steps");
    assert_eq!(head(&run.last), head(&run.seen[2]), "and no third");
    // It stays frozen, also for whoever trains on.
    let learner =
        burn_lean::train::release_learner(training.model.clone(), adamw(), super::harness::rates());
    let model = training.supervised(Mode::Released).launch(learner).model;
    assert!(!model.train().head.weight.is_require_grad());
}

#[test]
fn weights_changed_before_the_step_are_refused() {
    let said = training(Optimize::ClampBefore).refused();
    assert!(
        said.contains("input.weight was changed in `TrainStep::optimize` before `optim.step`"),
        "{said}"
    );
    let said = training(Optimize::ScaleFieldBefore).refused();
    assert!(
        said.contains("head.weight was changed in `TrainStep::optimize` before `optim.step`"),
        "{said}"
    );
}

#[test]
fn a_rate_changed_before_the_step_is_refused() {
    let said = training(Optimize::HalfRate).refused();
    assert!(
        said.contains("armed with the learning rate 0.05, but `step` was given 0.025"),
        "{said}"
    );
}

/// In the iteration that leaves it out, the very last one included.
#[test]
fn a_step_left_out_is_refused() {
    for skipped in [1, 5, 21] {
        let said = training(Optimize::Skip(skipped)).refused();
        assert!(
            said.contains("14 of 15 armed parameters have been stepped inside backward"),
            "{said}"
        );
    }
}

/// What is not refused: the model that `optimize` gets is the one that backward has stepped.
#[test]
fn the_weights_before_the_step_are_the_stepped_ones() {
    let training = training(Optimize::LookAtCopy);
    let stock = training.run(Mode::Stock);
    let released = training.run(Mode::Released);
    released.assert_same(&stock);
    let is_weight = |path: &str| !path.contains("running");
    for (step, found) in released.seen.iter().enumerate() {
        let expected = stock.seen.get(step + 1).unwrap_or(&stock.last);
        for ((path, found), (_, expected)) in found.iter().zip(expected) {
            assert!(
                !is_weight(path) || found == expected,
                "{path} in step {step}"
            );
        }
    }
}

/// A copy of it that is kept, as slow weights are, would have other weights than stock's.
#[test]
fn a_copy_kept_over_the_step_is_refused() {
    let said = training(Optimize::KeepCopy).refused();
    assert!(
        said.contains("a copy of input.weight was taken after backward had stepped it"),
        "{said}"
    );
}

#[test]
fn changed_gradients_are_refused() {
    let said = training(Optimize::ScaleGradients).refused();
    assert!(
        said.contains("the gradient of head.weight was changed"),
        "{said}"
    );
    let said = training(Optimize::DropGradients).refused();
    assert!(said.contains("have been stepped inside backward"), "{said}");
}

#[test]
fn states_are_not_to_be_had_in_the_middle() {
    let said = training(Optimize::SaveStates).refused();
    assert!(said.contains("has no states to save"), "{said}");
}

/// As with every optimizer of ours.
#[test]
fn a_learner_of_burns_is_refused() {
    let training = training(Optimize::Default);
    let learner = burn::train::Learner::new(training.model.clone(), adamw(), 0.01);
    let said = refusal(|| training.supervised(Mode::Released).launch(learner));
    assert!(said.contains("release_learner"), "{said}");
}
