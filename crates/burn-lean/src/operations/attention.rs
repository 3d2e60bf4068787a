//! Attention as one operation: the scores exist in chunks, in the forward and the backward pass.

use std::ops::Range;

use burn::tensor::activation::quiet_softmax;
use burn::tensor::ops::AttentionModuleOptions;
use burn::tensor::{Bool, DType, Tensor};

use super::activation::{softmax_backward, softmax_of};
use super::chunks::chunks_of;
#[cfg(feature = "flex")]
use super::flex;
use crate::wide::{wide, widened};
#[cfg(feature = "flex")]
use lean_arithmetic::slices;

use super::dropout::{DropRows, RowsMask, checked};
use super::node::{Gradient, OperandGradients, Operands, Operation, apply};
use crate::backend::reading_waits;

const QUERY: usize = 0;
const KEY: usize = 1;
const VALUE: usize = 2;
const BIAS: usize = 3;

/// Fewest rows of a chunk: products of fewer are slower. So the scores of a chunk grow with the
/// number of keys, and not with its square.
const FEWEST_ROWS: usize = 32;

/// How large the scores of a chunk are, if that many bytes are at least [`FEWEST_ROWS`]. There are up
/// to four tensors of that size at once. On a GPU each chunk costs the start of a few kernels.
fn chunk_bytes(query: &Tensor<4>) -> usize {
    match reading_waits(&query.clone().into_dispatch()) {
        true => 16 << 20,
        false => 1 << 20,
    }
}

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

/// Attention with options.
///
/// The scores `[batch, heads, time, key time]` are made in chunks of rows, each of about 1 MiB or of
/// 32 rows, in the forward pass and again in the backward pass. For that it keeps the query, the key and the
/// value, and of dropout a bit for each score. The idea is that of the paper [FlashAttention-2:
/// Faster Attention with Better Parallelism and Work
/// Partitioning](https://arxiv.org/abs/2307.08691); as a chunk has whole rows here, no statistic of
/// them is kept. Gradients are written over the query, the key and the value if nothing else holds
/// these.
///
/// Key and value may have fewer heads than the query, which are then shared by groups of its heads,
/// as in the paper [GQA](https://arxiv.org/abs/2305.13245).
///
/// # Example
///
/// ```
/// use burn::tensor::{Device, Distribution, Tensor};
/// use burn_lean::operations::Attention;
///
/// let device = Device::flex().autodiff();
/// let random = |shape| Tensor::<4>::random(shape, Distribution::Default, &device);
/// let query = random([2, 4, 9, 8]).require_grad();
/// let (key, value) = (random([2, 2, 9, 8]), random([2, 2, 9, 8]));
/// let output = Attention::new().causal().with_dropout(0.1).forward(query, key, value);
/// assert_eq!(output.dims(), [2, 4, 9, 8]);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Attention {
    scale: Option<f64>,
    softcap: Option<f64>,
    is_causal: bool,
    masks: Vec<(Tensor<4, Bool>, f64)>,
    bias: Option<Tensor<4>>,
    dropout: f64,
    is_quiet: bool,
}

impl Attention {
    /// Attention of every query to every key, scaled by `1 / √(head size)`.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the factor of the scores.
    #[must_use]
    pub fn with_scale(mut self, scale: f64) -> Self {
        self.scale = Some(scale);
        self
    }

    /// Bounds the scores by `softcap * tanh(scores / softcap)`.
    ///
    /// # Panics
    ///
    /// If `softcap` is not positive.
    #[must_use]
    pub fn with_softcap(mut self, softcap: f64) -> Self {
        self.softcap = Some(softcap);
        self.assert_softcap();
        self
    }

    /// Replaces the scores where the mask is true by `value`: minus infinity, or a very negative
    /// number as Burn's [`MultiHeadAttention`](burn::nn::attention::MultiHeadAttention) has it.
    /// Each axis of the mask may be 1. There may be several masks.
    #[must_use]
    pub fn with_mask(mut self, mask: Tensor<4, Bool>, value: f64) -> Self {
        self.masks.push((mask, value));
        self
    }

    /// Lets no query attend to later keys. The last query and the last key are at the same time.
    #[must_use]
    pub fn causal(mut self) -> Self {
        self.is_causal = true;
        self
    }

