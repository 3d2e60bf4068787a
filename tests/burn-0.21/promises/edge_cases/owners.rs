//! A model and an optimizer in the hands of an owner that keeps them private, as a `Learner` does.

use super::{Model, Optim, PARAMETERS, R, armed_step, bench, gradients, weights};
use crate::harness::prelude::*;

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

    /// Arms by a handle, which asks for a fork.
    fn arm(&mut self, handle: &mut Optim) -> Result<(), ReleaseError> {
        let copy = self.model.clone();
        let armed = handle.try_arm_by_fork(RATE, copy, GradientsParams::new(), || self.fork());
        armed.map_err(ReleaseError::from)
    }
}

/// An owner, a handle of its optimizer, and plain Burn's weights after each step.
fn owner(steps: u64) -> (Owner, Optim, Vec<Weights>) {
    let (model, optim, expected) = bench(steps);
    let owner = Owner { model, optim };
    let handle = Optim::handle_of(&owner).expect("there is an optimizer");
    (owner, handle, expected.steps)
}

/// With the owner's states: every second step is its own.
#[test]
fn a_handle_arms_what_the_owner_steps() {
    let (mut owner, mut handle, expected) = owner(6);
    for (step, expected) in expected.iter().enumerate() {
        let number = step as u64;
        if step % 2 == 1 {
            owner.model = armed_step(&mut owner.optim, owner.model, number);
        } else {
            owner.arm(&mut handle).expect("armed");
            assert!(owner.optim.is_armed());
            // Outside the scope of arming a fork is an ordinary model.
            let fork = owner.model.clone().fork(&Device::default());
            let before = weights(&fork);
            assert_eq!(gradients(&fork, number).len(), PARAMETERS);
            weights(&fork).assert_same(&before, "nothing was stepped");

            let grads = gradients(&owner.model, number);
            assert!(grads.is_empty(), "released");
            owner.step(grads);
        }
        weights(&owner.model).assert_same(expected, step);
        assert_all_released(&handle.last_step().expect("a step"), PARAMETERS);
    }
}

/// The owner's optimizer recomputes nothing by itself.
#[test]
fn a_report_has_the_plan_of_the_handle_that_armed() {
    let (mut owner, handle, _) = owner(1);
    let mut handle = handle.with_recompute(Recompute::Automatic);
    owner.arm(&mut handle).expect("armed");
    let grads = gradients(&owner.model, 0);
    owner.step(grads);
    let report = owner.optim.last_step().expect("a step");
    assert!(report.recomputed().planned_bytes.is_some());
}

#[test]
fn an_ordinary_clone_is_no_handle() {
    let (mut owner, _, expected) = owner(1);
    let mut clone = owner.optim.clone();
    owner.model = clone.arm(RATE, owner.model);
    assert!(!owner.optim.is_armed());
    let grads = gradients(&owner.model, 0);
    owner.model = clone.step(RATE, owner.model, grads);
    weights(&owner.model).assert_same(&expected[0], "the clone's own step");
}

#[test]
fn an_owner_of_none_or_of_several_has_no_handle() {
    let (owner, ..) = owner(1);
    assert!(Optim::handle_of(&owner.model).is_none());
    assert!(Optim::handle_of(&(owner.clone(), owner.clone())).is_none());
    // Nobody asks any more.
    assert!(Optim::handle_of(&owner).is_some());
}

/// A refused arming hands everything back, and disarms what it has armed.
#[test]
fn a_fork_that_leaves_something_out_is_refused() {
    let (mut owner, mut handle, expected) = owner(1);
    let grads = gradients(&owner.model, 0);
    let armed = handle.try_arm_by_fork(RATE, owner.model.clone(), grads, || {});
    let ((), grads) = refused!(armed, ReleaseError::NotForked { .. });
    assert_eq!(grads.len(), PARAMETERS);

    let (copy, none) = (owner.model.clone(), GradientsParams::new());
    let one_layer = || {
        let first = owner.model.layers[0].clone();
        owner.model.layers[0] = first.fork(&Device::default());
    };
    let armed = handle.try_arm_by_fork(RATE, copy, none, one_layer);
    refused!(armed, ReleaseError::NotForked { .. });

    assert!(!owner.optim.is_armed());
    let grads = gradients(&owner.model, 0);
    assert_eq!(grads.len(), PARAMETERS);
    owner.step(grads);
    weights(&owner.model).assert_same(&expected[0], "an ordinary step");
}

#[test]
fn a_handle_does_not_arm_what_is_half_stepped() {
    let (mut owner, mut handle, expected) = owner(1);
    owner.arm(&mut handle).expect("armed");
    let grads = gradients(&owner.model, 0);
    let error = owner.arm(&mut handle).expect_err("a step is under way");
    assert!(matches!(error, ReleaseError::Unfinished { .. }));
    owner.step(grads);
    weights(&owner.model).assert_same(&expected[0], "nothing is lost");
}

/// An owner may clone itself, its optimizer included, while it forks.
#[test]
fn an_owner_that_clones_itself_while_it_forks() {
    let (mut owner, mut handle, expected) = owner(1);
    let (done, waiting) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
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
