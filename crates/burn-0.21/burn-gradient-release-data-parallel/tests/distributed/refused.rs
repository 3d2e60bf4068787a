//! What is refused, and what is not waited for in vain.

use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    thread,
    time::Duration,
};

use burn::{
    module::Module,
    optim::{GradientsParams, Optimizer},
};
use burn_gradient_release::{ReleaseAccumulator, ReleaseError, checkpoint};
use burn_gradient_release_data_parallel::{DeviceParallel, ReplicaError};

use crate::{
    B, adam, armed,
    backend::places,
    burns_own::{Mark, server},
    model::{Model, RATE},
    on_threads, replicas, step,
};

/// The text of a panic.
fn text(panic: Box<dyn Any + Send>) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.unwrap_or_else(|| panic.downcast_ref::<&str>().unwrap().to_string())
}

fn panics<R>(work: impl FnOnce() -> R) -> String {
    text(catch_unwind(AssertUnwindSafe(work)).err().expect("a panic"))
}

#[test]
fn a_marked_model_is_not_armed_with_a_reduction_or_without() {
    let place = places(1)[0];
    let (parallel, _) = replicas(&[place]).next().unwrap();
    parallel.verify(&Model::<B>::new(&place)).unwrap();
    let reduction = Arc::new(parallel);
    for mut optim in [adam(), adam().with_reduction(reduction.clone())] {
        let model = Model::<B>::new(&place).map(&mut Mark);
        let before = model.bits();
        let param = model.first.id;
        let refused = optim.try_arm(RATE, model).unwrap_err();
        assert_eq!(refused.error(), &ReleaseError::Distributed { param });
        let said = refused.to_string();
        assert!(said.contains("`model.fork(&device)`"), "{said}");
        assert!(said.contains("`with_reduction`"), "{said}");
        let model = refused.into_model();
        assert_eq!(model.bits(), before);
        assert!(model.first.val().is_distributed());

        // The way out that is named.
        let model = model.fork(&place);
        let model = optim.arm(RATE, model);
        assert!(!model.first.val().is_distributed());
        step(&mut optim, model, 0, 0);
    }
    let model = Model::<B>::new(&place).map(&mut Mark);
    let refused = ReleaseAccumulator::new().try_arm(model).unwrap_err();
    assert!(matches!(refused.error(), ReleaseError::Distributed { .. }));
}

#[test]
fn a_marked_model_is_not_stepped_with_a_reduction() {
    let place = places(1)[0];
    let (parallel, _) = replicas(&[place]).next().unwrap();
    let model = Model::<B>::new(&place).map(&mut Mark);
    parallel.verify(&model).unwrap();
    let mut optim = adam().with_reduction(Arc::new(parallel));
    let refused = optim.try_step(RATE, model, GradientsParams::new());
    let refused = refused.map(drop).unwrap_err();
    assert!(matches!(refused.error(), ReleaseError::Distributed { .. }));
}

#[test]
fn an_armed_model_is_not_marked() {
    let place = places(1)[0];
    let mut optim = adam();
    let model = optim.arm(RATE, Model::<B>::new(&place));
    for said in [
        panics(|| model.clone().map(&mut Mark)),
        panics(|| model.second.val().transpose().set_distributed(3.into())),
    ] {
        assert!(
            said.contains("only a parameter that is not armed"),
            "{said}"
        );
    }
    let stepped = model.loss(0, 0, false).backward();
    let said = panics(|| model.clone().map(&mut Mark));
    assert!(said.contains("finish its step"), "{said}");
    let grads = GradientsParams::from_grads(stepped, &model);
    let model = optim.step(RATE, model, grads);
    let model = optim.arm(RATE, model);
    let model = optim.disarm(model).map(&mut Mark);
    assert!(model.first.val().is_distributed());
}

#[test]
fn a_marked_model_is_not_run_backward_in_parts() {
    let _server = server();
    let place = places(1)[0];
    let model = Model::<B>::new(&place).map(&mut Mark);
    let said = panics(|| model.loss(0, 0, true).backward());
    assert!(said.contains("a backward pass in parts"), "{said}");
    // Below a scope, and not in it.
    let hidden = model.second.val() * 2.0;
    let said = panics(|| {
        checkpoint(|| hidden.clone().powi_scalar(2))
            .sum()
            .backward()
    });
    assert!(said.contains("a backward pass in parts"), "{said}");
    // Above it.
    let below = Model::<B>::new(&place);
    let hidden = checkpoint(|| below.second.val().powi_scalar(2));
    let said = panics(|| hidden * model.second.val());
    assert!(said.contains("a backward pass in parts"), "{said}");
}

#[test]
fn devices_are_given_once() {
    let places = places(2);
    let twice = DeviceParallel::new(&[places[0], places[1], places[0]]).unwrap_err();
    assert!(matches!(twice, ReplicaError::SameDevice { .. }));
    assert!(DeviceParallel::new::<crate::Place>(&[]).unwrap().is_empty());
}

#[test]
fn who_ends_does_not_wait_for_the_others_and_is_not_awaited() {
    let mut replicas: Vec<_> = replicas(&places(2)).collect();
    let (second, _) = replicas.pop().unwrap();
    // Both on this thread, one after the other.
    drop(replicas);
    let told = second.replicas().meet("a question").unwrap_err();
    assert!(
        told.to_string()
            .contains("rank 0: the end of the training; rank 1: a question"),
        "{told}"
    );
}

#[test]
fn who_is_on_another_device_is_told_and_so_are_the_others() {
    let places = places(2);
    let stray = places[0];
    let found = on_threads(replicas(&places), |rank, (parallel, _)| {
        let (model, mut optim) = armed(parallel, &stray);
        step(&mut optim, model, rank, 0);
    });
    for found in found {
        let said = text(found.unwrap_err());
        assert!(said.contains("the replicas do not do the same"), "{said}");
        let of_the_second = "rank 1: the gradient of second [8, 3] F32 in step 1 on DeviceId";
        assert!(said.contains(of_the_second), "{said}");
    }
}

#[test]
fn who_goes_another_way_is_named_to_all() {
    let found = on_threads(replicas(&places(3)), |rank, (parallel, place)| {
        let (model, mut optim) = armed(parallel, &place);
        let loss = match rank {
            1 => (model.first.val() * 2.0).sum(),
            _ => model.loss(rank, 0, false),
        };
        let grads = GradientsParams::from_grads(loss.backward(), &model);
        optim.step(RATE, model, grads);
    });
    for (rank, found) in found.into_iter().enumerate() {
        assert_eq!(
            text(found.unwrap_err()),
            format!(
                "gradient release: rank {rank} of 3: the replicas do not do the same: rank 0, 2: the gradient of \
                 second [8, 3] F32 in step 1; rank 1: the gradient of first [6, 8] F32 in step 1"
            )
        );
    }
}

#[test]
fn who_panics_is_not_awaited() {
    let found = on_threads(replicas(&places(2)), |rank, (parallel, place)| {
        let (model, mut optim) = armed(parallel, &place);
        let loss = model.loss(rank, 0, false);
        if rank == 1 {
            thread::sleep(Duration::from_millis(100));
            panic!("an error in the batch");
        }
        let grads = GradientsParams::from_grads(loss.backward(), &model);
        optim.step(RATE, model, grads);
    });
    let said: Vec<_> = found
        .into_iter()
        .map(|found| text(found.unwrap_err()))
        .collect();
    let elsewhere = "the thread of another replica has panicked";
    assert!(said[0].contains(elsewhere), "{}", said[0]);
    assert_eq!(said[1], "an error in the batch");
}
