//! Threads, and panics in the middle of backward.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use burn::module::{Module, ParamGroup};
use burn::optim::{
    AdamW, AdamWConfig, GradientsAccumulator, GradientsParams, LearningRate, ModuleOptimizer,
    Optimizer,
};
use burn::tensor::{Device, Tensor, activation};
use burn_lean::{ReleaseError, ReleaseOptimizer, WithGradientRelease, checkpoint};

use crate::harness::{LR, adamw, bits, flex, numbers, plain_step, release_step};
use crate::small::{
    PARAMS, Small, assert_goes_on, grads_of, panic_of, plain, plain_from, plain_values,
    read_or_refused, small,
};

#[test]
fn each_thread_with_its_model() {
    thread::scope(|scope| {
        for worker in 0..4 {
            scope.spawn(move || {
                let mut model = small();
                let mut plain = (model.clone(), adamw());
                let mut optim = adamw().with_gradient_release();
                for step in 0..15 {
                    let batch = step * 4 + worker;
                    model = release_step(model, &mut optim, |model| model.loss(batch));
                    plain = plain_from(plain.0, plain.1, &[batch]);
                    assert_eq!(
                        bits(&model),
                        bits(&plain.0),
                        "after step {step} of {worker}"
                    );
                }
            });
        }
    });
}

/// Each part of a step on a thread of its own.
#[test]
fn a_step_that_moves_from_thread_to_thread() {
    let (model, optim) = plain(&[0]);
    let mut optim = optim.with_gradient_release();
    let there = |run: Box<dyn FnOnce() + Send>| thread::spawn(run).join().unwrap();
    let (send, receive) = std::sync::mpsc::channel();
    let sender = send.clone();
    there(Box::new(move || {
        let model = optim.arm(LR, model);
        sender.send((model, optim, None, None)).unwrap();
    }));
    let (model, optim, ..) = receive.recv().unwrap();
    let sender = send.clone();
    there(Box::new(move || {
        let loss = model.loss(1);
        sender.send((model, optim, Some(loss), None)).unwrap();
    }));
    let (model, optim, loss, _) = receive.recv().unwrap();
    there(Box::new(move || {
        let grads = GradientsParams::from_grads(loss.unwrap().backward(), &model);
        send.send((model, optim, None, Some(grads))).unwrap();
    }));
    let (model, mut optim, _, grads) = receive.recv().unwrap();
    assert_eq!(model.values(), plain_values(&[0, 1]));
    let model = optim.step(LR, model, grads.unwrap());
    assert_goes_on(model, &mut optim, plain(&[0, 1]));
}

/// Workers with forks of one model, whose gradients are added up.
#[test]
fn forks_on_two_threads() {
    let run = |model: &Small| {
        let forks = [0, 1].map(|_| model.clone().fork(&flex()));
        let grads = thread::scope(|scope| {
            let workers: Vec<_> = forks
                .into_iter()
                .enumerate()
                .map(|(worker, fork)| scope.spawn(move || grads_of(&fork, worker + 1)))
                .collect();
            workers
                .into_iter()
                .map(|worker| worker.join().unwrap())
                .collect::<Vec<_>>()
        });
        let mut sum = GradientsAccumulator::<Small>::new();
        for grads in grads {
            sum.accumulate(model, grads);
        }
        sum.grads()
    };
    let (model, plain_optim) = plain(&[0]);
    let mut optim = plain_optim.clone().with_gradient_release();
    let mut plain_optim = plain_optim;
    let armed = optim.arm(LR, model.clone());
    let grads = run(&armed);
    assert_eq!(armed.values(), plain_values(&[0]));
    let stepped = optim.step(LR, armed, grads);
    let grads = run(&model);
    let plain_model = plain_optim.step(LR, model, grads);
    assert_goes_on(stepped, &mut optim, (plain_model, plain_optim));
}

/// Readers on other threads while the model is trained: copies do not move.
#[test]
fn copies_read_on_other_threads() {
    let (mut model, optim) = plain(&[0]);
    let mut optim = optim.with_gradient_release();
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
            let grads = grads_of(&model, step);
            let trained = std::mem::replace(&mut model, small());
            model = optim.step(LR, trained, grads);
            let (plain, plain_optim) = (expected.0.clone(), expected.1.clone());
            expected = plain_from(plain, plain_optim, &[step]);
        }
    });
    assert_goes_on(model, &mut optim, expected);
}

/// AdamW that panics in one of its steps.
#[derive(Clone)]
struct Failing {
    inner: AdamW,
    /// How many steps it takes before that.
    left: Arc<AtomicUsize>,
}

impl Optimizer for Failing {
    type State<const D: usize> = <AdamW as Optimizer>::State<D>;

    fn step<const D: usize>(
        &self,
        lr: LearningRate,
        tensor: Tensor<D>,
        grad: Tensor<D>,
        state: Option<Self::State<D>>,
    ) -> (Tensor<D>, Option<Self::State<D>>) {
        let left = self.left.fetch_sub(1, Ordering::Relaxed);
        assert!(left > 0, "out of steps");
        self.inner.step(lr, tensor, grad, state)
    }

