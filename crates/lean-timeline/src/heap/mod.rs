//! Records the heap of a process, which is where the CPU keeps tensors.
//!
//! The program's allocator is a [`Heap`]. From the start of the first [`Recorder`] on it tells of
//! each allocation and each release. The training says which work it does ([`forward`],
//! [`backward`], [`step`]) and which parameters there are. The [ledger](crate::ledger) classifies
//! memory by its later use.
//!
//! An allocation of less than [`SMALL`] bytes is in no holder, only in the samples of what is in use.

mod marks;
mod recorder;
mod session;
mod tracker;

pub use marks::{backward, forward, is_recording, operation, parameters, read, recompute, step};
pub use recorder::{Recorder, Recording};
pub use tracker::SMALL;

pub use crate::recording::RecordError;

/// The allocator of a program whose heap can be recorded; `Heap::from_allocator` wraps another one.
///
/// It adds a word to each allocation. Zeroed memory is written, and a reallocation copies.
pub type Heap<A = std::alloc::System> = tracking_allocator::Allocator<A>;
