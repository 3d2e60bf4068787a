//! Attention as one operation: the scores exist in chunks, in the forward and the backward pass.

mod kept;
mod options;
pub(super) mod shape;
pub(super) mod visible;

use std::sync::Arc;

use burn::tensor::ops::AttentionModuleOptions;
use burn::tensor::{Bool, Tensor};

use self::kept::{BIAS, KEY, Kept, QUERY, VALUE};
use self::shape::Dimensions;
use self::visible::Visible;
use super::node::{Operands, apply};

pub use self::options::Attention;

/// Scaled dot-product attention, as Burn's [`attention`](burn::tensor::module::attention), and in
/// training too: `softmax(query * keyᵀ * scale) * value`, from the paper [Attention Is All You
/// Need](https://arxiv.org/abs/1706.03762).
///
/// See [`Attention`], which has dropout too.
///
/// # Shapes
///
/// - `query`: `[batch, heads, time, head size]`
/// - `key`: `[batch, heads, key time, head size]`
/// - `value`: `[batch, heads, key time, value size]`
/// - `mask` and `attn_bias`: `[batch, heads, time, key time]`, each axis may be 1
/// - output: `[batch, heads, time, value size]`
///
/// # Panics
///
/// If the shapes do not fit.
pub fn attention(
    query: Tensor<4>,
    key: Tensor<4>,
    value: Tensor<4>,
    mask: Option<Tensor<4, Bool>>,
    attn_bias: Option<Tensor<4>>,
    options: AttentionModuleOptions,
) -> Tensor<4> {
    let mut attention = Attention::new();
    attention.scale = options.scale;
    attention.softcap = options.softcap;
    attention.is_causal = options.is_causal;
    attention.bias = attn_bias;
    if let Some(mask) = mask {
        attention = attention.with_mask(mask, f64::NEG_INFINITY);
    }
    attention.forward(query, key, value)
}

impl Attention {
    /// The attended values.
    ///
    /// # Shapes
    ///
    /// - `query`: `[batch, heads, time, head size]`
    /// - `key`: `[batch, key heads, key time, head size]`
    /// - `value`: `[batch, key heads, key time, value size]`
    /// - output: `[batch, heads, time, value size]`
    ///
    /// # Panics
    ///
    /// If the shapes do not fit, `heads` is no multiple of `key heads`, or there are documents and
    /// other times of keys than of queries.
    pub fn forward(self, query: Tensor<4>, key: Tensor<4>, value: Tensor<4>) -> Tensor<4> {
        self.assert_softcap();
        let shape = Dimensions::of(&query, &key, &value);
        for dims in self.masks.iter().map(|(mask, _)| mask.dims()) {
            shape.assert_scores("mask", dims);
        }
        if let Some(bias) = &self.bias {
            shape.assert_scores("bias", bias.dims());
        }
        if let Some(ids) = &self.documents {
            assert!(
                shape.time == shape.key_time && ids.dims() == [shape.batch, shape.time],
                "attention: document ids {:?} for scores {:?}; they are `[batch, time]`, of queries \
                 and keys alike",
                ids.dims(),
                shape.scores()
            );
        }
        if let Some(slopes) = &self.slopes {
            assert_eq!(
                slopes.len(),
                shape.heads,
                "attention: a slope for each head"
            );
        }
        // Where the weights are, of which it drops.
        let is_training = [&query, &key]
            .into_iter()
            .chain(&self.bias)
            .any(Tensor::is_autodiff);
        let dropout = match is_training {
            true => self.dropout,
            false => 0.0,
        };
        let operands = [
            Some(query.into_dispatch()),
            Some(key.into_dispatch()),
            Some(value.into_dispatch()),
            self.bias.clone().map(Tensor::into_dispatch),
        ];
        apply(operands, |mut operands: Operands<4>| {
            let masks = self.masks.into_iter();
            let masks = masks.map(|(mask, value)| (mask.inner(), value)).collect();
            let by_time = |tensor: Tensor<4>| tensor.swap_dims(1, 2);
            let mut kept = Kept {
                query: by_time(operands.take(QUERY)),
                key: by_time(operands.take(KEY)),
                value: by_time(operands.take(VALUE)),
                scale: self
                    .scale
                    .unwrap_or_else(|| 1.0 / (shape.head_size as f64).sqrt()),
                visible: Arc::new(Visible::new(
                    [shape.time, shape.key_time],
                    self.is_causal,
                    self.window,
                    self.documents.clone().map(Tensor::inner),
                )),
                shape,
                options: Self {
                    masks,
                    bias: operands.take_optional(BIAS),
                    documents: None,
                    dropout,
                    ..self
                },
                drop: None,
            };
            kept.draw_dropout();
            (kept.forward(), kept)
        })
    }
}
