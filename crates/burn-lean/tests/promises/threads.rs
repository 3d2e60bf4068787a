//! Threads, and panics in the middle of a step. Several threads that train at the same time are in
//! [`random_programs`](crate::random_programs).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use crate::harness::prelude::*;
use crate::harness::watched_adamw;
use crate::small::started;

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
    let stepped = optim.step(LR, model.clone(), run(&model));
    let grads = run(&model);
    let plain = plain_optim.step(LR, model, grads);
    assert_goes_on(stepped, &mut optim, (plain, plain_optim));
}

/// A model, its optimizer and its loss go from thread to thread; readers of copies see what they took.
#[test]
fn steps_on_other_threads_while_copies_are_read() {
    let (model, mut optim, expected) = thread::scope(|scope| {
        let (mut model, mut optim) = started();
        let mut expected = plain(&[0]);
        for step in 1..6 {
            let (valid, values) = (model.valid(), expected.0.values());
            scope.spawn(move || {
                for _ in 0..10 {
                    assert_eq!(valid.values(), values);
                }
            });
            let loss = model.loss(step);
            let stepping = scope.spawn(move || (optim.backward(LR, loss, model), optim));
            (model, optim) = stepping.join().unwrap();
            expected = train_plain(expected.clone(), &[step]);
        }
        (model, optim, expected)
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

/// Every later call is refused until a checkpoint is loaded.
fn assert_interrupted(mut optim: ReleaseOptimizer, stepped: usize, saved: Plain) {
    let interrupted = ReleaseError::Interrupted {
        stepped,
        of: PARAMS,
    };
    let what_to_do = "load the last checkpoint into the model and the optimizer";
    assert!(interrupted.to_string().contains(what_to_do));
    let new = small().load_record(saved.0.clone().into_record());
    let loss = new.loss(1);
    let refused = optim.try_accumulate(loss, &new).unwrap_err();
    assert_eq!(*refused.error(), interrupted);
    let loss = new.loss(1);
    let refused = optim.try_backward(LR, loss, new).unwrap_err();
    assert_eq!(*refused.error(), interrupted);
    let none = GradientsParams::new();
    let refused = optim.try_step(LR, refused.into_model(), none).unwrap_err();
    assert_eq!(*refused.error(), interrupted);
    assert_eq!(optim.try_to_record().unwrap_err(), interrupted);
    let Err(refused_optim) = optim.try_into_optimizer() else {
        panic!("half of a step was handed out");
    };
    assert_eq!(*refused_optim.error(), interrupted);
    let optim = refused_optim.into_model();
    let mut optim = optim.load_record(saved.1.to_record());
    assert_goes_on(refused.into_model(), &mut optim, saved);
}

/// In backward, also of the last micro-batch of a window, and in `step`. The model is lost with the
/// call; a copy is as good as a record.
#[test]
fn an_optimizer_that_panics() {
    for way in 0..3 {
        let (saved, left) = saved();
        let mut optim = saved.1.clone().with_gradient_release();
        let (model, copy) = (saved.0.clone(), saved.0.clone());
        if way == 1 {
            optim.accumulate(model.loss(9), &model);
        }
        let loss = model.loss(1);
        fail_at_the_third(&left, || match way {
            2 => optim.step(
                LR,
                model,
                GradientsParams::from_grads(loss.backward(), &copy),
            ),
            _ => optim.backward(LR, loss, model),
        });
        assert_eq!(copy.values(), saved.0.values());
        assert_interrupted(optim, 2, saved);
    }
}

/// The loss of a model of which a node runs again in backward, and may fail there.
fn loss(model: &Small, fails: bool) -> Tensor<1> {
    let runs = AtomicUsize::new(0);
    let x = numbers::<2>([3, 4], 1, &flex());
    let x = checkpoint(&model.tied, x, move |tied, x| {
        let run = runs.fetch_add(1, Ordering::Relaxed);
        assert!(!fails || run == 0, "in backward");
        x.matmul(tied.val())
    });
    let x = gelu(model.first.forward(x));
    model.second.forward(x).square().mean()
}

/// A node of the model panics in backward, when some parameters are stepped; in a pass that steps none,
/// nothing has happened.
#[test]
fn a_node_that_panics_in_backward() {
    let saved = plain(&[0]);
    let mut optim = saved.1.clone().with_gradient_release();
    let model = saved.0.clone();
    let failing = loss(&model, true);
    assert_panics(|| optim.accumulate(failing, &model), "in backward");
    // Some sums have its gradient.
    let mut optim = optim.load_record(saved.1.to_record());
    let failing = loss(&model, true);
    assert_panics(|| optim.measure(failing, &model), "in backward");
    assert_goes_on(model.clone(), &mut optim, saved.clone());

    let mut optim = optim.load_record(saved.1.to_record());
    let failing = loss(&model, true);
    assert_panics(|| optim.backward(LR, failing, model), "in backward");
    assert_interrupted(optim, 2, saved);
}

/// A panic in backward before any parameter is stepped: the optimizer goes on.
#[test]
fn a_node_that_panics_first() {
    let (model, mut optim) = started();
    let copy = model.clone();
    let runs = AtomicUsize::new(0);
    let panics = move |first: &Linear, loss: Tensor<1>| {
        assert_eq!(runs.fetch_add(1, Ordering::Relaxed), 0, "in backward");
        loss + first.weight.val().mean()
    };
    let loss = checkpoint(&model.first, model.loss(1), panics);
    assert_panics(|| optim.backward(LR, loss, model), "in backward");
    assert_goes_on(copy, &mut optim, plain(&[0]));
}
