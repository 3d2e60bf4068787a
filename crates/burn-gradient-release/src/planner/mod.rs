//! Which activations a forward pass keeps.

pub(crate) mod plan;
mod saves;
pub(crate) mod trace;

pub use trace::Recompute;
