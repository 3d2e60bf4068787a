//! The results as a table and as a plot.

mod plot;
mod table;

pub use plot::plot;
pub use table::table;

/// Bytes in MiB, without the unit.
fn mib(bytes: impl Into<i128>) -> String {
    vit_0_21::terminal::mib(bytes, 1)
}
