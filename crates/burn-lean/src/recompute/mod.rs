//! Scopes whose activations backward recomputes.

mod budget;
mod checkpoint;
mod layers;
mod mode;
mod node;
mod outline;
mod random;
mod running;
mod two_passes;
mod visiting;

pub use budget::{Budget, BudgetPass, Planned};
pub use checkpoint::checkpoint;
#[cfg(feature = "operations")]
pub(crate) use layers::encoder_layers;
pub use layers::{
    DecoderLayers, DecoderMasks, EncoderLayers, checkpoint_chunks, checkpoint_decoder,
    checkpoint_each, checkpoint_encoder, checkpoint_steps,
};
pub(crate) use mode::{Mode, check_outside_of_scopes, mode};
pub(crate) use random::forget_random;

pub use two_passes::TwoPasses;
pub use visiting::checkpoint_on;
