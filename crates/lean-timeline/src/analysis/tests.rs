//! The analysis of snapshots that are small enough to add up by hand.

use super::*;
use crate::Snapshot;
use crate::snapshot::{Category, Holder, Parameter, Phase, PhaseKind, Sample};

fn holder(
    bytes: u64,
    category: Category,
    parameter: Option<usize>,
    from: usize,
    until: usize,
) -> Holder {
    Holder {
        bytes,
        category,
        parameter,
        operation: 0,
        from,
        until,
    }
}

fn sample(tick: usize, in_use: u64, peak: u64) -> Sample {
    Sample {
        tick,
        in_use,
        peak,
        operation: Some(1),
    }
}

fn phase(kind: PhaseKind, from: usize, until: usize) -> Phase {
    Phase {
        kind,
        iteration: 0,
        from,
        until,
    }
}

fn snapshot(ticks: usize, holders: Vec<Holder>) -> Snapshot {
    let parameter = |path: &str| Parameter {
        path: path.into(),
        shape: vec![10],
        bytes: 40,
        is_embedding: false,
    };
    Snapshot {
        parameters: vec![parameter("one.weight"), parameter("two.weight")],
        operations: vec!["add".into(), "matmul".into()],
        times: (0..ticks as u64).map(|tick| 10 * tick).collect(),
        holders,
        ..Snapshot::default()
    }
}

/// A training step with two weights. Each gradient has 40 bytes, and each step allocates 25 more
/// for a while.
///
/// ```text
/// tick            0   1   2   3   4   5   6   7   8   9  10  11
/// weights        80  80  80  80  80  80  80  80  80  80  80  80
/// activation          100 100 100
/// gradient two                40  40  40  40  40
/// gradient one                        40  40  40  40  40
/// delta                                       25          25
/// known          80 180 180 220 120 160 160 185 120 120 145  80
/// phase           -   F   B   B   B   B   O   2   2   1   1   1
/// ```
fn step() -> Snapshot {
    use Category::{Activations, Gradients, Parameters, Temporaries};
    let mut snapshot = snapshot(
        12,
        vec![
            holder(80, Parameters, None, 0, 12),
            holder(100, Activations, None, 1, 4),
            holder(40, Gradients, Some(1), 3, 8),
            holder(40, Gradients, Some(0), 5, 11),
            holder(25, Temporaries, Some(1), 7, 8),
            holder(25, Temporaries, Some(0), 10, 11),
        ],
    );
    snapshot.phases = vec![
        phase(PhaseKind::Forward, 1, 2),
        phase(PhaseKind::Backward, 2, 6),
        phase(PhaseKind::Optimizer, 6, 12),
        phase(PhaseKind::Step(1), 7, 9),
        phase(PhaseKind::Step(0), 9, 12),
    ];
    snapshot
}

fn estimate(snapshot: &Snapshot) -> Result<Estimate, NoEstimate> {
    Estimate::of(snapshot, &Totals::of(snapshot))
}

#[test]
fn totals_are_the_sums_of_who_lives() {
    let snapshot = step();
    let totals = Totals::of(&snapshot);
    assert_eq!(
        totals.known(),
        [80, 180, 180, 220, 120, 160, 160, 185, 120, 120, 145, 80]
    );
    assert_eq!(
        totals.layer(Category::Gradients),
        [0, 0, 0, 40, 40, 80, 80, 80, 40, 40, 40, 0]
    );
    assert_eq!(totals.layer(Category::Other), [0; 12]);
    let most = totals.most(&snapshot, Category::Gradients);
    assert_eq!((most.bytes, most.tick), (80, 5));
}

#[test]
fn a_holder_that_ends_as_it_begins_is_in_no_sum() {
    let snapshot = snapshot(2, vec![holder(7, Category::Other, None, 1, 1)]);
    assert_eq!(Totals::of(&snapshot).known(), [0, 0]);
    let peak = Peak::of(&snapshot, &Totals::of(&snapshot)).unwrap();
    assert_eq!((peak.bytes, peak.pieces.len()), (0, 0));
}

