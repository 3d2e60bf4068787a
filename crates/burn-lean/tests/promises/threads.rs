//! Threads, and panics in the middle of a step. Several threads that train at the same time are in
//! [`clipping`](crate::clipping).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use crate::harness::prelude::*;
use crate::harness::watched_adamw;
use crate::small::{plain_values, started};

/// Workers with forks of one model, whose gradients are added up.
#[test]
fn forks_on_two_threads() {
    let run = |model: &Small| {
        let forks = [0, 1].map(|_| model.clone().fork(&flex()));
        let mut sum = GradientsAccumulator::<Small>::new();
        thread::scope(|scope| {
            let workers = [1, 2].into_iter().zip(forks);
            let workers = workers.map(|(step, fork)| scope.spawn(move || grads_of(&fork, step)));
            for worker in workers.collect::<Vec<_>>() {
                sum.accumulate(model, worker.join().unwrap());
            }
        });
        sum.grads()
    };
    let (model, mut plain_optim) = plain(&[0]);
    let mut optim = plain_optim.clone().with_gradient_release();
    let armed = optim.arm(LR, model.clone());
    let grads = run(&armed);
    assert_eq!(armed.values(), plain_values(&[0]));
    let stepped = optim.step(LR, armed, grads);
    let grads = run(&model);
    let plain = plain_optim.step(LR, model, grads);
    assert_goes_on(stepped, &mut optim, (plain, plain_optim));
}

/// Readers on other threads while the model is trained: copies do not move.
#[test]
fn copies_read_on_other_threads() {
    let (mut model, mut optim) = started();
    let mut expected = plain(&[0]);
    thread::scope(|scope| {
        for step in 1..6 {
            model = optim.arm(LR, model.clone());
            let (valid, values) = (model.valid(), expected.0.values());
            scope.spawn(move || {
                for _ in 0..10 {
                    assert_eq!(valid.values(), values);
                }
            });
            let trained = std::mem::replace(&mut model, small());
            model = finish(trained, &mut optim, step);
            expected = train_plain(expected.clone(), &[step]);
        }
    });
    assert_goes_on(model, &mut optim, expected);
}

const NEVER: usize = 1000;

/// A model after one step, and the number of steps that its optimizer takes before it panics.
pub(crate) fn saved() -> (Plain, Arc<AtomicUsize>) {
    let left = Arc::new(AtomicUsize::new(NEVER));
    let steps = left.clone();
    let failing = watched_adamw(move || {
        assert!(steps.fetch_sub(1, Ordering::Relaxed) > 0, "out of steps");
    });
    (train_plain((small(), failing), &[0]), left)
}

/// Two of five parameters are stepped in this call, and the third panics.
pub(crate) fn fail_at_the_third<T>(left: &AtomicUsize, run: impl FnOnce() -> T) {
    left.store(2, Ordering::Relaxed);
    assert_panics(run, "out of steps");
    left.store(NEVER, Ordering::Relaxed);
}

/// Fails in the second step. Returns also plain Burn's model and optimizer of before.
fn interrupted() -> (Small, ReleaseOptimizer, Plain) {
    let (saved, left) = saved();
    let mut optim = saved.1.clone().with_gradient_release();
    let model = optim.arm(LR, saved.0.clone());
    let model = optim.disarm(model);
    let model = optim.arm(LR, model);
    fail_at_the_third(&left, || grads_of(&model, 1));
    (model, optim, saved)
}

fn assert_interrupted(error: &ReleaseError) {
    let interrupted = ReleaseError::Interrupted {
        stepped: 2,
        armed: PARAMS,
    };
    assert_eq!(*error, interrupted);
    let what_to_do = "load the last checkpoint into the model and the optimizer";
    assert!(error.to_string().contains(what_to_do), "{error}");
}

#[test]
fn an_optimizer_that_panics_in_backward() {
    let (model, mut optim, saved) = interrupted();
    let (model, error) = optim.try_arm(LR, model).unwrap_err().into_parts();
    assert_interrupted(&error);
    let (model, error) = optim.try_disarm(model).unwrap_err().into_parts();
    assert_interrupted(&error);
    let none = GradientsParams::new();
    let refused = optim.try_step(LR, model, none).unwrap_err();
    assert_interrupted(refused.error());
    assert_interrupted(&optim.try_to_record().unwrap_err());
    let Err(refused_optim) = optim.try_into_optimizer() else {
        panic!("half of a step was handed out");
    };
    assert_interrupted(refused_optim.error());
    let optim = refused_optim.into_model();

    // The lost parameter says so, and is in no record.
    let model = refused.into_model();
    assert_panics(|| model.values(), "load the last checkpoint");
    assert!(panic_of(|| model.clone().into_record()).is_err());

    let mut optim = optim.load_record(saved.1.to_record());
    assert!(!optim.is_armed());
    let model = model.load_record(saved.0.clone().into_record());
    assert_goes_on(model, &mut optim, saved);
}

