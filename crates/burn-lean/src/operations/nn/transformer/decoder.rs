//! The decoder of a transformer.

use burn::module::Module;
use burn::nn::Initializer;
use burn::nn::activation::ActivationConfig;
use burn::nn::transformer::TransformerDecoderAutoregressiveCache;
use burn::tensor::{Bool, Device, Tensor};

use super::{NO_OPTIONS, PositionWiseFeedForward, fit_to_input};
use crate::operations::Attention;
use crate::operations::nn::attention::{MhaInput, MultiHeadAttention};
use crate::operations::nn::configuration::configuration;
use crate::operations::nn::same_fields::same_fields;
use crate::operations::nn::{Dropout, LayerNorm};
use crate::recompute::{DecoderLayers, DecoderMasks};

configuration! {
    TransformerDecoderConfig(burn::nn::transformer::TransformerDecoderConfig) {
        new(d_model: usize, d_ff: usize, n_heads: usize, n_layers: usize),
        with_dropout: f64,
        with_norm_first: bool,
        with_quiet_softmax: bool,
        with_initializer: Initializer,
        with_activation: ActivationConfig,
        with_layer_norm_eps: f64,
    }
    init(device: &Device) -> TransformerDecoder
}

/// Burn's [`TransformerDecoder`](burn::nn::transformer::TransformerDecoder), of layers that keep
/// little.
#[derive(Module, Debug)]
pub struct TransformerDecoder {
    /// The layers.
    pub layers: Vec<TransformerDecoderLayer>,
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

same_fields!(TransformerDecoder, burn::nn::transformer::TransformerDecoder, {
    [layers],
    d_model,
    d_ff,
    n_heads,
    n_layers,
    dropout,
    norm_first,
    quiet_softmax,
});

impl DecoderLayers for TransformerDecoder {
    type Layer = TransformerDecoderLayer;

    fn layers(&self) -> Vec<TransformerDecoderLayer> {
        self.layers.clone()
    }

    fn forward_layer(
        layer: &TransformerDecoderLayer,
        target: Tensor<3>,
        memory: Tensor<3>,
        masks: DecoderMasks,
    ) -> Tensor<3> {
        let mut input = TransformerDecoderInput::new(target, memory);
        input.masks = masks;
        layer.forward(input).target
    }
}

/// The input of [`TransformerDecoder::forward`].
#[derive(Clone, Debug)]
pub struct TransformerDecoderInput {
    target: Tensor<3>,
    memory: Tensor<3>,
    masks: DecoderMasks,
    target_attention: Option<Attention>,
}

impl TransformerDecoderInput {
    /// A target `[batch, time, d_model]` and the memory it attends to, `[batch, memory time,
    /// d_model]`.
    pub fn new(target: Tensor<3>, memory: Tensor<3>) -> Self {
        Self {
            target,
            memory,
            masks: DecoderMasks::default(),
            target_attention: None,
        }
    }

    /// Masks times of the memory, where true: `[batch, memory time]`.
    #[must_use]
    pub fn memory_mask_pad(mut self, mask_pad: Tensor<2, Bool>) -> Self {
        self.masks.memory_pad = Some(mask_pad);
        self
    }

    /// Masks scores with the memory, where true: `[batch, time, memory time]`.
    #[must_use]
    pub fn memory_mask_attn(mut self, mask_attn: Tensor<3, Bool>) -> Self {
        self.masks.memory_attn = Some(mask_attn);
        self
    }

    /// Masks times of the target, where true: `[batch, time]`.
    #[must_use]
    pub fn target_mask_pad(mut self, mask_pad: Tensor<2, Bool>) -> Self {
        self.masks.target_pad = Some(mask_pad);
        self
    }

    /// Masks scores within the target, where true: `[batch, time, time]`.
    #[must_use]
    pub fn target_mask_attn(mut self, mask_attn: Tensor<3, Bool>) -> Self {
        self.masks.target_attn = Some(mask_attn);
        self
    }

    /// Options of the attention of the target to itself, in every layer, such as its causal order
    /// or a window: see [`MultiHeadAttention::forward_with`].
    #[must_use]
    pub fn target_attention(mut self, attention: Attention) -> Self {
        self.target_attention = Some(attention);
        self
    }

