//! Two trainings at once: what one recomputes is nothing to the other.

use std::sync::Barrier;
use std::thread;

use burn_gradient_release::{Recompute, Recomputed};

use super::{P, R, recipe, recomputing};
use crate::harness::models::{Cnn, Recurrent, Scenario, Size, Tied, Transformer};
use crate::harness::run::{self, Start, Trajectory};

const STEPS: u64 = 60;

/// Trains, once the other thread is about to as well. (Not in step with it: if one failed, the
/// other would wait for ever.)
fn train<S: Scenario>(start: &Start, ready: &Barrier) -> (Trajectory, Vec<Recomputed>) {
    let mut optim = recomputing(Recompute::Automatic);
    let loss = |model: &S::Model<R>, step| S::loss::<R>(model, Size::Small, step);
    ready.wait();
    let (trajectory, reports) = run::armed(start.model::<S, R>(), &mut optim, STEPS, &loss);
    let recomputed = reports.iter().map(|report| report.recomputed());
    (trajectory, recomputed.collect())
}

/// Each as by itself: plain Burn's weights, and the same segments.
fn as_by_itself<S: Scenario>(start: &Start, given: (Trajectory, Vec<Recomputed>), context: &str) {
    let (given, recomputed) = given;
    let plain = run::plain::<S, _, P>(start, &recipe(), STEPS);
    run::assert_same_steps(&given.steps, &plain.steps, context);
    given.steps[0].assert_moved(&plain.first, context);
    let (_, alone) = train::<S>(start, &Barrier::new(1));
    assert_eq!(recomputed, alone, "{context}");
    assert!(recomputed.iter().all(|step| step.segments > 0), "{context}");
}

fn at_once<A: Scenario, B: Scenario>() {
    let one = Start::seeded::<A>(Size::Small, 1);
    let two = Start::seeded::<B>(Size::Small, 2);
    let ready = Barrier::new(2);
    let (first, second) = thread::scope(|scope| {
        let first = scope.spawn(|| train::<A>(&one, &ready));
        let second = scope.spawn(|| train::<B>(&two, &ready));
        let first = first.join().expect("the first thread");
        (first, second.join().expect("the second thread"))
    });
    as_by_itself::<A>(&one, first, "the first");
    as_by_itself::<B>(&two, second, "the second");
}

#[test]
fn two_models() {
    at_once::<Transformer, Cnn>();
    at_once::<Recurrent, Tied>();
}

#[test]
fn two_of_a_kind() {
    at_once::<Transformer, Transformer>();
}
