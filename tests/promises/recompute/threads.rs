//! Two trainings at once: what one recomputes is nothing to the other.

use std::sync::Barrier;
use std::thread;

use burn::optim::momentum::MomentumConfig;
use burn::optim::{GradientsParams, Optimizer, SgdConfig};
use burn_gradient_release::{Recompute, Recomputed, WithGradientRelease};

use crate::harness::models::{Cnn, Recurrent, Scenario, Size, Tied, Transformer};
use crate::harness::run::{self, RATE, Start, Trajectory};
use crate::harness::{Plain, Release, Weights};

const STEPS: u64 = 60;

/// Trains, once the other thread is about to as well. (Not in step with it: if one failed, the
/// other would wait for ever.)
fn train<S: Scenario>(
    start: &Start,
    recompute: Recompute,
    ready: &Barrier,
) -> (Vec<Weights>, Vec<Recomputed>) {
    let mut model = start.model::<S, Release>();
    let optim = recipe().init::<Release, S::Model<Release>>();
    let mut optim = optim.with_gradient_release().with_recompute(recompute);
    let mut weights = Vec::new();
    let mut recomputed = Vec::new();
    ready.wait();
    for step in 0..STEPS {
        model = optim.arm(RATE, model);
        let loss = S::loss::<Release>(&model, Size::Small, step);
        let grads = GradientsParams::from_grads(loss.backward(), &model);
        model = optim.step(RATE, model, grads);
        weights.push(Weights::of::<Release, _>(&model));
        recomputed.push(optim.last_step().expect("a step was taken").recomputed());
    }
    (weights, recomputed)
}

fn recipe() -> SgdConfig {
    SgdConfig::new().with_momentum(Some(MomentumConfig::new()))
}

/// Two trainings at once, each as by itself: plain Burn's weights, and the same segments.
fn as_by_themselves<A: Scenario, B: Scenario>(recompute: Recompute) {
    let (one, two) = (
        Start::seeded::<A>(Size::Small, 1),
        Start::seeded::<B>(Size::Small, 2),
    );
    let (alone, both) = (Barrier::new(1), Barrier::new(2));
    let (first, second) = thread::scope(|scope| {
        let first = scope.spawn(|| train::<A>(&one, recompute, &both));
        let second = scope.spawn(|| train::<B>(&two, recompute, &both));
        let first = first.join().expect("the first thread");
        (first, second.join().expect("the second thread"))
    });
    let plain = run::plain::<A, _, Plain>(&one, &recipe(), STEPS);
    check(
        first,
        train::<A>(&one, recompute, &alone),
        plain,
        "the first",
    );
    let plain = run::plain::<B, _, Plain>(&two, &recipe(), STEPS);
    check(
        second,
        train::<B>(&two, recompute, &alone),
        plain,
        "the second",
    );
}

fn check(
    (given, recomputed): (Vec<Weights>, Vec<Recomputed>),
    (alone, recomputed_alone): (Vec<Weights>, Vec<Recomputed>),
    plain: Trajectory,
    context: &str,
) {
    for step in 0..STEPS as usize {
        given[step].assert_same(&alone[step], format!("{context}, step {step}"));
        given[step].assert_same(&plain.steps[step], format!("{context}, plain, step {step}"));
    }
    given[0].assert_moved(&plain.first, context);
    assert_eq!(recomputed, recomputed_alone, "{context}");
    assert!(recomputed.iter().all(|step| step.segments > 0), "{context}");
}

#[test]
fn two_models() {
    as_by_themselves::<Transformer, Cnn>(Recompute::Automatic);
}

#[test]
fn two_of_a_kind() {
    as_by_themselves::<Transformer, Transformer>(Recompute::Automatic);
    as_by_themselves::<Recurrent, Tied>(Recompute::Automatic);
}