    fn to_device<const D: usize>(state: Self::State<D>, device: &Device) -> Self::State<D> {
        AdamW::to_device(state, device)
    }
}

fn failing(left: &Arc<AtomicUsize>) -> ModuleOptimizer {
    let inner = AdamWConfig::new().with_weight_decay(0.01).build();
    let left = left.clone();
    adamw().with_group(ParamGroup::all(), Failing { inner, left }, None)
}

/// Fails at the third of five parameters in the second step. Returns also the model of before.
fn interrupted() -> (Small, ReleaseOptimizer, Small, ModuleOptimizer) {
    let left = Arc::new(AtomicUsize::new(1000));
    let mut saved = (small(), failing(&left));
    saved = plain_from(saved.0, saved.1, &[0]);
    let mut optim = saved.1.clone().with_gradient_release();
    // What the first pass teaches.
    let model = optim.arm(LR, saved.0.clone());
    let model = optim.disarm(model);
    let model = optim.arm(LR, model);
    left.store(2, Ordering::Relaxed);
    let text = panic_of(|| grads_of(&model, 1)).map(|_| ()).unwrap_err();
    assert!(text.contains("out of steps"), "{text}");
    left.store(1000, Ordering::Relaxed);
    (model, optim, saved.0, saved.1)
}

fn assert_interrupted(error: &ReleaseError) {
    let ReleaseError::Interrupted { armed, .. } = error else {
        panic!("{error}");
    };
    assert_eq!(*armed, PARAMS);
    let text = error.to_string();
    assert!(
        text.contains("load the last checkpoint into the model and the optimizer"),
        "{text}"
    );
}

/// Two were stepped, and the third has panicked.
#[test]
fn an_interruption_counts_what_was_stepped() {
    let (_, optim, ..) = interrupted();
    let interrupted = ReleaseError::Interrupted {
        stepped: 2,
        armed: PARAMS,
    };
    assert_eq!(optim.try_to_record().unwrap_err(), interrupted);
}

#[test]
fn an_optimizer_that_panics_in_backward() {
    let (model, mut optim, saved, saved_optim) = interrupted();
    let (model, error) = optim.try_arm(LR, model).unwrap_err().into_parts();
    assert_interrupted(&error);
    let (model, error) = optim.try_disarm(model).unwrap_err().into_parts();
    assert_interrupted(&error);
    let refused = optim
        .try_step(LR, model, GradientsParams::new())
        .unwrap_err();
    assert_interrupted(refused.error());
    assert_interrupted(&optim.try_to_record().unwrap_err());
    let Err(refused_optim) = optim.try_into_optimizer() else {
        panic!("half of a step was handed out");
    };
    assert_interrupted(refused_optim.error());
    let optim = refused_optim.into_model();

    // The lost parameter says so, and the others are whole.
    let model = refused.into_model();
    assert!(read_or_refused(&model).is_none());
    let text = panic_of(|| model.values()).unwrap_err();
    assert!(text.contains("load the last checkpoint"), "{text}");
    assert!(panic_of(|| model.clone().into_record()).is_err());

    let mut optim = optim.load_record(saved_optim.to_record());
    assert!(!optim.is_armed());
    let record = saved.clone().into_record();
    let fresh = model.load_record(record);
    assert_goes_on(fresh, &mut optim, (saved, saved_optim));
}

/// The way back with a new model in place of the broken one.
#[test]
fn a_new_model_after_a_panic() {
    let (model, optim, saved, saved_optim) = interrupted();
    drop(model);
    let fresh = small().load_record(saved.clone().into_record());
    let mut optim = optim.load_record(saved_optim.to_record());
    assert_goes_on(fresh, &mut optim, (saved, saved_optim));
}

/// A copy of before is as good as a checkpoint.
#[test]
fn a_copy_after_a_panic() {
    let left = Arc::new(AtomicUsize::new(1000));
    let (saved, saved_optim) = plain_from(small(), failing(&left), &[0]);
    let mut optim = saved_optim.clone().with_gradient_release();
    let model = optim.arm(LR, saved.clone());
    let copy = model.clone();
    left.store(2, Ordering::Relaxed);
    assert!(panic_of(|| grads_of(&model, 1)).is_err());
    left.store(1000, Ordering::Relaxed);
    assert_eq!(copy.values(), saved.values());
    drop(model);
    let mut optim = optim.load_record(saved_optim.to_record());
    assert_goes_on(copy, &mut optim, (saved, saved_optim));
}