#[test]
fn without_samples_the_peak_is_where_the_most_is_known() {
    let snapshot = step();
    let peak = Peak::of(&snapshot, &Totals::of(&snapshot)).unwrap();
    assert_eq!((peak.bytes, peak.tick, peak.time), (220, 3, 30));
    let sizes: Vec<u64> = peak.pieces.iter().map(|piece| piece.bytes).collect();
    assert_eq!(sizes, [100, 80, 40]);
    assert_eq!(peak.bytes_of(Category::Activations), 100);
    let place = peak.place.unwrap();
    assert_eq!((place.phase, place.step), (PhaseKind::Backward, None));
    assert_eq!(peak.pieces[2].parameter, Some(1));
    assert_eq!(peak.pieces[2].from, 3);
}

#[test]
fn the_first_of_equal_peaks_is_the_peak() {
    let mut snapshot = snapshot(
        6,
        vec![
            holder(5, Category::Other, None, 1, 2),
            holder(5, Category::Other, None, 4, 5),
        ],
    );
    let tick = |snapshot: &Snapshot| Peak::of(snapshot, &Totals::of(snapshot)).unwrap().tick;
    assert_eq!(tick(&snapshot), 1);
    snapshot.samples = [(0, 0), (1, 5), (2, 0), (3, 0), (4, 5), (5, 0)]
        .map(|(tick, bytes)| sample(tick, bytes, bytes))
        .into();
    assert_eq!(tick(&snapshot), 1);
}

#[test]
fn what_an_operation_takes_for_itself_is_a_piece_of_the_peak() {
    let mut snapshot = step();
    snapshot.samples = vec![sample(6, 160, 160), sample(7, 185, 300)];
    let totals = Totals::of(&snapshot);
    let peak = Peak::of(&snapshot, &totals).unwrap();
    assert_eq!((peak.bytes, peak.tick), (300, 7));
    let own = peak.pieces[0];
    assert_eq!((own.bytes, own.category), (115, Category::Temporaries));
    assert_eq!(
        (own.operation, own.holder, own.parameter),
        (Some(1), None, None)
    );
    assert_eq!(
        peak.pieces.iter().map(|piece| piece.bytes).sum::<u64>(),
        300
    );
    let most = totals.most(&snapshot, Category::Temporaries);
    assert_eq!((most.bytes, most.tick), (140, 7));
    // It is for the parameter that the operation makes something for.
    snapshot.holders[4].operation = 1;
    let peak = Peak::of(&snapshot, &Totals::of(&snapshot)).unwrap();
    assert_eq!(peak.pieces[0].parameter, Some(1));
}

#[test]
fn the_peak_of_a_sample_is_where_the_most_was_known_since_the_one_before() {
    let mut snapshot = step();
    snapshot.samples = vec![
        sample(2, 180, 180),
        sample(6, 160, 230),
        sample(11, 80, 185),
    ];
    let totals = Totals::of(&snapshot);
    let peak = Peak::of(&snapshot, &totals).unwrap();
    assert_eq!((peak.tick, peak.bytes), (3, 230));
    assert_eq!(peak.bytes_of(Category::Temporaries), 10);
    let ticks: Vec<usize> = moments(&snapshot, &totals)
        .map(|moment| moment.tick)
        .collect();
    // The later of the two ticks with 180; the tick of the previous sample counts too.
    assert_eq!(ticks, [2, 3, 7]);
}

#[test]
fn agreement_is_about_the_worst_sample() {
    let mut snapshot = step();
    let of = |snapshot: &Snapshot| Agreement::of(snapshot, &Totals::of(snapshot));
    assert_eq!(of(&snapshot), None);
    snapshot.samples = vec![sample(0, 80, 80), sample(1, 200, 200), sample(3, 210, 220)];
    let worst = of(&snapshot).unwrap();
    assert_eq!(
        (worst.tick, worst.unattributed(), worst.samples),
        (1, 20, 3)
    );
    assert!((worst.share() - 0.1).abs() < 1e-12);
    snapshot.samples.push(sample(4, 60, 60));
    let worst = of(&snapshot).unwrap();
    assert_eq!(
        (worst.tick, worst.unattributed(), worst.share()),
        (4, -60, 1.0)
    );
    snapshot.samples.push(sample(5, 0, 0));
    assert_eq!(of(&snapshot).unwrap().share(), f64::INFINITY);
}

