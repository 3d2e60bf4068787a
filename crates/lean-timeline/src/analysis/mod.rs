//! What follows from a snapshot: the bytes of each category over time, the peak and what is in it,
//! and estimates of the peak with gradient release and with smaller optimizer states.

mod choice;
mod peak;
mod totals;

pub use choice::{Choice, NoEstimate, Stepping};
pub use peak::Peak;
pub use totals::Totals;
