//! The analysis of whole trainings, compared with what they were constructed from.

use crate::synthetic::{Sampled, Training};
use lean_timeline::Snapshot;
use lean_timeline::analysis::{Estimate, Peak, Totals};
use lean_timeline::snapshot::Category;

fn peak(snapshot: &Snapshot, iteration: usize) -> Peak {
    let totals = Totals::of(snapshot);
    let phases = snapshot.phases.iter();
    let mut phases = phases.filter(|phase| phase.iteration == iteration);
    let from = phases.next().unwrap().from;
    let until = phases.map(|phase| phase.until).max().unwrap();
    Peak::within(snapshot, &totals, from, until).unwrap()
}

/// The estimate of a plain training, and the peak of the same training with gradient release.
fn estimated_and_real(iteration: usize, change: impl Fn(Training) -> Training) -> (Estimate, Peak) {
    let training = Training {
        iterations: iteration + 1,
        ..change(Training::plain())
    };
    let plain = training.snapshot();
    let release = Training {
        with_release: true,
        ..training
    };
    let estimate = Estimate::of(&plain, &Totals::of(&plain)).unwrap();
    assert_eq!(estimate.iteration, iteration);
    assert_eq!(estimate.recorded, peak(&plain, iteration).bytes);
    (estimate, peak(&release.snapshot(), iteration))
}

#[test]
fn an_estimate_is_what_gradient_release_turns_out_to_need() {
    for (width, tokens) in [16, 64, 256, 512]
        .map(|width| [4, 64, 1024].map(|it| (width, it)))
        .concat()
    {
        for sampled in [Sampled::Everywhere, Sampled::Nowhere] {
            // Old weights that a loop keeps are estimated to go with their steps.
            for keeps_old_model in [false, true] {
                let (estimate, real) = estimated_and_real(1, |training| Training {
                    width,
                    tokens,
                    sampled,
                    keeps_old_model,
                    ..training
                });
                let context = format!("{width} {tokens} {sampled:?} {keeps_old_model}");
                assert_eq!(estimate.least, real.bytes, "{context}");
            }
        }
    }
}

#[test]
fn a_first_step_is_estimated_with_the_state_that_it_makes() {
    let (estimate, real) = estimated_and_real(0, |training| training);
    assert!(
        (estimate.least..=estimate.most).contains(&real.bytes),
        "{estimate:?} {}",
        real.bytes
    );
}

#[test]
fn samples_that_are_far_apart_make_an_estimate_no_lower() {
    let (estimate, real) = estimated_and_real(1, |training| training.sampled(Sampled::AtMarks));
    assert!(estimate.least >= real.bytes, "{estimate:?} {}", real.bytes);
    assert!(estimate.most < estimate.recorded, "{estimate:?}");
}

#[test]
fn the_peak_is_made_of_its_pieces() {
    for training in [Training::plain(), Training::release()] {
        let snapshot = training.snapshot();
        let totals = Totals::of(&snapshot);
        let peak = Peak::of(&snapshot, &totals).unwrap();
        let largest = snapshot.samples.iter().map(|sample| sample.peak).max();
        assert_eq!(peak.bytes, largest.unwrap());
        let sum: u64 = peak.pieces.iter().map(|piece| piece.bytes).sum();
        assert_eq!(sum, peak.bytes);
        let by_category = Category::ALL.map(|category| peak.bytes_of(category));
        assert_eq!(by_category.iter().sum::<u64>(), peak.bytes);
        assert!(
            peak.pieces
                .is_sorted_by(|one, next| one.bytes >= next.bytes)
        );
    }
}

#[test]
fn without_a_sample_in_it_the_peak_is_still_found_between_two() {
    let dense = Training::plain();
    let sparse = dense.clone().sampled(Sampled::AtMarks);
    let (dense, sparse) = (dense.snapshot(), sparse.snapshot());
    let of = |snapshot: &Snapshot| Peak::of(snapshot, &Totals::of(snapshot)).unwrap();
    let (dense, sparse) = (of(&dense), of(&sparse));
    assert_eq!(sparse.bytes, dense.bytes);
    // Which of the operations had the workspace cannot be known.
    assert_eq!(
        sparse.place.map(|at| at.phase),
        dense.place.map(|at| at.phase)
    );
    let workspace = sparse.pieces.iter().find(|piece| piece.holder.is_none());
    assert!(
        workspace.unwrap().bytes < sparse.bytes / 20,
        "{workspace:?}"
    );
}
