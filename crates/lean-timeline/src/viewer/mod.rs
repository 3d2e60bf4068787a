//! The program `burn-memory`, which shows what was recorded.

mod cli;
pub mod html;
mod savings;
mod summary;
mod svg;
mod text;

pub use cli::main;
pub use summary::summary;
pub use svg::svg;
