//! Burn's [`nn::transformer`](burn::nn::transformer), of modules that keep little.

mod decoder;
mod encoder;
mod pwff;

pub use burn::nn::transformer::*;

pub use decoder::{
    TransformerDecoder, TransformerDecoderConfig, TransformerDecoderInput, TransformerDecoderLayer,
};
pub use encoder::{
    TransformerEncoder, TransformerEncoderConfig, TransformerEncoderInput, TransformerEncoderLayer,
};
pub use pwff::{PositionWiseFeedForward, PositionWiseFeedForwardConfig};

/// Inference with a cache is Burn's own, whose attention is without options.
const NO_OPTIONS: &str = "inference with a cache has no options of attention: give masks";
