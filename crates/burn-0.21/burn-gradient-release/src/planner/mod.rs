//! Which activations a forward pass keeps.

mod blocks;
mod operations;
pub(crate) mod plan;
mod saves;
#[cfg(test)]
mod synthetic;
#[cfg(test)]
mod tests;
pub(crate) mod trace;

pub use trace::Recompute;
