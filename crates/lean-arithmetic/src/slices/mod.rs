//! Functions of slices of floats, with the widest instructions the processor has.
//!
//! A number is computed in the same way wherever it is in a slice, and a sum has the same partial
//! sums on every processor. So results do not depend on how a tensor is cut into slices of rows,
//! nor on the number of threads.

mod activation;
mod cross_entropy;
mod dropout;
mod gated;
mod math;
mod norm;
mod rotary;
mod softmax;
mod sums;
#[cfg(test)]
mod tests;
mod vectorized;

pub use activation::Activation;
pub use cross_entropy::exp_rows;
pub use dropout::{drop_part, drop_row, pack_row, unpack_row};
pub use norm::LayerNorm;
pub use rotary::rotate;
pub use softmax::Softmax;
