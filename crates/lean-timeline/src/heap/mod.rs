//! Records the heap of a process, which is where the CPU keeps tensors.
//!
//! The program's allocator is a [`Heap`]. From the start of the first [`Recorder`] on it tells of
//! each allocation and each release. The training says which work it does ([`forward`],
//! [`backward`], [`step`]) and which parameters there are. The [ledger](crate::ledger) classifies
//! memory by its later use.
//!
//! ```
//! use lean_timeline::heap::{Heap, Recorder, backward, forward, step};
//! use lean_timeline::snapshot::{Category, Parameter};
//!
//! #[global_allocator]
//! static HEAP: Heap = Heap::system();
//!
//! let recording = Recorder::new("one weight").with_steps(0..1).start()?;
//! let weight = vec![1.0_f32; 1000];
//! let address = weight.as_ptr().addr();
//! let parameters = || {
//!     let parameter = Parameter { path: "weight".into(), shape: vec![1000], bytes: 4000, is_embedding: false };
//!     vec![(parameter, address)]
//! };
//! let activation = forward("slices", parameters, || vec![2.0_f32; 500]);
//! let grad = backward(|| activation.iter().chain(&activation).copied().collect::<Vec<_>>());
//! let of_grad = grad.as_ptr().addr();
//! step(Some(address), Some(of_grad), || drop(grad), |()| Some(address));
//! let snapshot = recording.finish()?;
//!
//! let bytes = |category| -> u64 {
//!     let holders = snapshot.holders.iter().filter(|held| held.category == category);
//!     holders.map(|held| held.bytes).sum()
//! };
//! assert_eq!(bytes(Category::Parameters), 4000);
//! assert_eq!(bytes(Category::Activations), 2000);
//! assert_eq!(bytes(Category::Gradients), 4000);
//! # Ok::<(), lean_timeline::heap::RecordError>(())
//! ```
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
