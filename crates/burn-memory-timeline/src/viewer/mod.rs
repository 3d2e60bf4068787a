//! The program `burn-memory`: what was recorded, for people.

mod cli;
pub mod html;
mod summary;
mod svg;
mod text;

pub use cli::main;
pub use summary::summary;
pub use svg::svg;
