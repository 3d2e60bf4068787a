//! On Flex, whose tensors are on the heap: each test in a process of its own.

use burn_gradient_release_timeline::analysis::Totals;
use burn_gradient_release_timeline::snapshot::Sample;
use burn_gradient_release_timeline::{MemoryCounter, RecordSteps, Recorder};

use super::{P, Place, holds, train};
use crate::harness::prelude::*;

/// The heap, without what was in use when the counting began.
struct Heap {
    floor: usize,
}

impl MemoryCounter for Heap {
    fn in_use(&mut self) -> u64 {
        (ALLOCATIONS.current_usage() - self.floor) as u64
    }

    fn take_peak(&mut self) -> u64 {
        let peak = ALLOCATIONS.peak_usage() - self.floor;
        ALLOCATIONS.reset_peak_usage();
        peak as u64
    }

    fn counts_heap(&self) -> bool {
        true
    }
}

struct OnTheHeap;

impl Place for OnTheHeap {
    type Below = Flex;

    fn counter() -> impl MemoryCounter + 'static {
        Heap {
            floor: ALLOCATIONS.current_usage(),
        }
    }
}

/// `Tied` has one table for the embedding and for the scores.
#[test]
fn every_model_adds_up() {
    alone(|| {
        holds::<Tied, OnTheHeap>();
        holds::<Views, OnTheHeap>();
        holds::<Transformer, OnTheHeap>();
    });
}

/// A long recording of a small model takes far more memory than the model.
#[test]
fn the_recorder_leaves_itself_out() {
    alone(|| {
        const STEPS: u64 = 200;
        let start = Start::new::<Mlp>(Size::Small);
        let train = |steps| {
            let mut optim = AdamConfig::new().init().recorded();
            train::<Mlp, P<Flex>, _>(Size::Small, &start, &mut optim, |_, model| model, steps);
        };
        // A thread keeps the buffers of its first matrix product.
        train(1);
        let recording = Recorder::new("long")
            .with_steps(0..STEPS as usize)
            .with_counter(OnTheHeap::counter())
            .start()
            .expect("no other recording is under way");
        train(STEPS);
        let snapshot = recording.finish().expect("all steps were recorded");

        let totals = Totals::of(&snapshot);
        let known = totals.known();
        let rest = |sample: &Sample| sample.in_use.abs_diff(known[sample.tick]);
        let most = snapshot.samples.iter().map(rest).max();
        let most = most.expect("there are samples");
        let taken = snapshot.samples.len() * (size_of::<Sample>() + size_of::<u64>());
        println!("{most} bytes are in no holder; samples and their times take {taken}");
        // Burn's tape, and the digests of the weights after every step.
        assert!(most < 64 * 1024, "{most}");
        assert!(taken > 10 * 64 * 1024, "{taken}");
    });
}
