//! A timeline of the memory of a training. It does not depend on Burn.
//!
//! A recorder tells a [`Ledger`](ledger::Ledger) of each allocation and release, and of the work that
//! the training does: that of `burn-lean` with `heap`, that of `burn-gradient-release-timeline` for
//! Burn 0.21. The ledger makes a [`Snapshot`]: which memory was held, from when to when, and for what.
//!
//! A snapshot is saved as PyTorch's memory snapshot in JSON, which <https://pytorch.org/memory_viz>
//! draws, or as a trace for <https://ui.perfetto.dev>. The program `burn-memory` reads it, and those
//! that PyTorch wrote:
//!
//! ```text
//! burn-memory summary plain.json
//! burn-memory savings plain.json --fit 2GiB
//! ```
#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]

pub mod analysis;
#[cfg(feature = "cli")]
pub mod cli;
#[cfg(feature = "heap")]
pub mod heap;
pub mod ledger;
pub mod recording;
pub mod snapshot;

pub use snapshot::Snapshot;
