//! Scopes whose activations backward recomputes.

mod budget;
mod by_value;
mod checkpoint;
mod layers;
mod node;
mod outline;
mod random;
mod running;
mod scope;
mod scope_node;
mod tensors;
mod two_passes;

pub use budget::{Budget, BudgetPass, Planned};
pub use checkpoint::checkpoint;
#[cfg(feature = "operations")]
pub(crate) use layers::encoder_layers;
pub use layers::{
    DecoderLayers, DecoderMasks, EncoderLayers, checkpoint_chunks, checkpoint_decoder,
    checkpoint_each, checkpoint_encoder, checkpoint_steps,
};
pub(crate) use random::forget_random;
pub(crate) use scope::{Mode, mode, record, replayed, without_tape};
pub use tensors::{MapTensor, Tensors};
pub use two_passes::TwoPasses;

/// Refuses what would have to wait for itself in a scope.
pub(crate) fn check_outside_of_scopes() -> Result<(), crate::error::ReleaseError> {
    match mode() {
        Mode::Tape => Ok(()),
        Mode::Recording | Mode::Replaying => Err(crate::error::ReleaseError::InScope),
    }
}
