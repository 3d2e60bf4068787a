//! Memory timelines, compared with the allocator or the device and with the training.

mod attribution;
pub(crate) mod heap;
mod misuse;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use burn_gradient_release_timeline::analysis::Totals;
use burn_gradient_release_timeline::snapshot::{Category, Holder, Parameter, Phase, PhaseKind};
use burn_gradient_release_timeline::{
    MemoryCounter, RecordSteps, RecordableBackend, Recorded, Recorder, Sampling, Snapshot,
    backward, forward,
};

use crate::harness::prelude::*;

const STEPS: u64 = 5;

/// Where tensors are, and how they are counted.
pub(crate) trait Place {
    /// The recorded backend.
    type Below: RecordableBackend;

    /// Counts from now on.
    fn counter() -> impl MemoryCounter + 'static;
}

type P<B> = Plain<Recorded<B>>;
type R<B> = Release<Recorded<B>>;

/// Waits for the other tests, as a process has one recording at a time.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A training, which the caller may record.
fn train<S, B, O>(
    size: Size,
    start: &Start,
    optim: &mut O,
    arm: fn(&mut O, S::Model<B>) -> S::Model<B>,
    steps: u64,
) -> Vec<u64>
where
    S: Scenario,
    B: AutodiffBackend,
    O: Optimizer<S::Model<B>, B>,
{
    let mut model = start.model::<S, B>();
    let mut weights = Vec::new();
    for step in 0..steps {
        model = arm(optim, model);
        let loss = forward(&model, || S::loss::<B>(&model, size, step));
        let grads = backward(|| loss.backward());
        let grads = GradientsParams::from_grads(grads, &model);
        model = optim.step(RATE, model, grads);
        weights.push(Weights::of(&model).digest());
    }
    weights
}

/// A recorded training.
struct Run {
    snapshot: Snapshot,
    /// The weights after each step.
    weights: Vec<u64>,
}

fn record<S, B, O>(
    start: &Start,
    counter: impl MemoryCounter + 'static,
    make: impl FnOnce() -> O,
    arm: fn(&mut O, S::Model<B>) -> S::Model<B>,
) -> Run
where
    S: Scenario,
    B: AutodiffBackend,
    O: Optimizer<S::Model<B>, B>,
{
    let recording = Recorder::new("a promise")
        .with_counter(counter)
        .with_sampling(Sampling::EveryEvent)
        .start()
        .expect("no other recording is under way");
    let weights = train::<S, B, O>(Size::Large, start, &mut make(), arm, STEPS);
    Run {
        snapshot: recording.finish().expect("steps were recorded"),
        weights,
    }
}

fn plain<S: Scenario, L: Place>(start: &Start) -> Run {
    record::<S, P<L::Below>, _>(
        start,
        L::counter(),
        || AdamConfig::new().init().recorded(),
        |_, model| model,
    )
}

fn release<S: Scenario, L: Place>(start: &Start) -> Run {
    record::<S, R<L::Below>, _>(
        start,
        L::counter(),
        || AdamConfig::new().init().recorded().with_gradient_release(),
        |optim, model| optim.arm(RATE, model),
    )
}

/// Checks everything that holds for any model.
pub(crate) fn holds<S: Scenario, L: Place>() {
    println!("{}", std::any::type_name::<S>());
    let start = Start::new::<S>(Size::Large);
    // On the backend itself. Also allocates thread pools and caches, which belong to none of the
    // runs.
    let unrecorded = run::plain::<S, _, Plain<L::Below>>(&start, &AdamConfig::new(), STEPS);
    let expected: Vec<_> = unrecorded.steps.iter().map(Weights::digest).collect();
    drop(unrecorded);
    let plain = plain::<S, L>(&start);
    let release = release::<S, L>(&start);
    for (name, run) in [("plain", &plain), ("release", &release)] {
        assert_eq!(
            run.weights, expected,
            "recording changes the weights, {name}"
        );
        assert!(
            run.snapshot.warnings.is_empty(),
            "{:?}",
            run.snapshot.warnings
        );
        println!(
            "{name}: off by {:.3} % at most",
            100.0 * adds_up(&run.snapshot)
        );
        knows_what_stays(&run.snapshot);
    }
    all_gradients_at_once(&plain.snapshot);
    one_layer_at_a_time(&release.snapshot);
}