/// In place of the broken model, a new one is as good, and so is a copy from between `arm` and
/// backward.
#[test]
fn another_model_after_a_panic() {
    let (model, optim, saved) = interrupted();
    drop(model);
    let new = small().load_record(saved.0.clone().into_record());
    let mut optim = optim.load_record(saved.1.to_record());
    assert_goes_on(new, &mut optim, saved);

    let (saved, left) = self::saved();
    let mut optim = saved.1.clone().with_gradient_release();
    let model = optim.arm(LR, saved.0.clone());
    let copy = model.clone();
    fail_at_the_third(&left, || grads_of(&model, 1));
    assert_eq!(copy.values(), saved.0.values());
    drop(model);
    let mut optim = optim.load_record(saved.1.to_record());
    assert_goes_on(copy, &mut optim, saved);
}

/// `step` itself is interrupted, at a parameter with an ordinary gradient.
#[test]
fn an_optimizer_that_panics_in_step() {
    let (saved, left) = saved();
    let mut optim = saved.1.clone().with_gradient_release();
    let (model, grads) = (saved.0.clone(), grads_of(&saved.0, 1));
    fail_at_the_third(&left, || optim.step(LR, model, grads));
    assert_error!(optim.try_to_record().unwrap_err(), Interrupted);
    let refused = optim.try_arm(LR, saved.0.clone()).unwrap_err();
    assert_error!(refused.error(), Interrupted);
    let mut optim = optim.load_record(saved.1.to_record());
    assert_goes_on(refused.into_model(), &mut optim, saved);
}

/// The loss of a model of which a node runs again in backward, and may fail there.
fn loss(model: &Small, fails: bool) -> Tensor<1> {
    let x = numbers::<2>([3, 4], 1, &flex()).matmul(model.tied.val());
    let runs = AtomicUsize::new(0);
    let x = checkpoint(&model.first, x, move |layer, x| {
        let run = runs.fetch_add(1, Ordering::Relaxed);
        assert!(!fails || run == 0, "in backward");
        gelu(layer.forward(x))
    });
    model.second.forward(x).square().mean()
}

/// A node of the model panics in backward, when some parameters are stepped.
#[test]
fn a_node_that_panics_in_backward() {
    let saved = plain(&[0]);
    let mut optim = saved.1.clone().with_gradient_release();
    // A step before teaches the optimizer where parameters can be stepped.
    let works = |model: &Small| loss(model, false);
    let plain = plain_step(saved.0.clone(), &mut saved.1.clone(), works);
    let model = release_step(saved.0.clone(), &mut optim, works);
    assert_eq!(bits(&model), bits(&plain));

    let mut optim = optim.load_record(saved.1.to_record());
    let model = optim.arm(LR, saved.0.clone());
    assert_panics(|| loss(&model, true).backward(), "in backward");
    let (now, before) = (model.values(), saved.0.values());
    let stepped = now.iter().zip(&before).filter(|(a, b)| a != b).count();
    assert_eq!(stepped, 2);
    let unfinished = ReleaseError::Unfinished {
        stepped,
        armed: PARAMS,
    };
    let (model, error) = optim.try_arm(LR, model).unwrap_err().into_parts();
    assert_eq!(error, unfinished);
    let what_to_do = "load the last checkpoint into the model and the optimizer";
    assert!(error.to_string().contains(what_to_do), "{error}");
    let (model, error) = optim.try_disarm(model).unwrap_err().into_parts();
    assert_eq!(error, unfinished);
    assert_eq!(optim.try_to_record().unwrap_err(), unfinished);
    let none = GradientsParams::new();
    let refused = optim.try_step(LR, model, none).unwrap_err();
    assert_error!(refused.error(), Unclaimed);

    let record = saved.0.clone().into_record();
    let model = refused.into_model().load_record(record);
    let mut optim = optim.load_record(saved.1.to_record());
    assert_goes_on(model, &mut optim, saved);
}

/// The sums of the parameters that were not stepped are of the window that was interrupted.
#[test]
fn a_panic_in_the_last_micro_batch() {
    for is_node in [true, false] {
        let (saved, left) = saved();
        let optim = saved.1.clone().with_gradient_release();
        let mut optim = optim.with_first_pass(FirstPass::Small);
        let sums = grads_of(&saved.0, 9);
        let model = optim.arm_accumulated(LR, saved.0.clone(), sums);
        match is_node {
            true => assert_panics(|| loss(&model, true).backward(), "in backward"),
            false => fail_at_the_third(&left, || grads_of(&model, 1)),
        }
        assert!(optim.try_to_record().is_err());
        let model = model.load_record(saved.0.clone().into_record());
        let mut optim = optim.load_record(saved.1.to_record());
        assert_goes_on(model, &mut optim, saved);
    }
}

/// A panic in backward before any parameter is stepped: nothing has happened.
#[test]
fn a_node_that_panics_first() {
    for disarms in [false, true] {
        let (model, mut optim) = started();
        let mut model = optim.arm(LR, model);
        let runs = AtomicUsize::new(0);
        let panics = move |first: &Linear, loss: Tensor<1>| {
            assert_eq!(runs.fetch_add(1, Ordering::Relaxed), 0, "in backward");
            loss + first.weight.val().mean()
        };
        let loss = checkpoint(&model.first, model.loss(1), panics);
        assert_panics(|| loss.backward(), "in backward");
        assert_eq!(model.values(), plain_values(&[0]));
        if disarms {
            model = optim.disarm(model);
        }
        let model = optim.arm(LR, model);
        let model = finish(model, &mut optim, 1);
        assert_goes_on(model, &mut optim, plain(&[0, 1]));
    }
}
