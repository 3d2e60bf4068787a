//! Scopes whose activations backward computes again.

mod checkpoint;
mod node;
mod random;
mod running;
mod scope;
mod tensors;

pub use checkpoint::checkpoint;
pub(crate) use scope::{Mode, mode, record, replayed, without_tape};
pub use tensors::{MapTensor, Tensors};