#[test]
fn an_estimate_steps_where_the_gradient_is_complete() {
    let snapshot = step();
    let estimate = estimate(&snapshot).unwrap();
    assert_eq!(estimate.recorded, 220);
    // The step of `two` at tick 3: 220 and its 25.
    assert_eq!(estimate.most, 245);
    // Or after the release of the activation: 220 at tick 3 itself.
    assert_eq!(estimate.least, 220);
}

#[test]
fn an_estimate_counts_what_a_step_takes_within_its_operations() {
    let mut snapshot = step();
    // A workspace of 200 and the delta in the step of `one`, when only its gradient and the weights
    // are left.
    snapshot.samples = vec![
        sample(9, 120, 120),
        sample(10, 145, 345),
        sample(11, 80, 80),
    ];
    let estimate = estimate(&snapshot).unwrap();
    assert_eq!((estimate.least, estimate.most), (345, 345));
}

#[test]
fn steps_that_are_due_at_once_take_place_one_after_the_other() {
    let mut snapshot = step();
    snapshot.holders[2].from = 5;
    snapshot.holders.swap(2, 3);
    // The step of `two` allocates 60, after the gradient of `one` is released: 160 - 40 + 60.
    snapshot.holders[4].bytes = 60;
    let estimate = estimate(&snapshot).unwrap();
    assert_eq!((estimate.least, estimate.most), (185, 185));
}

#[test]
fn an_estimate_counts_what_an_operation_takes_within_the_backward_pass() {
    let mut snapshot = step();
    snapshot.samples = vec![sample(3, 220, 220), sample(4, 120, 400)];
    let estimate = estimate(&snapshot).unwrap();
    // A workspace of 180 on the 220 at its beginning, less the gradient if that is released.
    assert_eq!((estimate.most, estimate.least), (220 - 40 + 180, 220 + 180));
}

#[test]
fn a_gradient_that_outlives_its_step_is_estimated_to_be_released() {
    let mut snapshot = step();
    snapshot.holders[2].until = 12;
    snapshot.samples = vec![sample(4, 120, 120), sample(5, 160, 660)];
    let estimate = estimate(&snapshot).unwrap();
    assert_eq!((estimate.least, estimate.most), (660 - 40, 660 - 40));
}

#[test]
fn a_weight_that_a_step_replaces_goes_with_it_and_one_that_it_changes_stays() {
    let mut snapshot = step();
    // A workspace of 500, after the step of `two` and before that of `one`.
    snapshot.samples = vec![sample(4, 120, 120), sample(5, 160, 660)];
    assert_eq!(estimate(&snapshot).unwrap().most, 660 - 40);
    // The old weight of `two` outlives the step, in which a new one begins.
    snapshot.holders[0].bytes = 40;
    let old = holder(40, Category::Parameters, Some(1), 0, 12);
    let new = holder(40, Category::Parameters, Some(1), 8, 12);
    snapshot.holders.insert(1, old);
    snapshot.holders.insert(6, new);
    assert_eq!(estimate(&snapshot).unwrap().most, 660 - 40);
    // Without a new one the weight was changed in place.
    snapshot.holders.remove(6);
    assert_eq!(estimate(&snapshot).unwrap().most, 660 - 40);
}

#[test]
fn what_one_step_takes_is_not_taken_for_another_s() {
    let mut snapshot = step();
    snapshot.holders[1].bytes = 10;
    // The sample in the step of `one` is about the step of `two`, with a workspace of 115.
    snapshot.samples = vec![
        sample(6, 160, 160),
        sample(9, 120, 300),
        sample(11, 80, 145),
    ];
    let estimate = estimate(&snapshot).unwrap();
    assert_eq!(estimate.most, 130 + 25 + 115);
    snapshot.samples[1].peak = 185;
    snapshot.samples[2].peak = 245;
    let estimate = self::estimate(&snapshot).unwrap();
    assert_eq!(estimate.most, 160 - 40 + 25 + 100);
}