    /// Adds to the scores after the masks. Each axis of the bias may be 1. It may need a gradient.
    #[must_use]
    pub fn with_bias(mut self, bias: Tensor<4>) -> Self {
        self.bias = Some(bias);
        self
    }

    /// Drops weights of attention with this probability, in training alone.
    ///
    /// # Panics
    ///
    /// If `prob` is not at least 0 and below 1.
    #[must_use]
    pub fn with_dropout(mut self, prob: f64) -> Self {
        self.dropout = checked(prob);
        self
    }

    /// Lets queries attend to nothing: [`quiet_softmax`](burn::tensor::activation::quiet_softmax).
    #[must_use]
    pub fn with_quiet_softmax(mut self, is_quiet: bool) -> Self {
        self.is_quiet = is_quiet;
        self
    }

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
    /// If the shapes do not fit, or `heads` is no multiple of `key heads`.
    pub fn forward(self, query: Tensor<4>, key: Tensor<4>, value: Tensor<4>) -> Tensor<4> {
        self.assert_softcap();
        let shape = Dimensions::of(&query, &key, &value);
        for dims in self.masks.iter().map(|(mask, _)| mask.dims()) {
            shape.assert_scores("mask", dims);
        }
        if let Some(bias) = &self.bias {
            shape.assert_scores("bias", bias.dims());
        }
        let dropout = match query.device().is_autodiff() {
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
            let by_time = |tensor: Tensor<4>| tensor.swap_dims(1, 2);
            let mut kept = Kept {
                query: by_time(operands.take(QUERY)),
                key: by_time(operands.take(KEY)),
                value: by_time(operands.take(VALUE)),
                scale: self
                    .scale
                    .unwrap_or_else(|| 1.0 / (shape.head_size as f64).sqrt()),
                shape,
                attention: Self {
                    masks: self.masks.into_iter().map(inner).collect(),
                    bias: operands.take_optional(BIAS),
                    dropout,
                    ..self
                },
                drop: None,
            };
            kept.draw_dropout();
            (kept.forward(), kept)
        })
    }

    fn assert_softcap(&self) {
        if let Some(softcap) = self.softcap {
            assert!(softcap > 0.0, "attention: a softcap of {softcap}");
        }
    }
}

/// A mask without autodiff, as all else in the operation is.
fn inner((mask, value): (Tensor<4, Bool>, f64)) -> (Tensor<4, Bool>, f64) {
    (mask.inner(), value)
}

#[derive(Clone, Copy, Debug)]
struct Dimensions {
    batch: usize,
    heads: usize,
    time: usize,
    head_size: usize,
    key_heads: usize,
    key_time: usize,
    value_size: usize,
    /// How large the scores of a chunk are.
    chunk_bytes: usize,
}

impl Dimensions {
    fn of(query: &Tensor<4>, key: &Tensor<4>, value: &Tensor<4>) -> Self {
        let [batch, heads, time, head_size] = query.dims();
        let [_, key_heads, key_time, value_size] = value.dims();
        assert_eq!(
            key.dims(),
            [batch, key_heads, key_time, head_size],
            "attention: keys `[batch, key heads, key time, head size]` for queries {:?} and values {:?}",
            query.dims(),
            value.dims()
        );
        assert_eq!(value.dims()[0], batch, "attention: the batches differ");
        assert!(
            key_heads > 0 && heads.is_multiple_of(key_heads),
            "attention: {heads} heads are no multiple of {key_heads}"
        );
        Self {
            batch,
            heads,
            time,
            head_size,
            key_heads,
            key_time,
            value_size,
            chunk_bytes: chunk_bytes(query),
        }
    }

    fn assert_scores(&self, what: &str, dims: [usize; 4]) {
        let scores = [self.batch, self.heads, self.time, self.key_time];
        let fits = dims
            .iter()
            .zip(scores)
            .all(|(dim, score)| *dim == 1 || *dim == score);
        assert!(fits, "attention: a {what} {dims:?} for scores {scores:?}");
    }

