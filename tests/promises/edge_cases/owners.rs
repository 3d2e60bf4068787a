//! A model and an optimizer in the hands of an owner that keeps them private, as a `Learner` does.

use burn::module::Module;
use burn::optim::{AdamConfig, GradientsParams, Optimizer};
use burn::tensor::backend::BackendTypes;
use burn_gradient_release::{ReleaseError, ReleaseOptimizer, WithGradientRelease};

use super::{Bench, Model, Optim, PARAMETERS, R, bench, gradients, loss, weights};
use crate::harness::Weights;
use crate::harness::run::{RATE, assert_all_released};

type Device = <R as BackendTypes>::Device;

#[derive(Clone)]
struct Owner {
    model: Model,
    optim: Optim,
}

impl Owner {
    fn fork(&mut self) {
        self.model = self.model.clone().fork(&Device::default());
    }

    fn step(&mut self, grads: GradientsParams) {
        self.model = self.optim.step(RATE, self.model.clone(), grads);
    }
}

fn owner(bench: Bench) -> (Owner, Vec<Weights>) {
    let Bench {
        model,
        optim,
        expected,
    } = bench;
    (Owner { model, optim }, expected.steps)
}

fn arm(owner: &mut Owner, handle: &mut Optim) -> Result<(), ReleaseError> {
    let copy = owner.model.clone();
    let armed = handle.try_arm_by_fork(RATE, copy, GradientsParams::new(), || owner.fork());
    armed.map_err(ReleaseError::from)
}

#[test]
fn a_handle_arms_what_the_owner_steps() {
    let (mut owner, expected) = owner(bench(4));
    let mut handle = ReleaseOptimizer::handle_of(&owner).expect("there is an optimizer");
    for (step, expected) in expected.iter().enumerate() {
        arm(&mut owner, &mut handle).expect("armed");
        assert!(owner.optim.is_armed());
        let grads = gradients(&owner.model, step as u64);
        assert!(grads.is_empty(), "released");
        owner.step(grads);
        weights(&owner.model).assert_same(expected, step);
        assert_all_released(&handle.last_step().expect("a step"), PARAMETERS);
    }
}

/// The states are those of the owner's optimizer, not of a clone.
#[test]
fn a_handle_shares_the_states() {
    let (mut owner, expected) = owner(bench(3));
    owner.model = super::armed_step(&mut owner.optim, owner.model, 0);
    let mut handle = Optim::handle_of(&owner).expect("there is an optimizer");
    arm(&mut owner, &mut handle).expect("armed");
    let grads = gradients(&owner.model, 1);
    owner.step(grads);
    weights(&owner.model).assert_same(&expected[1], "with the moments of step 0");
    owner.model = super::armed_step(&mut owner.optim, owner.model, 2);
    weights(&owner.model).assert_same(&expected[2], "with the moments of the handle's step");
}

#[test]
fn an_ordinary_clone_is_no_handle() {
    let (mut owner, expected) = owner(bench(1));
    let mut clone = owner.optim.clone();
    owner.model = clone.arm(RATE, owner.model);
    assert!(!owner.optim.is_armed());
    let grads = gradients(&owner.model, 0);
    owner.model = clone.step(RATE, owner.model, grads);
    weights(&owner.model).assert_same(&expected[0], "the clone's own step");
}

#[test]
fn an_owner_of_none_or_of_several_has_no_handle() {
    let (owner, _) = owner(bench(1));
    assert!(Optim::handle_of(&owner.model).is_none());
    assert!(Optim::handle_of(&(owner.clone(), owner.clone())).is_none());
    // Nobody asks any more.
    assert!(Optim::handle_of(&owner).is_some());
}

