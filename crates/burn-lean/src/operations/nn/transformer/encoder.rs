//! The encoder of a transformer.

use burn::module::Module;
use burn::nn::Initializer;
use burn::nn::activation::ActivationConfig;
use burn::nn::transformer::TransformerEncoderAutoregressiveCache;
use burn::tensor::{Bool, Device, Tensor};

use super::{NO_OPTIONS, PositionWiseFeedForward, fit_to_input};
use crate::operations::Attention;
use crate::operations::nn::attention::{MhaInput, MultiHeadAttention};
use crate::operations::nn::configuration::configuration;
use crate::operations::nn::same_fields::same_fields;
use crate::operations::nn::{Dropout, LayerNorm};
use crate::recompute::encoder_layers;

configuration! {
    TransformerEncoderConfig(burn::nn::transformer::TransformerEncoderConfig) {
        new(d_model: usize, d_ff: usize, n_heads: usize, n_layers: usize),
        with_dropout: f64,
        with_norm_first: bool,
        with_quiet_softmax: bool,
        with_initializer: Initializer,
        with_activation: ActivationConfig,
        with_layer_norm_eps: f64,
    }
    init(device: &Device) -> TransformerEncoder
}

/// Burn's [`TransformerEncoder`](burn::nn::transformer::TransformerEncoder), of layers that keep
/// little.
#[derive(Module, Debug)]
pub struct TransformerEncoder {
    /// The layers.
    pub layers: Vec<TransformerEncoderLayer>,
    /// The size of the model.
    pub d_model: usize,
    /// The size of the feed-forward network.
    pub d_ff: usize,
    /// The number of heads.
    pub n_heads: usize,
    /// The number of layers.
    pub n_layers: usize,
    /// The probability of dropout.
    pub dropout: f64,
    /// Whether normalization comes before the other modules.
    pub norm_first: bool,
    /// Whether queries may attend to nothing.
    pub quiet_softmax: bool,
}

same_fields!(TransformerEncoder, burn::nn::transformer::TransformerEncoder, {
    [layers],
    d_model,
    d_ff,
    n_heads,
    n_layers,
    dropout,
    norm_first,
    quiet_softmax,
});

encoder_layers!(TransformerEncoder, TransformerEncoderLayer);

/// The input of [`TransformerEncoder::forward`].
#[derive(Clone, Debug)]
pub struct TransformerEncoderInput {
    tensor: Tensor<3>,
    mask_pad: Option<Tensor<2, Bool>>,
    mask_attn: Option<Tensor<3, Bool>>,
    attention: Option<Attention>,
}

impl TransformerEncoderInput {
    /// An input `[batch, time, d_model]`.
    pub fn new(tensor: Tensor<3>) -> Self {
        Self {
            tensor,
            mask_pad: None,
            mask_attn: None,
            attention: None,
        }
    }

    /// Options of the attention of every layer, such as its causal order, a window or the documents
    /// of packed sequences: see [`MultiHeadAttention::forward_with`].
    #[must_use]
    pub fn attention(mut self, attention: Attention) -> Self {
        self.attention = Some(attention);
        self
    }

    /// Masks keys, where true: `[batch, time]`.
    #[must_use]
    pub fn mask_pad(mut self, mask_pad: Tensor<2, Bool>) -> Self {
        self.mask_pad = Some(mask_pad);
        self
    }

    /// Masks scores, where true: `[batch, time, time]`.
    #[must_use]
    pub fn mask_attn(mut self, mask_attn: Tensor<3, Bool>) -> Self {
        self.mask_attn = Some(mask_attn);
        self
    }

    fn plain(self) -> burn::nn::transformer::TransformerEncoderInput {
        assert!(self.attention.is_none(), "{NO_OPTIONS}");
        let mut plain = burn::nn::transformer::TransformerEncoderInput::new(self.tensor);
        if let Some(mask_pad) = self.mask_pad {
            plain = plain.mask_pad(mask_pad);
        }
        if let Some(mask_attn) = self.mask_attn {
            plain = plain.mask_attn(mask_attn);
        }
        plain
    }
}

impl TransformerEncoder {
    /// Applies the layers.
    ///
    /// # Shapes
    ///
    /// - output: `[batch, time, d_model]`
    ///
    /// # Panics
    ///
    /// If the shapes of the input do not fit.
    pub fn forward(&self, input: TransformerEncoderInput) -> Tensor<3> {
        let TransformerEncoderInput {
            tensor,
            mask_pad,
            mask_attn,
            attention,
        } = input;
        let attention = attention.unwrap_or_default();
        self.layers.iter().fold(tensor, |x, layer| {
            layer.forward_with(x, mask_pad.clone(), mask_attn.clone(), attention.clone())
        })
    }

