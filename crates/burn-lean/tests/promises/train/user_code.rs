//! What `TrainStep::step` and `TrainStep::optimize` of a user may do, and what is refused.

use super::harness::{Mode, Optimize, Step, Training, User};
use crate::harness::prelude::*;

fn step(step: Step) -> Training {
    Training::of_user(User {
        step,
        ..User::default()
    })
}

/// Each by itself, and in windows.
fn ways(training: &Training) -> [Training; 2] {
    [None, Some(3)].map(|accumulation| Training {
        accumulation,
        ..training.clone()
    })
}

/// As plain Burn trains, though nothing is released.
#[test]
fn a_step_that_runs_backward_itself() {
    use Step::{Backward, Skip, Some, Twice, TwoParts};
    for training in [Backward, TwoParts, Twice, Some, Skip].map(step) {
        for training in ways(&training) {
            let what = format!("{:?}, {:?}", training.model.user, training.accumulation);
            training.assert_same(&what);
        }
    }
}

/// In the first iteration, whoever runs backward.
#[test]
fn what_would_train_otherwise_than_stock_is_refused() {
    use Optimize::{
        ClampAfter, ClampBefore, DropGradient, Freeze, HalfRate, Nothing, ScaleGradient,
    };
    let of_its_own = "a `TrainStep::optimize` of its own";
    let overrides = [
        ClampBefore,
        ClampAfter,
        HalfRate,
        Nothing,
        ScaleGradient,
        DropGradient,
        Freeze,
    ];
    let users = overrides.map(|optimize| User {
        optimize,
        ..User::default()
    });
    let itself = User {
        step: Step::Backward,
        optimize: ClampAfter,
        ..User::default()
    };
    let mut rows: Vec<_> = users
        .into_iter()
        .chain([itself])
        .map(|user| (user, of_its_own))
        .collect();
    for (step, said) in [
        (Step::LeaveTwo, "has called `output` several times"),
        (Step::LeaveAndReturn, "and returns gradients, too"),
    ] {
        let user = User {
            step,
            ..User::default()
        };
        rows.push((user, said));
    }
    for (user, said) in rows {
        for training in ways(&Training::of_user(user)) {
            let text = training.refused();
            assert!(text.contains(said), "{:?}: {text}", training.model.user);
        }
    }
}

/// As with every optimizer of ours.
#[test]
fn a_learner_of_burns_is_refused() {
    let training = Training::new(adamw);
    let learner = burn::train::Learner::new(training.model.clone(), adamw(), 0.01);
    let refused = panic_of(|| training.supervised(Mode::Released).launch(learner)).map(drop);
    let text = refused.unwrap_err();
    assert!(text.contains("release_learner"), "{text}");
}
