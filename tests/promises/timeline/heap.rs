//! On Flex, whose tensors lie on the heap: each test in a process of its own.

use burn::backend::Flex;
use burn_memory_timeline::MemoryCounter;

use super::{Place, holds};
use crate::ALLOCATIONS;
use crate::harness::memory::alone;
use crate::harness::models::{Mlp, Tied, Transformer, Views};

/// The heap, beyond what lived when the counting began.
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

#[test]
fn an_mlp_adds_up() {
    alone("timeline::heap::an_mlp_adds_up", holds::<Mlp, OnTheHeap>);
}

/// One table for the embedding and for the scores.
#[test]
fn tied_weights_add_up() {
    alone(
        "timeline::heap::tied_weights_add_up",
        holds::<Tied, OnTheHeap>,
    );
}

#[test]
fn views_add_up() {
    alone("timeline::heap::views_add_up", holds::<Views, OnTheHeap>);
}

#[test]
fn a_transformer_adds_up() {
    alone(
        "timeline::heap::a_transformer_adds_up",
        holds::<Transformer, OnTheHeap>,
    );
}
