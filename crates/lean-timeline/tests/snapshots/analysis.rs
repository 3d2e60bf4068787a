//! The peak and the estimates, added up by hand.

use lean_timeline::Snapshot;
use lean_timeline::analysis::{Choice, NoEstimate, Peak, Stepping, Totals};
use lean_timeline::snapshot::{Category, Phase, PhaseKind};

use crate::example::{holder, phase, sample, step};

/// The estimated peak with gradient release.
fn released(snapshot: &Snapshot) -> Result<u64, NoEstimate> {
    Ok(Choice::all(snapshot, &Totals::of(snapshot))?[1].peak)
}

fn peak(snapshot: &Snapshot) -> Peak {
    Peak::of(snapshot, &Totals::of(snapshot)).unwrap()
}

#[test]
fn totals_are_the_sums_of_who_lives() {
    let mut snapshot = step();
    // One that ends as it begins is in no sum.
    snapshot
        .holders
        .insert(0, holder(7, Category::Other, None, (0, 0)));
    let totals = Totals::of(&snapshot);
    let known = [80, 180, 180, 220, 120, 160, 160, 185, 120, 120, 145, 80];
    assert_eq!(totals.known(), known);
    let gradients = [0, 0, 0, 40, 40, 80, 80, 80, 40, 40, 40, 0];
    assert_eq!(totals.layer(Category::Gradients), gradients);
    assert_eq!(totals.most(Category::Gradients), (80, 5));
}

#[test]
fn without_samples_the_peak_is_where_the_most_is_known() {
    let mut snapshot = step();
    let found = peak(&snapshot);
    assert_eq!((found.bytes, found.tick), (220, 3));
    let held = found
        .holders
        .iter()
        .map(|held| (held.bytes, held.parameter, held.from));
    let expected = [(100, None, 1), (80, None, 0), (40, Some(1), 3)];
    assert_eq!(held.collect::<Vec<_>>(), expected);
    assert_eq!(found.bytes_of(Category::Activations), 100);
    // The first of equal peaks.
    snapshot
        .holders
        .push(holder(75, Category::Other, None, (10, 12)));
    assert_eq!(peak(&snapshot).tick, 3);
}

/// Its peak is where the holders had the most since the sample before.
#[test]
fn what_an_operation_takes_for_itself_is_in_the_peak() {
    let mut snapshot = step();
    snapshot.samples = vec![
        sample(6, 160, 160),
        sample(7, 185, 300),
        sample(9, 120, 190),
    ];
    let (found, totals) = (peak(&snapshot), Totals::of(&snapshot));
    assert_eq!((found.bytes, found.tick, found.workspace), (300, 7, 115));
    assert_eq!(found.bytes_of(Category::Temporaries), 140);
    assert_eq!(totals.most(Category::Temporaries), (140, 7));
    assert_eq!(totals.disagreement(&snapshot), Some(0.0));
    snapshot.samples = vec![
        sample(2, 180, 180),
        sample(6, 200, 230),
        sample(11, 80, 185),
    ];
    let found = peak(&snapshot);
    assert_eq!((found.tick, found.bytes, found.workspace), (3, 230, 10));
    assert_eq!(Totals::of(&snapshot).disagreement(&snapshot), Some(0.2));
}

/// What is held without gradients, 180 with the activation, and the most that a gradient and its step
/// take.
#[test]
fn an_estimate_has_one_gradient_at_a_time() {
    let mut snapshot = step();
    let all = Choice::all(&snapshot, &Totals::of(&snapshot)).unwrap();
    let found = all.iter().map(|way| (way.release, way.stepping, way.peak));
    let expected = [
        (false, Stepping::Recorded, 220),
        (true, Stepping::Recorded, 180 + 40 + 25),
    ];
    assert_eq!(found.collect::<Vec<_>>(), expected);
    // A workspace of 200 in the step of `one`.
    snapshot.samples = vec![
        sample(9, 120, 120),
        sample(10, 145, 345),
        sample(11, 80, 80),
    ];
    assert_eq!(released(&snapshot), Ok(180 + 40 + 225));
    // A workspace of 180 within backward.
    snapshot.samples = vec![sample(3, 220, 220), sample(4, 120, 400)];
    assert_eq!(released(&snapshot), Ok(360 + 40 + 25));
    // A first step makes its states, here within what is counted.
    snapshot.samples.clear();
    let states = holder(30, Category::OptimizerState, Some(0), (10, 12));
    snapshot.holders.push(states);
    snapshot.holders.sort_by_key(|held| held.from);
    assert_eq!(released(&snapshot), Ok(180 + 40 + 55 + 30));
}