    /// Applies the layers with a cache, for inference: Burn's own. With an input in bf16, it rounds the
    /// parameters of normalizations to bf16, which [`forward`](Self::forward) does not; in a model from
    /// [`MixedPrecision::to_f32`](crate::MixedPrecision::to_f32) nothing is rounded.
    ///
    /// # Panics
    ///
    /// If the shapes of the input do not fit, or it has options of attention.
    pub fn forward_autoregressive_inference(
        &self,
        input: TransformerEncoderInput,
        cache: &mut TransformerEncoderAutoregressiveCache,
    ) -> Tensor<3> {
        let mut plain: burn::nn::transformer::TransformerEncoder = self.clone().into();
        let norms = plain.layers.iter_mut();
        let norms = norms.flat_map(|layer| [&mut layer.norm_1, &mut layer.norm_2]);
        norms.for_each(|norm| fit_to_input(norm, input.tensor.dtype()));
        plain.forward_autoregressive_inference(input.plain(), cache)
    }

    /// An empty cache.
    pub fn new_autoregressive_cache(&self) -> TransformerEncoderAutoregressiveCache {
        let plain: burn::nn::transformer::TransformerEncoder = self.clone().into();
        plain.new_autoregressive_cache()
    }
}

/// Burn's [`TransformerEncoderLayer`](burn::nn::transformer::TransformerEncoderLayer).
#[derive(Module, Debug)]
pub struct TransformerEncoderLayer {
    /// Attention of the input to itself.
    pub mha: MultiHeadAttention,
    /// The feed-forward network.
    pub pwff: PositionWiseFeedForward,
    /// Normalization at the feed-forward network.
    pub norm_1: LayerNorm,
    /// Normalization at the attention.
    pub norm_2: LayerNorm,
    /// Drops what is added to the residual path.
    pub dropout: Dropout,
    /// Whether normalization comes before the other modules.
    pub norm_first: bool,
}

same_fields!(
    TransformerEncoderLayer,
    burn::nn::transformer::TransformerEncoderLayer,
    { mha, pwff, norm_1, norm_2, dropout, norm_first }
);

impl TransformerEncoderLayer {
    /// A layer of an encoder with these settings.
    pub fn new(config: &TransformerEncoderConfig, device: &Device) -> Self {
        burn::nn::transformer::TransformerEncoderLayer::new(config, device).into()
    }

    /// Applies the layer.
    ///
    /// # Shapes
    ///
    /// - `input` and output: `[batch, time, d_model]`
    /// - `mask_pad`: `[batch, time]`
    /// - `mask_attn`: `[batch, time, time]`
    ///
    /// # Panics
    ///
    /// If the shapes do not fit.
    pub fn forward(
        &self,
        input: Tensor<3>,
        mask_pad: Option<Tensor<2, Bool>>,
        mask_attn: Option<Tensor<3, Bool>>,
    ) -> Tensor<3> {
        self.forward_with(input, mask_pad, mask_attn, Attention::new())
    }

    /// Applies the layer with options of its attention: see [`MultiHeadAttention::forward_with`].
    ///
    /// # Shapes and panics
    ///
    /// Those of [`forward`](Self::forward).
    pub fn forward_with(
        &self,
        input: Tensor<3>,
        mask_pad: Option<Tensor<2, Bool>>,
        mask_attn: Option<Tensor<3, Bool>>,
        attention: Attention,
    ) -> Tensor<3> {
        let mut x = input;
        let residual = match self.norm_first {
            true => self.norm_2.forward(x.clone()),
            false => x.clone(),
        };
        let attended = MhaInput::self_attn(residual).masked(mask_pad, mask_attn);
        let attended = self.mha.forward_with(attended, attention);
        x = x + self.dropout.forward(attended.context);

        let residual = match self.norm_first {
            true => self.norm_1.forward(x.clone()),
            false => {
                x = self.norm_1.forward(x);
                x.clone()
            }
        };
        x = x + self.dropout.forward(self.pwff.forward(residual));
        match self.norm_first {
            true => x,
            false => self.norm_2.forward(x),
        }
    }
}
