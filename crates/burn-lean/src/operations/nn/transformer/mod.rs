//! Burn's [`nn::transformer`](burn::nn::transformer), of modules that save fewer tensors.

mod decoder;
mod encoder;
mod pwff;

use burn::module::Param;
use burn::tensor::DType;

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

/// Gives a normalization of Burn's parameters that it takes with an input of this type: it widens
/// inputs in f16, but those in bf16 need parameters in bf16.
fn fit_to_input(norm: &mut burn::nn::LayerNorm, dtype: DType) {
    if dtype != DType::BF16 {
        return;
    }
    for param in std::iter::once(&mut norm.gamma).chain(&mut norm.beta) {
        *param = Param::initialized(param.id, param.val().cast(dtype));
    }
}
