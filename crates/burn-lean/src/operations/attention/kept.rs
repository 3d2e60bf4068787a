//! What attention keeps, and its passes over chunks of scores.

use std::ops::Range;
use std::sync::Arc;

use burn::tensor::activation::quiet_softmax;
use burn::tensor::{Bool, DType, Tensor};
#[cfg(feature = "flex")]
use lean_arithmetic::slices;

use super::options::Attention;
use super::shape::{Chunk, Dimensions};
use super::visible::Visible;
use crate::operations::activation::{softmax_backward, softmax_of};
use crate::operations::dropout::{DropRows, RowsMask};
#[cfg(feature = "flex")]
use crate::operations::flex;
use crate::operations::node::{Gradient, OperandGradients, Operation};
use crate::wide::{wide, widened};

pub(super) const QUERY: usize = 0;
pub(super) const KEY: usize = 1;
pub(super) const VALUE: usize = 2;
pub(super) const BIAS: usize = 3;

/// Tensors kept for the backward pass. Query, key and value are `[batch, time, heads, size]`, as a
/// linear layer has made them.
#[derive(Clone)]
pub(super) struct Kept {
    pub(super) query: Tensor<4>,
    pub(super) key: Tensor<4>,
    pub(super) value: Tensor<4>,
    pub(super) scale: f64,
    pub(super) shape: Dimensions,
    pub(super) visible: Arc<Visible>,
    pub(super) options: Attention,
    pub(super) drop: Option<DropRows>,
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
    pub(super) fn draw_dropout(&mut self) {
        let dims = self.shape.scores();
        if self.options.dropout > 0.0 && !dims.contains(&0) {
            let device = self.query.device();
            let drop = DropRows::draw(dims, self.options.dropout, &device, self.shape.chunk_bytes);
            self.drop = Some(drop);
        }
    }

    fn drop_mask(&self, chunk: &Chunk) -> Option<RowsMask> {
        let Chunk {
            batch, rows, keys, ..
        } = chunk.clone();
        let drop = self.drop.as_ref();
        drop.map(|drop| drop.mask(batch, rows, keys))
    }

    /// What attention over slices computes with; none where it cannot.
    #[cfg(feature = "flex")]
    fn over_slices(&self) -> Option<flex::Settings> {
        let options = &self.options;
        let are_attended = [&self.query, &self.key, &self.value].map(flex::is_attended);
        let is_empty = self.shape.time == 0 || self.shape.key_time == 0;
        if are_attended.contains(&false)
            || is_empty
            || options.softcap.is_some()
            || options.bias.is_some()
        {
            return None;
        }
        Some(flex::Settings {
            shape: self.shape,
            scale: self.scale,
            softmax: match () {
                () if options.is_quiet => slices::Softmax::Quiet,
                () if self.may_be_empty(f64::from(f32::MIN)) => slices::Softmax::MayBeEmpty,
                () => slices::Softmax::Plain,
            },
            visible: self.visible.clone(),
            slopes: options.slopes.clone(),
            masks: options.masks.clone(),
            drop: self.drop.as_ref().map(DropRows::packed),
        })
    }

    pub(super) fn forward(&self) -> Tensor<4> {
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
        for chunk in self.shape.chunks(&self.visible) {
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
        let part = [0..chunk.batch.len(), chunk.keys.clone()];
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
        let options = &self.options;
        let query = self.rows_of(&self.query, chunk) * self.scale;
        let key = self.keys_of(&keys.key, chunk);
        let mut scores = self.unfold(self.fold(query).matmul(key.transpose()));
        let capped = options
            .softcap
            .map(|softcap| (scores.clone() / softcap).tanh());
        if let (Some(capped), Some(softcap)) = (&capped, options.softcap) {
            scores = capped.clone() * softcap;
        }
        if let Some(slopes) = &options.slopes {
            scores = scores - self.alibi(slopes, chunk);
        }
        for (mask, value) in self.masks(chunk) {
            scores = scores.mask_fill(mask, value);
        }
        if let Some(bias) = &options.bias {
            let part = chunk.part_of(bias.dims());
            scores = scores + bias.clone().slice(part).cast(self.wide());
        }
        Weights {
            weights: self.normalized(scores),
            capped,
        }
    }

    /// The distance of query and key times the slope of the head: `[1, heads, rows, keys]`.
    fn alibi(&self, slopes: &[f32], chunk: &Chunk) -> Tensor<4> {
        let Dimensions { time, key_time, .. } = self.shape;
        let Chunk { rows, keys, .. } = chunk;
        let options = (&self.query.device(), self.wide());
        let positions = |range: &Range<usize>, first: usize| -> Tensor<1> {
            let positions: Vec<f64> = range.clone().map(|at| (first + at) as f64).collect();
            Tensor::from_data(&positions[..], options)
        };
        let query = positions(rows, key_time).reshape([1, 1, rows.len(), 1]);
        let key = positions(keys, time).reshape([1, 1, 1, keys.len()]);
        let slopes = Tensor::<1>::from_data(slopes, options);
        slopes.reshape([1, self.shape.heads, 1, 1]) * (query - key).abs()
    }

    /// The masks of a chunk, with the values that replace scores.
    fn masks(&self, chunk: &Chunk) -> Vec<(Tensor<4, Bool>, f64)> {
        let masks = self.options.masks.iter();
        let masks = masks.map(|(mask, value)| {
            let part = chunk.part_of(mask.dims());
            (mask.clone().slice(part), *value)
        });
        let Chunk {
            batch, rows, keys, ..
        } = chunk.clone();
        let device = self.query.device();
        let of_positions = self.visible.masks([batch, rows, keys], &device);
        let of_positions = of_positions.into_iter();
        masks
            .chain(of_positions.map(|mask| (mask, f64::NEG_INFINITY)))
            .collect()
    }

    /// The type of the scores, from the product of query and key to the weights.
    fn wide(&self) -> DType {
        wide(self.query.dtype())
    }

    /// Whether there may be a row without keys. `min` is the lowest number of the scores' type.
    fn may_be_empty(&self, min: f64) -> bool {
        let mut masks = self.options.masks.iter();
        masks.any(|(_, value)| *value < min)
            || self.visible.may_be_none()
            || self.options.bias.is_some()
    }

    fn normalized(&self, scores: Tensor<4>) -> Tensor<4> {
        if self.options.is_quiet {
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
        let part = chunk.part_of(dims);
        let before = sum.clone().slice(part.clone());
        sum.slice_assign(part, before + scores)
    }
}

/// The gradient of the keys or the values of one part of the batch, over its chunks of rows.
#[derive(Default)]
struct KeySum(Option<Tensor<4>>);

impl KeySum {
    /// Adds `[batch, key heads, keys, size]`: `key_time` is how many keys there are.
    fn add(&mut self, part: Tensor<4>, keys: Range<usize>, key_time: usize) {
        let [batch, heads, _, size] = part.dims();
        let sum = self.0.take();
        if sum.is_none() && keys.len() == key_time {
            self.0 = Some(part);
            return;
        }
        let sum = sum.unwrap_or_else(|| {
            let options = (&part.device(), part.dtype());
            Tensor::zeros([batch, heads, key_time, size], options)
        });
        let at = [0..batch, 0..heads, keys];
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
        if flex::is_attended(&grad)
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
        let bias = self.options.bias.as_ref().filter(|_| wants[BIAS]);
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
        for chunk in self.shape.chunks(&self.visible) {
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
                sum.add(part, chunk.keys.clone(), self.shape.key_time);
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