/// Two moments of 40 bytes each parameter. An optimizer in one pass takes nothing in its phase.
#[test]
fn states_of_other_sizes_are_estimated() {
    let mut snapshot = step();
    for parameter in [0, 1] {
        snapshot.parameters[parameter].shape = vec![64, 64];
        let states = holder(8 * 4096, Category::OptimizerState, Some(parameter), (0, 12));
        snapshot.holders.insert(0, states);
    }
    let all = |snapshot: &Snapshot| Choice::all(snapshot, &Totals::of(snapshot)).unwrap();
    let small = 2 * 2 * (4096 + 4 * 32);
    let (exact, both) = (2 * 8 * 4096, [Stepping::InOnePass, Stepping::EightBit]);
    let ways = all(&snapshot);
    let found = ways[2..]
        .iter()
        .map(|way| (way.stepping, way.release, way.states, way.peak));
    let expected = [
        (both[0], false, exact, exact + 220),
        (both[0], true, exact, exact + 180 + 40),
        (both[1], false, small, small + 220),
        (both[1], true, small, small + 180 + 40),
    ];
    assert_eq!(found.collect::<Vec<_>>(), expected);
    // An embedding, and what has its shape, as a head that is tied to it, keeps 32 bits.
    snapshot.parameters[1].is_embedding = true;
    assert_eq!(all(&snapshot)[4].states, exact);
    assert_eq!(Choice::within(&ways, small + 220), Some(&ways[4]));
    assert_eq!(Choice::within(&ways, small), None);
}

/// Of PyTorch's profiler: what is held without gradients, and the largest gradient.
#[test]
fn a_snapshot_without_phases_is_estimated_by_its_categories() {
    let mut snapshot = step();
    snapshot.phases.clear();
    assert_eq!(released(&snapshot), Ok(180 + 40));
    snapshot
        .holders
        .retain(|held| held.category != Category::Gradients);
    assert_eq!(released(&snapshot), Err(NoEstimate::NoCompleteStep));
}

#[test]
fn there_is_no_estimate_of_what_it_cannot_know() {
    let in_iteration = |iteration, phases: &[Phase]| {
        let phases = phases.iter().map(|phase| Phase {
            iteration,
            ..*phase
        });
        phases.collect::<Vec<_>>()
    };
    let mut snapshot = step();
    snapshot.phases[3] = phase(PhaseKind::Step(1), 3, 5);
    snapshot.phases.sort_by_key(|phase| phase.from);
    assert_eq!(released(&snapshot), Err(NoEstimate::IsReleased));

    let mut cut = step();
    let passes = cut.phases[..2].to_vec();
    cut.phases = passes.clone();
    assert_eq!(released(&cut), Err(NoEstimate::NoCompleteStep));

    let mut twice = step();
    twice.phases[1].until = 4;
    twice.phases.insert(2, phase(PhaseKind::Backward, 4, 6));
    assert_eq!(released(&twice), Err(NoEstimate::Accumulates(2)));

    let mut clipped = step();
    clipped
        .holders
        .iter_mut()
        .for_each(|held| held.from = held.from.max(6));
    assert_eq!(released(&clipped), Err(NoEstimate::ChangedGradients));

    // The step after the last one was skipped, or the recording ends before it.
    let mut unstepped = step();
    unstepped.phases.extend(in_iteration(1, &passes));
    assert_eq!(released(&unstepped), released(&step()));
    // Two are micro-batches of the next one.
    unstepped.phases.extend(in_iteration(2, &passes));
    assert_eq!(released(&unstepped), Err(NoEstimate::Accumulates(3)));
    // And so is one before a step.
    let mut before = step();
    before.phases = [passes.clone(), in_iteration(1, &before.phases)].concat();
    assert_eq!(released(&before), Err(NoEstimate::Accumulates(2)));
    // A step that was cut off is not the one that is estimated.
    let mut short = step();
    let (later, last) = (in_iteration(1, &short.phases[..3]), short.phases[4]);
    short
        .phases
        .extend([later, in_iteration(1, &[last])].concat());
    assert_eq!(released(&short), released(&step()));
}