    /// Parts of the scores that are made at once: whole rows of all heads.
    fn chunks(self) -> impl Iterator<Item = Chunk> {
        let row = (4 * self.heads * self.key_time).max(1);
        let whole = (row * self.time).max(1);
        let batches: Vec<Range<usize>> = chunks_of(self.batch, self.chunk_bytes / whole).collect();
        let are_any = self.time > 0 && self.key_time > 0;
        let batches = batches.into_iter().filter(move |_| are_any);
        batches.flat_map(move |batch| {
            let rows: Vec<Range<usize>> = match batch.len() {
                // It may be too large alone.
                1 => chunks_of(self.time, (self.chunk_bytes / row).max(FEWEST_ROWS)).collect(),
                _ => std::iter::once(0..self.time).collect(),
            };
            rows.into_iter().map(move |rows| Chunk {
                batch: batch.clone(),
                is_last: rows.end == self.time,
                rows,
            })
        })
    }
}

#[derive(Clone, Debug)]
struct Chunk {
    batch: Range<usize>,
    rows: Range<usize>,
    /// The last rows of its part of the batch.
    is_last: bool,
}

/// A part of a tensor that broadcasts to `[batch, heads, time, key time]`.
fn part_of(dims: [usize; 4], chunk: &Chunk, keys: usize) -> [Range<usize>; 4] {
    let full = |dim: usize, range: Range<usize>| match dims[dim] {
        1 => 0..1,
        _ => range,
    };
    [
        full(0, chunk.batch.clone()),
        0..dims[1],
        full(2, chunk.rows.clone()),
        full(3, 0..keys),
    ]
}

/// Tensors kept for the backward pass. Query, key and value are `[batch, time, heads, size]`, as a
/// linear layer has made them.
#[derive(Clone)]
struct Kept {
    query: Tensor<4>,
    key: Tensor<4>,
    value: Tensor<4>,
    scale: f64,
    shape: Dimensions,
    attention: Attention,
    drop: Option<DropRows>,
}

/// Keys and values of a part of the batch, in 32 bits at least, so that products with them are
/// rounded once: a copy in half precision, which the chunks of rows of that part share.
struct WideKeys {
    key: Tensor<4>,
    value: Tensor<4>,
}

/// The weights of a chunk.
struct Weights {
    /// `[batch, heads, rows, keys]`
    weights: Tensor<4>,
    /// The `tanh` of scores that are bounded.
    capped: Option<Tensor<4>>,
}

impl Kept {
    fn draw_dropout(&mut self) {
        let Dimensions {
            batch,
            heads,
            time,
            key_time,
            chunk_bytes,
            ..
        } = self.shape;
        let dims = [batch, heads, time, key_time];
        if self.attention.dropout > 0.0 && !dims.contains(&0) {
            let device = self.query.device();
            let drop = DropRows::draw(dims, self.attention.dropout, &device, chunk_bytes);
            self.drop = Some(drop);
        }
    }

    fn drop_mask(&self, chunk: &Chunk) -> Option<RowsMask> {
        let keys = self.keys(chunk);
        let drop = self.drop.as_ref();
        drop.map(|drop| drop.mask(chunk.batch.clone(), chunk.rows.clone(), keys))
    }

    /// What attention over slices computes with; none where it cannot.
    #[cfg(feature = "flex")]
    fn over_slices(&self) -> Option<flex::Settings> {
        let attention = &self.attention;
        let has_slices = [&self.query, &self.key, &self.value].map(flex::has_slices);
        let is_empty = self.shape.time == 0 || self.shape.key_time == 0;
        if has_slices.contains(&false)
            || is_empty
            || attention.softcap.is_some()
            || attention.bias.is_some()
        {
            return None;
        }
        Some(flex::Settings {
            scale: self.scale,
            softmax: match () {
                () if attention.is_quiet => slices::Softmax::Quiet,
                () if self.may_be_empty(f64::from(f32::MIN)) => slices::Softmax::MayBeEmpty,
                () => slices::Softmax::Plain,
            },
            is_causal: attention.is_causal,
            masks: attention.masks.clone(),
            drop: self.drop.as_ref().map(DropRows::packed),
        })
    }

