//! What a `TrainStep` may do, and what is refused.

use super::harness::{Net, Step, Training, User};
use crate::harness::{adamw, flex};

fn training(step: Step) -> Training {
    Training {
        model: Net {
            user: User {
                step,
                ..User::default()
            },
            ..Net::without_third_use(&flex())
        },
        ..Training::new(adamw)
    }
}

#[test]
fn two_backward_passes_over_different_parameters() {
    training(Step::TwoParts).assert_same();
    let training = Training {
        accumulation: Some(3),
        ..training(Step::TwoParts)
    };
    training.assert_same();
}

#[test]
fn two_backward_passes_over_the_same_parameters_are_refused() {
    for accumulation in [None, Some(2)] {
        let training = Training {
            accumulation,
            ..training(Step::Twice)
        };
        let said = training.refused();
        assert!(
            said.contains("run one backward per step on the sum of the losses"),
            "{said}"
        );
    }
}

#[test]
fn gradients_thrown_away_are_refused() {
    for accumulation in [None, Some(2)] {
        let training = Training {
            accumulation,
            ..training(Step::ThrowAway)
        };
        let said = training.refused();
        assert!(said.contains("its gradient was never asked for"), "{said}");
    }
}

#[test]
fn gradients_of_some_parameters_are_refused() {
    let said = training(Step::Some).refused();
    assert!(
        said.contains("head.weight was stepped inside backward"),
        "{said}"
    );
    assert!(said.contains("its gradient was never asked for"), "{said}");
}
