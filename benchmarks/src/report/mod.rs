//! The outcome for people and for programs.

mod plot;
mod table;

pub use plot::plot;
pub use table::table;

/// Bytes in MiB, without the unit.
fn mib(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / f64::from(1 << 20))
}