    fn forward(&self) -> Tensor<4> {
        #[cfg(feature = "flex")]
        if let Some(settings) = self.over_slices() {
            let operands = [&self.query, &self.key, &self.value].map(Tensor::clone);
            return flex::attention(settings, operands).swap_dims(1, 2);
        }
        let Dimensions {
            batch,
            heads,
            time,
            value_size,
            ..
        } = self.shape;
        let device = self.query.device();
        let dtype = self.query.dtype();
        // Not `zeros`, which Flex makes twice.
        let dims = [batch, time, heads, value_size];
        let mut output = Tensor::<4>::full(dims, 0.0, (&device, dtype));
        let mut wide_keys = None;
        for chunk in self.shape.chunks() {
            let keys = wide_keys.get_or_insert_with(|| self.wide_keys(&chunk));
            let mut weights = self.weights(&chunk, keys).weights;
            if let Some(mask) = self.drop_mask(&chunk) {
                weights = mask.apply(weights);
            }
            let values = self.keys_of(&keys.value, &chunk);
            let part = self.unfold(self.fold(weights).matmul(values));
            if chunk.is_last {
                wide_keys = None;
            }
            let at = [chunk.batch, chunk.rows];
            output = output.slice_assign(at, part.swap_dims(1, 2).cast(dtype));
        }
        output.swap_dims(1, 2)
    }

    /// How many keys a chunk needs: later ones have no weight.
    fn keys(&self, chunk: &Chunk) -> usize {
        let Dimensions { time, key_time, .. } = self.shape;
        match self.attention.is_causal {
            true => (chunk.rows.end + key_time)
                .saturating_sub(time)
                .clamp(key_time.min(1), key_time),
            false => key_time,
        }
    }

    /// The keys and values of a chunk's part of the batch.
    fn wide_keys(&self, chunk: &Chunk) -> WideKeys {
        let part = |tensor: &Tensor<4>| widened(tensor.clone().slice([chunk.batch.clone()]));
        WideKeys {
            key: part(&self.key),
            value: part(&self.value),
        }
    }

    /// `[batch, key heads, keys, size]` of a chunk, of [`WideKeys`].
    fn keys_of(&self, tensor: &Tensor<4>, chunk: &Chunk) -> Tensor<4> {
        let part = [0..chunk.batch.len(), 0..self.keys(chunk)];
        tensor.clone().slice(part).swap_dims(1, 2)
    }

    /// `[batch, heads, rows, size]` of a chunk, in 32 bits at least.
    fn rows_of(&self, tensor: &Tensor<4>, chunk: &Chunk) -> Tensor<4> {
        let part = [chunk.batch.clone(), chunk.rows.clone()];
        widened(tensor.clone().slice(part).swap_dims(1, 2))
    }

    /// Heads that share a key as rows: `[batch, key heads, rows of the group, size]`.
    fn fold(&self, tensor: Tensor<4>) -> Tensor<4> {
        let [batch, heads, rows, size] = tensor.dims();
        let key_heads = self.shape.key_heads;
        match heads == key_heads {
            true => tensor,
            false => tensor.reshape([batch, key_heads, heads / key_heads * rows, size]),
        }
    }

    /// The reverse of [`fold`](Self::fold).
    fn unfold(&self, tensor: Tensor<4>) -> Tensor<4> {
        let [batch, key_heads, rows, size] = tensor.dims();
        let heads = self.shape.heads;
        match heads == key_heads {
            true => tensor,
            false => tensor.reshape([batch, heads, rows * key_heads / heads, size]),
        }
    }

    fn weights(&self, chunk: &Chunk, keys: &WideKeys) -> Weights {
        let attention = &self.attention;
        let query = self.rows_of(&self.query, chunk) * self.scale;
        let key = self.keys_of(&keys.key, chunk);
        let mut scores = self.unfold(self.fold(query).matmul(key.transpose()));
        let capped = attention
            .softcap
            .map(|softcap| (scores.clone() / softcap).tanh());
        if let (Some(capped), Some(softcap)) = (&capped, attention.softcap) {
            scores = capped.clone() * softcap;
        }
        for (mask, value) in self.masks(chunk) {
            scores = scores.mask_fill(mask, value);
        }
        if let Some(bias) = &attention.bias {
            let part = part_of(bias.dims(), chunk, self.keys(chunk));
            scores = scores + bias.clone().slice(part).cast(self.wide());
        }
        Weights {
            weights: self.normalized(scores),
            capped,
        }
    }

