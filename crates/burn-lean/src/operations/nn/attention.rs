//! Burn's [`nn::attention`](burn::nn::attention), with a [`MultiHeadAttention`] that keeps no
//! scores.

pub use burn::nn::attention::*;

use burn::module::Module;
use burn::nn::Initializer;
use burn::tensor::{Bool, Device, Tensor};

use super::configuration::configuration;
use super::same_fields::same_fields;
use super::{Dropout, Gelu, Linear};
use crate::operations::Attention;

configuration! {
    MultiHeadAttentionConfig(burn::nn::attention::MultiHeadAttentionConfig) {
        new(d_model: usize, n_heads: usize),
        with_dropout: f64,
        with_min_float: f64,
        with_quiet_softmax: bool,
        with_initializer: Initializer,
        with_key_bias: bool,
        with_value_bias: bool,
        with_query_bias: bool,
        with_output_bias: bool,
    }
    init(device: &Device) -> MultiHeadAttention
}

/// Burn's [`MultiHeadAttention`](burn::nn::attention::MultiHeadAttention) with
/// [`Attention`] as one operation. It makes no weights to return: ask for
/// [`weights`](Self::weights).
#[derive(Module, Debug)]
pub struct MultiHeadAttention {
    /// Makes the queries.
    pub query: Linear,
    /// Makes the keys.
    pub key: Linear,
    /// Makes the values.
    pub value: Linear,
    /// Is applied to the result of the attention.
    pub output: Linear,
    /// Drops weights.
    pub dropout: Dropout,
    /// Not used, in Burn's neither.
    pub activation: Gelu,
    /// The size of each linear layer.
    pub d_model: usize,
    /// The number of heads.
    pub n_heads: usize,
    /// The size of a head.
    pub d_k: usize,
    /// The number that replaces masked scores.
    pub min_float: f64,
    /// Whether queries may attend to nothing.
    pub quiet_softmax: bool,
}

same_fields!(MultiHeadAttention, burn::nn::attention::MultiHeadAttention, {
    query,
    key,
    value,
    output,
    dropout,
    activation,
    d_model,
    n_heads,
    d_k,
    min_float,
    quiet_softmax,
});

/// The input of [`MultiHeadAttention::forward`].
#[derive(Clone, Debug)]
pub struct MhaInput {
    query: Tensor<3>,
    key: Tensor<3>,
    value: Tensor<3>,
    mask_pad: Option<Tensor<2, Bool>>,
    mask_attn: Option<Tensor<3, Bool>>,
}

impl MhaInput {
    /// A tensor that attends to itself.
    ///
    /// # Shapes
    ///
    /// - `tensor`: `[batch, time, d_model]`
    pub fn self_attn(tensor: Tensor<3>) -> Self {
        Self::new(tensor.clone(), tensor.clone(), tensor)
    }

    /// Queries that attend to other times.
    ///
    /// # Shapes
    ///
    /// - `query`: `[batch, time, d_model]`
    /// - `key` and `value`: `[batch, key time, d_model]`
    pub fn new(query: Tensor<3>, key: Tensor<3>, value: Tensor<3>) -> Self {
        Self {
            query,
            key,
            value,
            mask_pad: None,
            mask_attn: None,
        }
    }

    /// Masks keys, where true: `[batch, key time]`.
    #[must_use]
    pub fn mask_pad(mut self, mask_pad: Tensor<2, Bool>) -> Self {
        self.mask_pad = Some(mask_pad);
        self
    }

    /// Masks scores, where true: `[batch, time, key time]`.
    #[must_use]
    pub fn mask_attn(mut self, mask_attn: Tensor<3, Bool>) -> Self {
        self.mask_attn = Some(mask_attn);
        self
    }

    /// With masks that may be missing.
    pub(super) fn masked(
        mut self,
        mask_pad: Option<Tensor<2, Bool>>,
        mask_attn: Option<Tensor<3, Bool>>,
    ) -> Self {
        self.mask_pad = mask_pad;
        self.mask_attn = mask_attn;
        self
    }

    fn plain(self) -> burn::nn::attention::MhaInput {
        let mut plain = burn::nn::attention::MhaInput::new(self.query, self.key, self.value);
        if let Some(mask_pad) = self.mask_pad {
            plain = plain.mask_pad(mask_pad);
        }
        if let Some(mask_attn) = self.mask_attn {
            plain = plain.mask_attn(mask_attn);
        }
        plain
    }
}

/// The output of [`MultiHeadAttention::forward`]: not the weights, which never exist at once.
#[derive(Clone, Debug)]
pub struct MhaOutput {
    /// `[batch, time, d_model]`
    pub context: Tensor<3>,
}

impl MultiHeadAttention {
    /// Applies the layer.
    ///
    /// # Panics
    ///
    /// If the shapes of the input do not fit.
    pub fn forward(&self, input: MhaInput) -> MhaOutput {
        self.forward_with(input, Attention::new())
    }

    /// Applies the layer with more options of [`Attention`], such as its causal order, a window or
    /// the documents of packed sequences. Scale, dropout and softmax are those of the layer.
    ///
    /// # Panics
    ///
    /// If the shapes of the input do not fit.
    pub fn forward_with(&self, input: MhaInput, mut attention: Attention) -> MhaOutput {
        let [batch, time, _] = input.query.dims();
        let query = self.heads_of(input.query, &self.query);
        let key = self.heads_of(input.key, &self.key);
        let value = self.heads_of(input.value, &self.value);
        // The last mask counts: what the options hide stays hidden.
        let last_masks = std::mem::take(&mut attention.masks);
        attention = attention
            .with_scale(1.0 / f64::from((self.d_k as f32).sqrt()))
            .with_dropout(self.dropout.current_prob())
            .with_quiet_softmax(self.quiet_softmax);
        if let Some(mask) = input.mask_pad {
            let [batch, keys] = mask.dims();
            attention = attention.with_mask(mask.reshape([batch, 1, 1, keys]), self.min_float);
        }
        if let Some(mask) = input.mask_attn {
            attention = attention.with_mask(mask.unsqueeze_dim(1), self.min_float);
        }
        attention.masks.extend(last_masks);
        let context = attention.forward(query, key, value).swap_dims(1, 2);
        let context = context.reshape([batch, time, self.d_model]);
        MhaOutput {
            context: self.output.forward(context),
        }
    }

    /// The weights of attention before dropout: `[batch, n_heads, time, key time]`. Outside of
    /// training, Burn's module returns the same.
    ///
    /// # Panics
    ///
    /// If the shapes of the input do not fit.
    pub fn weights(&self, input: MhaInput) -> Tensor<4> {
        let mut layer = self.plain();
        layer.dropout.prob = 0.0;
        layer.forward(input.plain()).weights
    }

    /// Applies the layer with a cache, for inference: Burn's own.
    ///
    /// # Panics
    ///
    /// If the shapes of the input do not fit.
    pub fn forward_cache(&self, input: MhaInput, cache: &mut MhaCache) -> MhaOutput {
        let context = self.plain().forward_cache(input.plain(), cache).context;
        MhaOutput { context }
    }

    fn plain(&self) -> burn::nn::attention::MultiHeadAttention {
        self.clone().into()
    }

    /// `[batch, n_heads, time, d_k]`
    fn heads_of(&self, x: Tensor<3>, linear: &Linear) -> Tensor<4> {
        let [batch, time, _] = x.dims();
        let heads = linear.forward(x);
        heads
            .reshape([batch, time, self.n_heads, self.d_k])
            .swap_dims(1, 2)
    }
}