/// At every sample, the holders add up to the bytes in use within a hundredth. Returns the largest
/// difference, as a share.
fn adds_up(snapshot: &Snapshot) -> f64 {
    let Snapshot { samples, times, .. } = snapshot;
    assert!(
        samples.len() * 2 > times.len(),
        "{} samples in {} ticks",
        samples.len(),
        times.len()
    );
    let totals = Totals::of(snapshot);
    let known = totals.known();
    let mut worst = 0.0;
    for sample in samples {
        let off = sample.in_use.abs_diff(known[sample.tick]);
        assert!(
            off <= sample.in_use / 100,
            "tick {}: {} in use, {} known",
            sample.tick,
            sample.in_use,
            known[sample.tick]
        );
        worst = f64::max(worst, off as f64 / sample.in_use as f64);
    }
    worst
}

fn held(snapshot: &Snapshot, category: Category, tick: usize) -> impl Iterator<Item = &Holder> {
    snapshot.holders.iter().filter(move |holder| {
        holder.category == category && holder.from <= tick && tick < holder.until
    })
}

fn bytes(snapshot: &Snapshot, category: Category, tick: usize) -> u64 {
    held(snapshot, category, tick)
        .map(|holder| holder.bytes)
        .sum()
}

fn phases(snapshot: &Snapshot, kind: PhaseKind) -> impl Iterator<Item = &Phase> {
    snapshot
        .phases
        .iter()
        .filter(move |phase| phase.kind == kind)
}

/// The parameters that the optimizer steps: all but the running means of batch norm.
fn stepped(snapshot: &Snapshot) -> BTreeSet<usize> {
    let phases = snapshot.phases.iter();
    let steps = phases.filter_map(|phase| match phase.kind {
        PhaseKind::Step(parameter) => Some(parameter),
        _ => None,
    });
    steps.collect()
}

/// Bytes of the parameters that the optimizer steps.
fn trained(snapshot: &Snapshot) -> u64 {
    let stepped = stepped(snapshot).into_iter();
    stepped
        .map(|parameter| snapshot.parameters[parameter].bytes)
        .sum()
}

/// Between steps, parameters and Adam's two moments are known to the byte, each by its path.
fn knows_what_stays(snapshot: &Snapshot) {
    let by_parameter = |category, tick| {
        let mut bytes = BTreeMap::<usize, u64>::new();
        for holder in held(snapshot, category, tick) {
            *bytes
                .entry(holder.parameter.expect("it is of a parameter"))
                .or_default() += holder.bytes;
        }
        bytes
    };
    assert_eq!(phases(snapshot, PhaseKind::Forward).count(), 2);
    for forward in phases(snapshot, PhaseKind::Forward) {
        let weights = by_parameter(Category::Parameters, forward.from);
        let moments = by_parameter(Category::OptimizerState, forward.from);
        for parameter in stepped(snapshot) {
            let Parameter { path, bytes, .. } = &snapshot.parameters[parameter];
            assert_eq!(weights.get(&parameter), Some(bytes), "{path}");
            assert_eq!(moments.get(&parameter), Some(&(2 * bytes)), "{path}");
        }
        assert_eq!(moments.len(), stepped(snapshot).len());
    }
}

/// Plain Burn: all gradients exist when the backward pass ends, and none after the optimizer.
fn all_gradients_at_once(snapshot: &Snapshot) {
    for backward in phases(snapshot, PhaseKind::Backward) {
        let gradients = bytes(snapshot, Category::Gradients, backward.until - 1);
        assert_eq!(gradients, trained(snapshot));
    }
    for optimizer in phases(snapshot, PhaseKind::Optimizer) {
        let gradients = bytes(snapshot, Category::Gradients, optimizer.until - 1);
        assert_eq!(gradients, 0);
    }
    assert_eq!(phases(snapshot, PhaseKind::Optimizer).count(), 2);
}

/// Gradient release: at any tick, only gradients of one layer exist, whose backward computes those
/// of its weight and its bias together. Every step is within the backward pass.
fn one_layer_at_a_time(snapshot: &Snapshot) {
    let layer = |holder: &Holder| {
        let parameter = holder.parameter.expect("a gradient is of a parameter");
        let path = &snapshot.parameters[parameter].path;
        path.rsplit_once('.').map_or("", |(layer, _)| layer)
    };
    let mut ticks = 0;
    for tick in 0..snapshot.times.len() {
        let mut gradients = held(snapshot, Category::Gradients, tick);
        if let Some(first) = gradients.next() {
            ticks += 1;
            for other in gradients {
                assert_eq!(layer(first), layer(other), "tick {tick}");
            }
        }
    }
    assert!(ticks > snapshot.parameters.len(), "there are gradients");
    assert_eq!(phases(snapshot, PhaseKind::Optimizer).count(), 0);
}