/// `step` itself is interrupted, at a parameter with an ordinary gradient.
#[test]
fn an_optimizer_that_panics_in_step() {
    let left = Arc::new(AtomicUsize::new(1000));
    let (saved, saved_optim) = plain_from(small(), failing(&left), &[0]);
    let mut optim = saved_optim.clone().with_gradient_release();
    let grads = grads_of(&saved, 1);
    left.store(2, Ordering::Relaxed);
    let model = saved.clone();
    assert!(panic_of(|| optim.step(LR, model, grads)).is_err());
    left.store(1000, Ordering::Relaxed);
    let error = optim.try_to_record().unwrap_err();
    assert!(matches!(error, ReleaseError::Interrupted { .. }), "{error}");
    let (model, error) = optim.try_arm(LR, saved.clone()).unwrap_err().into_parts();
    assert!(matches!(error, ReleaseError::Interrupted { .. }), "{error}");
    let mut optim = optim.load_record(saved_optim.to_record());
    assert_goes_on(model, &mut optim, (saved, saved_optim));
}

/// A node of the model panics in backward, when some parameters are stepped.
#[test]
fn a_node_that_panics_in_backward() {
    let (saved, saved_optim) = plain(&[0]);
    let mut optim = saved_optim.clone().with_gradient_release();
    // A step before teaches the optimizer where parameters can be stepped.
    let runs = Arc::new(AtomicUsize::new(0));
    let loss = |model: &Small, fails: bool| {
        let x = numbers::<2>([3, 4], 1, &flex()).matmul(model.tied.val());
        let runs = runs.clone();
        let first = runs.load(Ordering::Relaxed);
        let x = checkpoint(&model.first, x, move |layer, x| {
            let run = runs.fetch_add(1, Ordering::Relaxed);
            assert!(!fails || run == first, "in backward");
            activation::gelu(layer.forward(x))
        });
        model.second.forward(x).square().mean()
    };
    let plain = plain_step(saved.clone(), &mut saved_optim.clone(), |model| {
        loss(model, false)
    });
    let model = release_step(saved.clone(), &mut optim, |model| loss(model, false));
    assert_eq!(bits(&model), bits(&plain));

    let mut optim = optim.load_record(saved_optim.to_record());
    let model = optim.arm(LR, saved.clone());
    let text = panic_of(|| loss(&model, true).backward())
        .map(|_| ())
        .unwrap_err();
    assert!(text.contains("in backward"), "{text}");
    let stepped = model
        .values()
        .iter()
        .zip(saved.values())
        .filter(|(a, b)| *a != b)
        .count();
    assert_eq!(stepped, 2);
    let unfinished = ReleaseError::Unfinished {
        stepped,
        armed: PARAMS,
    };
    let (model, error) = optim.try_arm(LR, model).unwrap_err().into_parts();
    assert_eq!(error, unfinished);
    assert!(
        error
            .to_string()
            .contains("load the last checkpoint into the model and the optimizer")
    );
    let (model, error) = optim.try_disarm(model).unwrap_err().into_parts();
    assert_eq!(error, unfinished);
    assert_eq!(optim.try_to_record().unwrap_err(), unfinished);
    let refused = optim
        .try_step(LR, model, GradientsParams::new())
        .unwrap_err();
    assert!(
        matches!(refused.error(), ReleaseError::Unclaimed { .. }),
        "{refused:?}"
    );

    let model = refused
        .into_model()
        .load_record(saved.clone().into_record());
    let mut optim = optim.load_record(saved_optim.to_record());
    assert_goes_on(model, &mut optim, (saved, saved_optim));
}

/// A panic in backward before any parameter is stepped: nothing has happened.
fn panics_first(disarms: bool) {
    let (model, optim) = plain(&[0]);
    let mut optim = optim.with_gradient_release();
    let mut model = optim.arm(LR, model);
    let runs = Arc::new(AtomicUsize::new(0));
    let loss = checkpoint(
        &model.first,
        model.loss(1),
        move |first, loss: Tensor<1>| {
            assert_eq!(runs.fetch_add(1, Ordering::Relaxed), 0, "in backward");
            loss + first.weight.val().mean()
        },
    );
    assert!(panic_of(|| loss.backward()).is_err());
    assert_eq!(model.values(), plain_values(&[0]));
    if disarms {
        model = optim.disarm(model);
    }
    let model = optim.arm(LR, model);
    let grads = grads_of(&model, 1);
    let model = optim.step(LR, model, grads);
    assert_goes_on(model, &mut optim, plain(&[0, 1]));
}

#[test]
fn a_node_that_panics_first() {
    panics_first(false);
}

#[test]
fn a_node_that_panics_first_and_disarming() {
    panics_first(true);
}

/// A panic in a forward pass, inside of a scope too.
#[test]
fn a_panic_in_forward() {
    let (model, optim) = plain(&[0]);
    let mut optim = optim.with_gradient_release();
    let model = optim.arm(LR, model);
    let text = panic_of(|| {
        let x = numbers::<2>([3, 4], 1, &flex());
        checkpoint(&model.first, x, |layer, x| {
            let _ = layer.forward(x);
            panic!("in forward")
        })
    });
    let text = text.map(|_: Tensor<2>| ()).unwrap_err();
    assert_eq!(text, "in forward");
    let grads = grads_of(&model, 1);
    let model = optim.step(LR, model, grads);
    assert_goes_on(model, &mut optim, plain(&[0, 1]));
}
