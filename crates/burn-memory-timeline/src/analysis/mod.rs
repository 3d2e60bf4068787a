//! What a snapshot says: how much of what there was when, the peak and who was in it, and what
//! gradient release would make of it.

mod agreement;
mod estimate;
mod moment;
mod peak;
mod place;
mod totals;

pub use agreement::Agreement;
pub use estimate::{Estimate, NoEstimate};
pub use moment::{Moment, moments};
pub use peak::{Peak, Piece};
pub use place::Place;
pub use totals::{Most, Totals};

#[cfg(test)]
mod tests;