    fn plain(self) -> burn::nn::transformer::TransformerDecoderInput {
        assert!(self.target_attention.is_none(), "{NO_OPTIONS}");
        let plain = burn::nn::transformer::TransformerDecoderInput::new(self.target, self.memory);
        self.masks.mask(plain)
    }
}

impl TransformerDecoder {
    /// Applies the layers.
    ///
    /// # Shapes
    ///
    /// - output: `[batch, time, d_model]`
    ///
    /// # Panics
    ///
    /// If the shapes of the input do not fit.
    pub fn forward(&self, input: TransformerDecoderInput) -> Tensor<3> {
        let layers = self.layers.iter();
        layers
            .fold(input, |input, layer| layer.forward(input))
            .target
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
        input: TransformerDecoderInput,
        cache: &mut TransformerDecoderAutoregressiveCache,
    ) -> Tensor<3> {
        let mut plain: burn::nn::transformer::TransformerDecoder = self.clone().into();
        let norms = plain.layers.iter_mut();
        let norms =
            norms.flat_map(|layer| [&mut layer.norm_1, &mut layer.norm_2, &mut layer.norm_3]);
        norms.for_each(|norm| fit_to_input(norm, input.target.dtype()));
        plain.forward_autoregressive_inference(input.plain(), cache)
    }

    /// An empty cache.
    pub fn new_autoregressive_cache(&self) -> TransformerDecoderAutoregressiveCache {
        let plain: burn::nn::transformer::TransformerDecoder = self.clone().into();
        plain.new_autoregressive_cache()
    }
}

/// Burn's [`TransformerDecoderLayer`](burn::nn::transformer::TransformerDecoderLayer).
#[derive(Module, Debug)]
pub struct TransformerDecoderLayer {
    /// Attention of the target to the memory.
    pub cross_attn: MultiHeadAttention,
    /// Attention of the target to itself.
    pub self_attn: MultiHeadAttention,
    /// The feed-forward network.
    pub pwff: PositionWiseFeedForward,
    /// Normalization at the attention to the memory.
    pub norm_1: LayerNorm,
    /// Normalization at the feed-forward network.
    pub norm_2: LayerNorm,
    /// Normalization at the attention to itself.
    pub norm_3: LayerNorm,
    /// Drops what is added to the residual path.
    pub dropout: Dropout,
    /// Whether normalization comes before the other modules.
    pub norm_first: bool,
}

same_fields!(
    TransformerDecoderLayer,
    burn::nn::transformer::TransformerDecoderLayer,
    { cross_attn, self_attn, pwff, norm_1, norm_2, norm_3, dropout, norm_first }
);

impl TransformerDecoderLayer {
    /// A layer of a decoder with these settings.
    pub fn new(config: &TransformerDecoderConfig, device: &Device) -> Self {
        burn::nn::transformer::TransformerDecoderLayer::new(config, device).into()
    }

    /// Applies the layer to the target.
    ///
    /// # Panics
    ///
    /// If the shapes of the input do not fit.
    pub fn forward(&self, mut input: TransformerDecoderInput) -> TransformerDecoderInput {
        let mut x = input.target;
        let residual = match self.norm_first {
            true => self.norm_3.forward(x.clone()),
            false => x.clone(),
        };
        let masks = input.masks.clone();
        let attended = MhaInput::self_attn(residual).masked(masks.target_pad, masks.target_attn);
        let attention = input.target_attention.clone().unwrap_or_default();
        let attended = self.self_attn.forward_with(attended, attention);
        x = x + self.dropout.forward(attended.context);

        let residual = self.normalized(&self.norm_1, &mut x);
        let memory = input.memory.clone();
        let attended = MhaInput::new(residual, memory.clone(), memory)
            .masked(masks.memory_pad, masks.memory_attn);
        x = x + self
            .dropout
            .forward(self.cross_attn.forward(attended).context);

        let residual = self.normalized(&self.norm_2, &mut x);
        x = x + self.dropout.forward(self.pwff.forward(residual));
        input.target = match self.norm_first {
            true => x,
            false => self.norm_3.forward(x),
        };
        input
    }

    /// The input of the next module. The residual path itself is normalized unless normalization
    /// comes first.
    fn normalized(&self, norm: &LayerNorm, x: &mut Tensor<3>) -> Tensor<3> {
        if self.norm_first {
            return norm.forward(x.clone());
        }
        x.inplace(|x| norm.forward(x));
        x.clone()
    }
}
