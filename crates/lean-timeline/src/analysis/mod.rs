//! What follows from a snapshot: the bytes of each category over time, the peak and what is in it,
//! and estimates of the peak with gradient release and with smaller optimizer states.

mod agreement;
mod choice;
mod estimate;
mod moment;
mod most;
mod peak;
mod place;
mod totals;

pub use agreement::Agreement;
pub use choice::{Choice, Stepping};
pub use estimate::{Estimate, NoEstimate, StatesEstimate};
pub use moment::{Moment, moments};
pub use most::Most;
pub use peak::{Peak, Piece};
pub use place::Place;
pub use totals::Totals;

#[cfg(test)]
mod tests;
