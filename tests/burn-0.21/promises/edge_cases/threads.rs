//! Other threads: training beside us, or doing half of our step.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use super::{Inner, P, PARAMETERS, R, TOLERANCE, adam, armed_step, bench, loss, start, weights};
use crate::harness::prelude::*;

const STEPS: u64 = 15;

fn is_device() -> bool {
    <Inner as Backend>::name(&Default::default()).contains("cubecl")
}

/// Long enough for two threads to meet in many ways; shorter where a step takes long.
#[test]
fn two_threads_train_two_models_at_once() {
    let steps = if is_device() { 20 } else { 300 };

    fn release<S: Scenario>(start: &Start, steps: u64) -> Weights {
        let mut model = start.model::<S, R>();
        let mut optim = adam();
        for step in 0..steps {
            let loss = |model: &_| S::loss::<R>(model, Size::Small, step);
            model = run::armed_step(RATE, model, &mut optim, loss);
            let report = optim.last_step().expect("a step");
            assert_all_released(&report, trainable::<R, _>(&model));
        }
        Weights::of(&model)
    }

    let (one, two) = (start::<Mlp>(), start::<Tied>());
    let recipe = AdamConfig::new();
    let plain_one = run::plain::<Mlp, _, P>(&one, &recipe, steps).steps;
    let plain_two = run::plain::<Tied, _, P>(&two, &recipe, steps).steps;
    thread::scope(|scope| {
        let first = scope.spawn(|| release::<Mlp>(&one, steps));
        let second = scope.spawn(|| release::<Tied>(&two, steps));
        let first = first.join().expect("the first thread");
        let second = second.join().expect("the second thread");
        let last = steps as usize - 1;
        first.assert_near(&plain_one[last], TOLERANCE, "the first");
        second.assert_near(&plain_two[last], TOLERANCE, "the second");
    });
}

/// Has the device do what this thread has asked for. On wgpu, cubecl 0.10 otherwise leaves some of
/// it in this thread's queue, where another thread that reads a tensor written in place does not
/// look: it sees the old values, in plain Burn as well.
fn settle() {
    <Inner as Backend>::sync(&Default::default()).expect("the device works");
}

#[test]
fn forward_and_backward_on_other_threads() {
    let (mut model, mut optim, expected) = bench(6);
    for step in 0..6 {
        model = optim.arm(RATE, model);
        let copy = model.clone();
        // Every second forward pass keeps the clone that it was made with.
        let elsewhere = thread::scope(|scope| {
            let forward = match step % 2 {
                0 => scope.spawn(move || loss(&copy, step)),
                _ => scope.spawn(|| loss(&model, step)),
            };
            forward.join().expect("forward")
        });
        // The next three run backward here.
        let grads = match step < 3 {
            true => thread::spawn(move || {
                let grads = elsewhere.backward();
                settle();
                grads
            })
            .join()
            .expect("backward"),
            false => elsewhere.backward(),
        };
        let grads = GradientsParams::from_grads(grads, &model);
        model = optim.step(RATE, model, grads);
        weights(&model).assert_near(&expected.steps[step as usize], TOLERANCE, step);
    }
}

#[test]
fn an_armed_model_and_its_optimizer_may_move_to_another_thread() {
    let (model, mut optim, expected) = bench(2);
    let model = optim.arm(RATE, model);
    let (model, mut optim) = thread::spawn(move || {
        let grads = gradients(&model, loss(&model, 0));
        let model = optim.step(RATE, model, grads);
        settle();
        (model, optim)
    })
    .join()
    .expect("the thread");
    weights(&model).assert_near(&expected.steps[0], TOLERANCE, "stepped elsewhere");
    let model = armed_step(&mut optim, model, 1);
    weights(&model).assert_near(&expected.steps[1], TOLERANCE, "and here again");
}

/// An unarmed backward on another thread, at the same time, is nobody's business. Of a fork: in
/// Burn 0.21 itself two threads can block each other for good where one is in backward and the
/// other extends the same graph, as a clone with the same leaves does.
#[test]
fn inspecting_on_another_thread_while_training() {
    let (mut model, mut optim, expected) = bench(STEPS);
    let spectator = model.clone().fork(&Default::default());
    thread::scope(|scope| {
        let watching = scope.spawn(move || {
            (0..40)
                .map(|step| {
                    let grads = loss(&spectator, step).backward();
                    GradientsParams::from_grads(grads, &spectator).len()
                })
                .collect::<Vec<_>>()
        });
        for step in 0..STEPS {
            model = armed_step(&mut optim, model, step);
            weights(&model).assert_near(&expected.steps[step as usize], TOLERANCE, step);
        }
        let seen = watching.join().expect("the spectator");
        assert!(
            seen.iter().all(|gradients| *gradients == PARAMETERS),
            "{seen:?}"
        );
    });
}

/// `cat` of Burn 0.21 lets go of its operands before it is on the tape itself: in plain Burn, a
/// backward pass that ends on another thread at that moment takes their nodes along, and with them
/// the gradient. A leaf that has been through a backward pass holds its graph no longer.
#[test]
fn cat_keeps_its_operands_from_a_pass_that_ends_elsewhere() {
    let rounds = if is_device() { 20 } else { 2_000 };
    let is_over = AtomicBool::new(false);
    let device = Default::default();
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                let leaf = Tensor::<R, 1>::ones([1], &device).require_grad();
                leaf.exp().backward();
            }
        });
        let right = (0..rounds).take_while(|_| {
            let leaf = Tensor::<R, 1>::ones([8], &device).require_grad();
            leaf.clone().exp().sum().backward();
            let halves = vec![leaf.clone().exp(), leaf.clone().exp()];
            let grads = Tensor::cat(halves, 0).sum().backward();
            let expected = leaf.clone().inner().exp() * 2.0;
            leaf.grad(&grads)
                .is_some_and(|grad| grad.into_data() == expected.into_data())
        });
        let right = right.count();
        is_over.store(true, Ordering::Relaxed);
        assert_eq!(right, rounds, "a gradient is lost");
    });
}
