//! A timeline of the memory of a training: its format, what follows from it, and a viewer. It does
//! not depend on Burn.
//!
//! A [`Snapshot`] says which memory was held, from when to when, and for what. A recorder writes it
//! with a [`Ledger`](ledger::Ledger): that of `burn-lean`, or that of
//! `burn-gradient-release-timeline` for Burn 0.21. The viewer, `burn-memory`, draws the snapshot over
//! time and names the largest pieces of the peak:
//!
//! ```text
//! burn-memory summary plain.json.gz
//! burn-memory savings plain.json.gz --fit 2GiB
//! burn-memory html plain.json.gz release.json.gz --output page.html
//! burn-memory svg plain.json.gz release.json.gz --output picture.svg
//! ```
//!
//! From a recording of plain Burn they [estimate](analysis::Choice) the peak with gradient release and
//! with other optimizers.
#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]

pub mod analysis;
#[cfg(feature = "heap")]
pub mod heap;
pub mod ledger;
pub mod recording;
pub mod snapshot;
#[cfg(feature = "viewer")]
pub mod viewer;

pub use snapshot::Snapshot;