#[test]
fn there_is_no_estimate_of_what_it_cannot_know() {
    let mut released = step();
    released.phases[3] = phase(PhaseKind::Step(1), 3, 5);
    released.phases.sort_by_key(|phase| phase.from);
    assert_eq!(estimate(&released), Err(NoEstimate::IsReleased));

    let mut cut = step();
    cut.phases.truncate(2);
    assert_eq!(estimate(&cut), Err(NoEstimate::NoCompleteStep));
    assert_eq!(
        estimate(&Snapshot::default()),
        Err(NoEstimate::NoCompleteStep)
    );

    let mut twice = step();
    twice.phases[1].until = 4;
    twice.phases.insert(2, phase(PhaseKind::Backward, 4, 6));
    assert_eq!(estimate(&twice), Err(NoEstimate::Accumulates(2)));

    let mut clipped = step();
    let gradients = clipped.holders.iter_mut();
    let gradients = gradients.filter(|held| held.category == Category::Gradients);
    let backward = clipped.phases[1].until;
    gradients.for_each(|held| held.from = held.from.max(backward));
    assert_eq!(estimate(&clipped), Err(NoEstimate::ChangedGradients));

    let mut unseen = step();
    unseen.phases.truncate(2);
    let again = unseen.phases.clone().into_iter();
    let again = again.map(|phase| Phase {
        iteration: 1,
        ..phase
    });
    unseen.phases.extend(again);
    assert_eq!(estimate(&unseen), Err(NoEstimate::NoCompleteStep));

    // The step after the last one was skipped, or the recording ends before it.
    let mut unstepped = step();
    let next = unseen.phases.split_off(2);
    unstepped.phases.extend(next.clone());
    assert_eq!(estimate(&unstepped), estimate(&step()));
    // Two are micro-batches of the next one.
    let third = next.into_iter().map(|phase| Phase {
        iteration: 2,
        ..phase
    });
    unstepped.phases.extend(third);
    assert_eq!(estimate(&unstepped), Err(NoEstimate::Accumulates(3)));

    // Several backward passes, each with a forward pass.
    let mut twice = step();
    let first = [
        phase(PhaseKind::Forward, 0, 1),
        phase(PhaseKind::Backward, 1, 2),
    ];
    twice
        .phases
        .iter_mut()
        .for_each(|phase| phase.iteration = 1);
    twice.phases.splice(0..0, first);
    assert_eq!(estimate(&twice), Err(NoEstimate::Accumulates(2)));
}

/// And so does what has its shape, as a head that is tied to it.
#[test]
fn moments_of_an_embedding_keep_32_bits() {
    let mut snapshot = step();
    snapshot.parameters[0].shape = vec![64, 64];
    snapshot.parameters[1].shape = vec![64, 64];
    let after = |snapshot: &Snapshot| {
        let totals = Totals::of(snapshot);
        StatesEstimate::of_8_bit_adamw(snapshot, &totals)
            .unwrap()
            .after
    };
    assert_eq!(after(&snapshot), 2 * 2 * (4096 + 4 * 32));
    snapshot.parameters[1].is_embedding = true;
    assert_eq!(after(&snapshot), 2 * 8 * 4096);
}

#[test]
fn a_step_that_was_cut_off_is_not_the_one_that_is_estimated() {
    let mut snapshot = step();
    snapshot.times.extend([120, 130, 140, 150]);
    let later = [
        phase(PhaseKind::Forward, 12, 13),
        phase(PhaseKind::Backward, 13, 14),
        phase(PhaseKind::Optimizer, 14, 16),
        phase(PhaseKind::Step(1), 15, 16),
    ];
    let later = later.map(|phase| Phase {
        iteration: 1,
        ..phase
    });
    snapshot.phases.extend(later);
    assert_eq!(estimate(&snapshot).unwrap().iteration, 0);
}

#[test]
fn a_place_is_named_with_what_steps_there() {
    let snapshot = step();
    let name = |tick| Place::of(&snapshot, tick).map(|place| place.name(&snapshot));
    assert_eq!(name(0), None);
    assert_eq!(name(1).unwrap(), "forward of step 1");
    assert_eq!(name(6).unwrap(), "optimizer of step 1");
    assert_eq!(name(8).unwrap(), "optimizer of step 1, stepping two.weight");
    assert_eq!(
        name(11).unwrap(),
        "optimizer of step 1, stepping one.weight"
    );
    let mut released = snapshot.clone();
    released.phases.insert(2, phase(PhaseKind::Step(1), 3, 5));
    let place = Place::of(&released, 4).unwrap();
    let name = "backward of step 1, stepping two.weight";
    assert_eq!(place.name(&released), name);
}