    /// The masks of a chunk, with the values that replace scores.
    fn masks(&self, chunk: &Chunk) -> Vec<(Tensor<4, Bool>, f64)> {
        let keys = self.keys(chunk);
        let masks = self.attention.masks.iter();
        let mut masks: Vec<_> = masks
            .map(|(mask, value)| {
                let part = part_of(mask.dims(), chunk, keys);
                (mask.clone().slice(part), *value)
            })
            .collect();
        if self.attention.is_causal {
            let Dimensions { time, key_time, .. } = self.shape;
            let offset = (chunk.rows.start + key_time) as i64 - time as i64;
            let device = self.query.device();
            let mask = Tensor::<2, Bool>::tril_mask([chunk.rows.len(), keys], offset, &device);
            masks.push((mask.unsqueeze(), f64::NEG_INFINITY));
        }
        masks
    }

    /// The type of the scores, from the product of query and key to the weights.
    fn wide(&self) -> DType {
        wide(self.query.dtype())
    }

    /// Whether there may be a row without keys. `min` is the lowest number of the scores' type.
    fn may_be_empty(&self, min: f64) -> bool {
        let Dimensions { time, key_time, .. } = self.shape;
        let mut masks = self.attention.masks.iter();
        masks.any(|(_, value)| *value < min)
            || self.attention.is_causal && key_time < time
            || self.attention.bias.is_some()
    }

    fn normalized(&self, scores: Tensor<4>) -> Tensor<4> {
        if self.attention.is_quiet {
            return quiet_softmax(scores, 3);
        }
        let finfo = scores.dtype().finfo().expect("scores are floats");
        if !self.may_be_empty(finfo.min) {
            return softmax_of(scores, 3);
        }
        // A row without keys has no weights, as with Burn's `attention`.
        let max = scores.clone().max_dim(3).clamp_min(finfo.min);
        let exp = (scores - max).exp();
        let sum = exp.clone().sum_dim(3).clamp_min(finfo.min_positive);
        exp / sum
    }
}

/// The gradients from one chunk.
struct Gradients {
    /// `[batch, heads, rows, head size]`
    query: Option<Tensor<4>>,
    /// `[batch, key heads, keys, size]`
    keys: [Option<Tensor<4>>; 2],
    /// `[batch, heads, rows, keys]`, of the scores with the bias.
    scores: Option<Tensor<4>>,
}

impl Kept {
    fn gradients(
        &self,
        chunk: &Chunk,
        keys: &WideKeys,
        grad: &Tensor<4>,
        wants: [bool; 4],
    ) -> Gradients {
        let Weights { weights, capped } = self.weights(chunk, keys);
        let grad = self.fold(self.rows_of(grad, chunk));
        let value = self.keys_of(&keys.value, chunk);
        let mut of_weights = self.unfold(grad.clone().matmul(value.transpose()));
        let mut dropped = weights.clone();
        if let Some(mask) = self.drop_mask(chunk) {
            of_weights = mask.apply(of_weights);
            dropped = mask.apply(dropped);
        }
        let value = wants[VALUE].then(|| {
            let dropped = self.fold(dropped.clone());
            dropped.transpose().matmul(grad)
        });
        drop(dropped);

        let mut of_scores = softmax_backward(weights, of_weights, 3);
        let scores = wants[BIAS].then(|| of_scores.clone());
        for (mask, _) in self.masks(chunk) {
            of_scores = of_scores.mask_fill(mask, 0.0);
        }
        if let Some(tanh) = capped {
            of_scores = of_scores * (tanh.square().neg() + 1.0);
        }
        let of_scores = self.fold(of_scores);
        let key = wants[KEY].then(|| {
            let query = self.fold(self.rows_of(&self.query, chunk) * self.scale);
            of_scores.clone().transpose().matmul(query)
        });
        let query = wants[QUERY].then(|| {
            let key = self.keys_of(&keys.key, chunk);
            self.unfold(of_scores.matmul(key)) * self.scale
        });
        Gradients {
            query,
            keys: [key, value],
            scores,
        }
    }

    /// Adds a chunk to the gradient of the bias.
    fn add_to_bias(&self, sum: Tensor<4>, mut scores: Tensor<4>, chunk: &Chunk) -> Tensor<4> {
        let dims = sum.dims();
        for (dim, size) in dims.into_iter().enumerate() {
            if size == 1 {
                scores = scores.sum_dim(dim);
            }
        }
        let part = part_of(dims, chunk, self.keys(chunk));
        let before = sum.clone().slice(part.clone());
        sum.slice_assign(part, before + scores)
    }
}

