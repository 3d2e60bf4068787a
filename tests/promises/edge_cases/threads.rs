//! Other threads: training beside us, or doing half of our step.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use burn::module::Module;
use burn::optim::{AdamConfig, GradientsParams, Optimizer};
use burn::tensor::{Tensor, backend::Backend};
use burn_gradient_release::WithGradientRelease;

use super::{Bench, Inner, Model, P, PARAMETERS, R, bench, loss, start, weights};
use crate::harness::Weights;
use crate::harness::models::{Matrices, Mlp, Scenario, Size, Tied};
use crate::harness::run::{self, RATE, Start, assert_all_released};

const STEPS: u64 = 15;

#[test]
fn two_threads_train_two_models_at_once() {
    let train = || {
        let mlp = start::<Mlp>();
        let tied = start::<Tied>();
        let expected = (
            run::plain::<Mlp, _, P>(&mlp, &AdamConfig::new(), STEPS),
            run::plain::<Tied, _, P>(&tied, &AdamConfig::new(), STEPS),
        );
        (mlp, tied, expected)
    };
    let (mlp, tied, expected) = train();
    thread::scope(|scope| {
        let one = scope.spawn(|| run::release::<Mlp, _, R>(&mlp, &AdamConfig::new(), STEPS));
        let two = scope.spawn(|| run::release::<Tied, _, R>(&tied, &AdamConfig::new(), STEPS));
        let (one, reports) = one.join().expect("the first thread");
        let (two, _) = two.join().expect("the second thread");
        assert_eq!(reports.len() as u64, STEPS);
        for (step, report) in reports.iter().enumerate() {
            one.steps[step].assert_same(&expected.0.steps[step], format!("mlp {step}"));
            two.steps[step].assert_same(&expected.1.steps[step], format!("tied {step}"));
            assert_all_released(report, PARAMETERS);
        }
    });
}

fn is_device() -> bool {
    <Inner as Backend>::name(&Default::default()).contains("cubecl")
}

/// Long enough for every order in which two threads can meet; shorter where a step takes long.
#[test]
fn two_optimizers_on_two_threads_for_thousands_of_steps() {
    let steps = if is_device() { 20 } else { 2000 };

    fn train<S: Scenario>(start: &Start, steps: u64) -> Weights {
        let mut model = start.model::<S, R>();
        let mut optim = AdamConfig::new().init().with_gradient_release();
        for step in 0..steps {
            model = optim.arm(RATE, model);
            let grads = S::loss::<R>(&model, Size::Small, step).backward();
            let grads = GradientsParams::from_grads(grads, &model);
            model = optim.step(RATE, model, grads);
        }
        Weights::of::<R, _>(&model)
    }

    let (one, two) = (start::<Mlp>(), start::<Matrices>());
    let alone = (train::<Mlp>(&one, steps), train::<Matrices>(&two, steps));
    thread::scope(|scope| {
        let first = scope.spawn(|| train::<Mlp>(&one, steps));
        let second = scope.spawn(|| train::<Matrices>(&two, steps));
        let first = first.join().expect("the first thread");
        let second = second.join().expect("the second thread");
        first.assert_same(&alone.0, "the first");
        second.assert_same(&alone.1, "the second");
    });
}

/// Has the device do what this thread has asked for. On wgpu, cubecl 0.10 otherwise leaves some of
/// it in this thread's queue, where another thread that reads a tensor written in place does not
/// look: it sees the old values, in plain Burn as well.
fn settle() {
    <Inner as Backend>::sync(&Default::default()).expect("the device works");
}

#[test]
fn forward_on_one_thread_and_backward_on_another() {
    let Bench {
        mut model,
        mut optim,
        expected,
    } = bench(4);
    for step in 0..4 {
        model = optim.arm(RATE, model);
        let copy = model.clone();
        let on_a_thread = thread::spawn(move || loss(&copy, step))
            .join()
            .expect("forward");
        let grads = thread::spawn(move || {
            let grads = on_a_thread.backward();
            settle();
            grads
        })
        .join()
        .expect("backward");
        let grads = GradientsParams::from_grads(grads, &model);
        model = optim.step(RATE, model, grads);
        weights(&model).assert_same(&expected.steps[step as usize], step);
    }
}

#[test]
fn the_loss_of_another_thread_s_forward() {
    let Bench {
        mut model,
        mut optim,
        expected,
    } = bench(4);
    for step in 0..4 {
        model = optim.arm(RATE, model);
        let step_loss =
            thread::scope(|scope| scope.spawn(|| loss(&model, step)).join().expect("forward"));
        let grads = GradientsParams::from_grads(step_loss.backward(), &model);
        model = optim.step(RATE, model, grads);
        weights(&model).assert_same(&expected.steps[step as usize], step);
    }
}

/// An unarmed backward on another thread, at the same time, is nobody's business. Of a fork: in
/// Burn 0.21 itself two threads can block each other for good where one is in backward and the
/// other extends the same graph, as a clone with the same leaves does.
#[test]
fn inspecting_on_another_thread_while_training() {
    let Bench {
        mut model,
        mut optim,
        expected,
    } = bench(STEPS);
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
            model = super::armed_step(&mut optim, model, step);
            weights(&model).assert_same(&expected.steps[step as usize], step);
        }
        let seen = watching.join().expect("the spectator");
        assert!(
            seen.iter().all(|gradients| *gradients == PARAMETERS),
            "{seen:?}"
        );
    });
}

#[test]
fn an_armed_model_may_move_to_another_thread() {
    let Bench {
        model,
        mut optim,
        expected,
    } = bench(1);
    let model = optim.arm(RATE, model);
    let (model, _optim) = thread::spawn(move || {
        let grads = GradientsParams::from_grads(loss(&model, 0).backward(), &model);
        let model = optim.step(RATE, model, grads);
        settle();
        (model, optim)
    })
    .join()
    .expect("the thread");
    weights(&model).assert_same(&expected.steps[0], "stepped elsewhere");
    let mut fresh = AdamConfig::new().init::<R, Model>().with_gradient_release();
    let model = super::armed_step(&mut fresh, model, 1);
    assert!(!weights(&model).same(&expected.steps[0]));
}

/// `cat` of Burn 0.21 lets go of its operands before it is on the tape itself: in plain Burn, a
/// backward pass that ends on another thread at that moment takes their nodes along, and with them
/// the gradient. A leaf that has been through a backward pass holds its graph no longer.
#[test]
fn cat_keeps_its_operands_from_a_pass_that_ends_elsewhere() {
    let rounds = if is_device() { 20 } else { 10_000 };
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
