//! The name and the version of the file format.

/// The version of the format that this program writes, and the latest that it reads.
pub const VERSION: u64 = 1;

/// The `format` of every snapshot.
pub(super) const FORMAT: &str = "memory-timeline";

/// All bytes and times are less. The numbers of JavaScript, with which the page reads a snapshot,
/// are exact up to here.
pub(super) const EXACT: u64 = 1 << 53;