/// The gradient of the keys or the values of one part of the batch, over its chunks of rows.
#[derive(Default)]
struct KeySum(Option<Tensor<4>>);

impl KeySum {
    /// Adds `[batch, key heads, keys, size]`: `key_time` is how many keys there are.
    fn add(&mut self, part: Tensor<4>, key_time: usize) {
        let [batch, heads, keys, size] = part.dims();
        let sum = self.0.take();
        if sum.is_none() && keys == key_time {
            self.0 = Some(part);
            return;
        }
        let sum = sum.unwrap_or_else(|| {
            let options = (&part.device(), part.dtype());
            Tensor::zeros([batch, heads, key_time, size], options)
        });
        let at = [0..batch, 0..heads, 0..keys];
        let before = sum.clone().slice(at.clone());
        self.0 = Some(sum.slice_assign(at, before + part));
    }
}

impl Operation<4> for Kept {
    const NAME: &'static str = "attention";
    const MIXES: bool = true;

    fn backward(mut self, grad: Gradient, operands: &mut OperandGradients<'_, 4>) {
        let wants = std::array::from_fn(|at| operands.wants(at));
        let dtype = self.query.dtype();
        let grad = grad.tensor::<4>().swap_dims(1, 2);
        #[cfg(feature = "flex")]
        if flex::has_slices(&grad)
            && let Some(settings) = self.over_slices()
        {
            self.drop = None;
            let of = [self.query, self.key, self.value];
            let wanted = [wants[QUERY], wants[KEY], wants[VALUE]];
            let grads = flex::attention_backward(settings, of, grad, wanted);
            for (at, grad) in [QUERY, KEY, VALUE].into_iter().zip(grads) {
                operands.give(at, grad.swap_dims(1, 2));
            }
            return;
        }
        let bias = self.attention.bias.as_ref().filter(|_| wants[BIAS]);
        let zeros = |bias: &Tensor<4>| bias.zeros_like().cast(self.wide());
        let mut of_bias = bias.map(zeros);
        if self.shape.time == 0 || self.shape.key_time == 0 {
            // No chunk writes a gradient over these.
            for tensor in [&mut self.query, &mut self.key, &mut self.value] {
                *tensor = tensor.zeros_like();
            }
        }
        let mut sums = <[KeySum; 2]>::default();
        let mut wide_keys = None;
        for chunk in self.shape.chunks() {
            let keys = wide_keys.get_or_insert_with(|| self.wide_keys(&chunk));
            let part = self.gradients(&chunk, keys, &grad, wants);
            if chunk.is_last {
                // Gradients are written over the keys, which nothing else may hold then.
                wide_keys = None;
            }
            if let (Some(sum), Some(scores)) = (of_bias.take(), part.scores) {
                of_bias = Some(self.add_to_bias(sum, scores, &chunk));
            }
            // Nothing reads these rows of the query again.
            if let Some(part) = part.query {
                let at = [chunk.batch.clone(), chunk.rows.clone()];
                self.query
                    .inplace(|query| query.slice_assign(at, part.swap_dims(1, 2).cast(dtype)));
            }
            let of_keys = [&mut self.key, &mut self.value];
            for ((tensor, part), sum) in of_keys.into_iter().zip(part.keys).zip(&mut sums) {
                let Some(part) = part else { continue };
                sum.add(part, self.shape.key_time);
                if chunk.is_last
                    && let Some(sum) = sum.0.take()
                {
                    let at = [chunk.batch.clone()];
                    let sum = sum.swap_dims(1, 2).cast(tensor.dtype());
                    tensor.inplace(|tensor| tensor.slice_assign(at, sum));
                }
            }
        }
        drop(grad);
        let by_head = |tensor: Tensor<4>| tensor.swap_dims(1, 2);
        for (at, grad) in [(QUERY, self.query), (KEY, self.key), (VALUE, self.value)] {
            operands.give(at, by_head(grad));
        }
        if let Some(of_bias) = of_bias {
            operands.give(BIAS, of_bias);
        }
    }
}
