//! From Burn's modules to those that keep little, and back.

use super::attention::MultiHeadAttention;
use super::transformer::{
    PositionWiseFeedForward, TransformerDecoder, TransformerDecoderLayer, TransformerEncoder,
    TransformerEncoderLayer,
};
use super::{
    Dropout, Embedding, Gelu, GroupNorm, LayerNorm, Linear, PositionalEncoding, RmsNorm,
    RotaryEncoding, SwiGlu,
};

/// A module of Burn's that there is another of here, with the same parameters.
///
/// ```
/// use burn::nn::transformer::TransformerEncoderConfig;
/// use burn::tensor::Device;
/// use burn_lean::operations::nn::LeanModule;
///
/// let encoder = TransformerEncoderConfig::new(8, 16, 2, 3).init(&Device::flex());
/// let encoder = encoder.lean();
/// # let _: burn::nn::transformer::TransformerEncoder = LeanModule::plain(encoder);
/// ```
pub trait LeanModule: Sized {
    /// The module of [`nn`](crate::operations::nn).
    type Lean;

    /// The module that keeps little. The parameters are the same, with their ids.
    fn lean(self) -> Self::Lean;

    /// Burn's own module again.
    fn plain(lean: Self::Lean) -> Self;
}

impl<M: LeanModule> LeanModule for Vec<M> {
    type Lean = Vec<M::Lean>;

    fn lean(self) -> Self::Lean {
        self.into_iter().map(M::lean).collect()
    }

    fn plain(lean: Self::Lean) -> Self {
        lean.into_iter().map(M::plain).collect()
    }
}

impl<M: LeanModule> LeanModule for Option<M> {
    type Lean = Option<M::Lean>;

    fn lean(self) -> Self::Lean {
        self.map(M::lean)
    }

    fn plain(lean: Self::Lean) -> Self {
        lean.map(M::plain)
    }
}

macro_rules! lean {
    ($($plain:ty => $lean:ty),+ $(,)?) => {$(
        impl LeanModule for $plain {
            type Lean = $lean;

            fn lean(self) -> $lean {
                self.into()
            }

            fn plain(lean: $lean) -> Self {
                lean.into()
            }
        }
    )+};
}

lean! {
    burn::nn::Dropout => Dropout,
    burn::nn::Embedding => Embedding,
    burn::nn::Gelu => Gelu,
    burn::nn::GroupNorm => GroupNorm,
    burn::nn::LayerNorm => LayerNorm,
    burn::nn::Linear => Linear,
    burn::nn::PositionalEncoding => PositionalEncoding,
    burn::nn::RmsNorm => RmsNorm,
    burn::nn::RotaryEncoding => RotaryEncoding,
    burn::nn::SwiGlu => SwiGlu,
    burn::nn::attention::MultiHeadAttention => MultiHeadAttention,
    burn::nn::transformer::PositionWiseFeedForward => PositionWiseFeedForward,
    burn::nn::transformer::TransformerDecoder => TransformerDecoder,
    burn::nn::transformer::TransformerDecoderLayer => TransformerDecoderLayer,
    burn::nn::transformer::TransformerEncoder => TransformerEncoder,
    burn::nn::transformer::TransformerEncoderLayer => TransformerEncoderLayer,
}