#[test]
fn a_fork_that_leaves_something_out_is_refused() {
    let (mut owner, expected) = owner(bench(1));
    let mut handle = Optim::handle_of(&owner).expect("there is an optimizer");
    let copy = owner.model.clone();
    let error = handle
        .try_arm_by_fork(RATE, copy, GradientsParams::new(), || {})
        .expect_err("nothing was forked");
    assert!(matches!(error.error(), ReleaseError::NotForked { .. }));

    let copy = owner.model.clone();
    let error = handle
        .try_arm_by_fork(RATE, copy, GradientsParams::new(), || {
            let first = owner.model.layers[0].clone();
            owner.model.layers[0] = first.fork(&Device::default());
        })
        .expect_err("one layer was forked");
    assert!(matches!(error.error(), ReleaseError::NotForked { .. }));

    // What was armed is disarmed again: an ordinary step.
    assert!(!owner.optim.is_armed());
    let grads = gradients(&owner.model, 0);
    assert_eq!(grads.len(), PARAMETERS);
    owner.step(grads);
    weights(&owner.model).assert_same(&expected[0], "an ordinary step");
}

/// Outside the scope of arming a fork is a fork.
#[test]
fn a_fork_of_an_armed_model_is_an_ordinary_model() {
    let (mut owner, _) = owner(bench(1));
    let mut handle = Optim::handle_of(&owner).expect("there is an optimizer");
    arm(&mut owner, &mut handle).expect("armed");
    let forked = owner.model.clone().fork(&Device::default());
    let before = weights(&forked);
    assert_eq!(gradients(&forked, 0).len(), PARAMETERS);
    weights(&forked).assert_same(&before, "nothing was stepped");
}

#[test]
fn handles_refuse_what_optimizers_refuse() {
    let (mut owner, _) = owner(bench(1));
    let mut handle = Optim::handle_of(&owner).expect("there is an optimizer");
    arm(&mut owner, &mut handle).expect("armed");
    let grads = gradients(&owner.model, 0);
    let error = arm(&mut owner, &mut handle).expect_err("a step is under way");
    assert!(matches!(error, ReleaseError::Unfinished { .. }));
    let refused = owner
        .optim
        .try_step(2.0 * RATE, owner.model.clone(), grads)
        .expect_err("another rate");
    assert!(matches!(refused.error(), ReleaseError::LearningRate { .. }));
}

/// A rate of its own that the owner does not know of.
#[test]
fn an_owned_rate_that_differs_is_refused() {
    let (owner, _) = owner(bench(1));
    let mut owner = Owner {
        optim: AdamConfig::new()
            .init()
            .with_gradient_release()
            .with_learning_rate(2.0 * RATE),
        ..owner
    };
    let mut handle = Optim::handle_of(&owner).expect("there is an optimizer");
    arm(&mut owner, &mut handle).expect("the owner's step will tell");
    let grads = GradientsParams::from_grads(loss(&owner.model, 0).backward(), &owner.model);
    let refused = owner
        .optim
        .try_step(RATE, owner.model.clone(), grads)
        .expect_err("stepped with another rate than the optimizer's own");
    assert!(matches!(refused.error(), ReleaseError::LearningRate { .. }));
}

/// An owner may clone itself, its optimizer included, while it forks.
#[test]
fn an_owner_that_clones_itself_while_it_forks() {
    let (mut owner, expected) = owner(bench(1));
    let (done, waiting) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut handle = Optim::handle_of(&owner).expect("there is an optimizer");
        let copy = owner.model.clone();
        let fork = || {
            drop(owner.clone());
            owner.fork();
        };
        handle
            .try_arm_by_fork(RATE, copy, GradientsParams::new(), fork)
            .expect("armed");
        let grads = gradients(&owner.model, 0);
        owner.step(grads);
        let _ = done.send(weights(&owner.model));
    });
    let minute = std::time::Duration::from_secs(60);
    let weights = waiting.recv_timeout(minute).expect("nobody waits for ever");
    weights.assert_same(&expected[0], "forked and stepped");
}

/// A refused arming hands everything back.
#[test]
fn gradients_come_back_from_a_fork_that_leaves_something_out() {
    let (owner, _) = owner(bench(1));
    let mut handle = Optim::handle_of(&owner).expect("there is an optimizer");
    let grads = gradients(&owner.model, 0);
    let refused = handle
        .try_arm_by_fork(RATE, owner.model.clone(), grads, || {})
        .expect_err("nothing was forked");
    let ((), grads) = refused.into_given();
    assert_eq!(grads.len(), PARAMETERS);
}
