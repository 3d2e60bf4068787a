//! Attention of several shapes, with several options, and its definition.

use burn::tensor::activation::{quiet_softmax, softmax};
use burn_lean::operations::Attention;

use crate::harness::prelude::*;
use crate::operations::harness::{Case, noise, shaped};

/// Shapes of a case.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(super) batch: usize,
    pub(super) heads: usize,
    pub(super) key_heads: usize,
    pub(super) time: usize,
    pub(super) key_time: usize,
    pub(super) size: usize,
    pub(super) value_size: usize,
}

impl Shape {
    pub(crate) const fn new(batch: usize, heads: usize, time: usize, size: usize) -> Self {
        Self {
            batch,
            heads,
            key_heads: heads,
            time,
            key_time: time,
            size,
            value_size: size,
        }
    }

    pub(crate) const fn with_keys(self, key_time: usize) -> Self {
        Self { key_time, ..self }
    }

    pub(crate) const fn with_key_heads(self, key_heads: usize) -> Self {
        Self { key_heads, ..self }
    }

    const fn with_value_size(self, value_size: usize) -> Self {
        Self { value_size, ..self }
    }

    fn query(self) -> [usize; 4] {
        [self.batch, self.heads, self.time, self.size]
    }

    fn key(self) -> [usize; 4] {
        [self.batch, self.key_heads, self.key_time, self.size]
    }

    fn value(self) -> [usize; 4] {
        [self.batch, self.key_heads, self.key_time, self.value_size]
    }

    pub(super) fn inputs(self) -> Vec<Vec<f64>> {
        let dims = [self.query(), self.key(), self.value()];
        let numbers = dims.iter().enumerate();
        numbers
            .map(|(seed, dims)| noise(dims.iter().product(), seed + 1))
            .collect()
    }

    pub(super) fn split(self, leaves: &[Tensor<1>]) -> [Tensor<4>; 3] {
        [
            shaped(&leaves[0], self.query()),
            shaped(&leaves[1], self.key()),
            shaped(&leaves[2], self.value()),
        ]
    }
}

/// Small and odd; cross attention; grouped heads; no batch; one time. The last three are cut: the
/// batch into chunks, and one element of it into rows, also with more keys than queries.
pub(super) const SHAPES: [Shape; 9] = [
    Shape::new(2, 3, 5, 4),
    Shape::new(2, 2, 5, 3).with_keys(7).with_value_size(6),
    Shape::new(2, 6, 5, 4).with_key_heads(2).with_keys(3),
    Shape::new(1, 4, 3, 2).with_key_heads(1),
    Shape::new(0, 2, 3, 4),
    Shape::new(3, 1, 1, 1),
    Shape::new(3, 4, 150, 8),
    Shape::new(2, 4, 261, 3).with_key_heads(2).with_keys(259),
    Shape::new(2, 4, 261, 3).with_key_heads(2).with_keys(263),
];

/// What is added to plain attention.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    pub(super) mask_pad: Option<f64>,
    pub(super) mask_attn: Option<f64>,
    pub(super) causal: bool,
    pub(super) window: Option<usize>,
    /// Ids of documents; as many keys as queries.
    pub(super) documents: bool,
    pub(super) alibi: bool,
    pub(super) dropout: f64,
    pub(super) quiet: bool,
    pub(super) softcap: Option<f64>,
}

pub(crate) const NONE: Options = Options {
    mask_pad: None,
    mask_attn: None,
    causal: false,
    window: None,
    documents: false,
    alibi: false,
    dropout: 0.0,
    quiet: false,
    softcap: None,
};

/// What packed sequences are trained with.
pub(crate) const PACKED: Options = Options {
    documents: true,
    causal: true,
    window: Some(40),
    mask_attn: Some(-1e4),
    alibi: true,
    ..NONE
};

/// One option.
#[derive(Clone, Copy)]
enum Set {
    Pad,
    Mask(f64),
    Causal,
    Window(usize),
    Documents,
    Alibi,
    Quiet,
    Softcap(f64),
}

/// Those that are compared with the definition. In a window of one, a query attends to itself alone.
pub(super) fn options() -> Vec<Options> {
    use Set::{Alibi, Causal, Documents, Mask, Pad, Quiet, Softcap, Window};
    let all: [&[Set]; 13] = [
        &[],
        &[Pad],
        &[Pad, Mask(-1e4)],
        &[Mask(f64::NEG_INFINITY)],
        &[Causal],
        &[Pad, Quiet],
        &[Causal, Softcap(0.7)],
        &[Window(3)],
        &[Window(1), Causal],
        &[Window(70), Causal, Alibi, Pad],
        &[Window(usize::MAX), Alibi],
        &[Documents, Quiet],
        &[Documents, Softcap(0.7), Window(40), Alibi],
    ];
    let all = all.map(|sets| sets.iter().fold(NONE, |options, set| options.with(*set)));
    all.into_iter().chain([PACKED]).collect()
}

/// Longer and longer documents, another number of them in each element of the batch. Positions with
/// the id 0 are here and there, and one document.
fn document(batch: usize, position: usize) -> i64 {
    match position % 29 {
        13 => 0,
        _ => ((position + 3 * batch) as f64).sqrt() as i64 - 5,
    }
}

fn slope(head: usize) -> f32 {
    0.25 / (1 + head) as f32
}

/// True here and there, and at all keys of the first row.
pub(super) fn mask(dims: [usize; 4], device: &Device) -> Tensor<4, Bool> {
    let count: usize = dims.iter().product();
    let row = dims[3];
    let bits: Vec<bool> = (0..count).map(|i| i < row || i % 3 == 1).collect();
    Tensor::from_data(TensorData::new(bits, dims), device)
}

impl Options {
    fn with(mut self, set: Set) -> Self {
        match set {
            Set::Pad => self.mask_pad = Some(-1e4),
            Set::Mask(value) => self.mask_attn = Some(value),
            Set::Causal => self.causal = true,
            Set::Window(window) => self.window = Some(window),
            Set::Documents => self.documents = true,
            Set::Alibi => self.alibi = true,
            Set::Quiet => self.quiet = true,
            Set::Softcap(softcap) => self.softcap = Some(softcap),
        }
        self
    }

    fn masks(self, shape: Shape, device: &Device) -> Vec<(Tensor<4, Bool>, f64)> {
        let of = |time| mask([shape.batch, 1, time, shape.key_time], device);
        let pad = self.mask_pad.map(|value| (of(1), value));
        let attn = self.mask_attn.map(|value| (of(shape.time), value));
        pad.into_iter().chain(attn).collect()
    }

    pub(crate) fn case(self, shape: Shape) -> Case {
        let what = format!("attention of {shape:?}, {self:?}");
        let (reference, ours) = (self.reference(shape), self.ours(shape));
        Case::new(what, shape.inputs(), reference, ours)
    }

    /// Where a query does not attend to a key, by its definition: `[batch, 1, time, key time]`.
    fn hidden(self, shape: Shape, device: &Device) -> Tensor<4, Bool> {
        let Shape {
            batch,
            time,
            key_time,
            ..
        } = shape;
        let mut hidden = Vec::new();
        for (batch, row, key) in (0..batch).flat_map(|batch| {
            (0..time).flat_map(move |row| (0..key_time).map(move |key| (batch, row, key)))
        }) {
            let distance = (row + key_time) as i64 - (key + time) as i64;
            let is_far = self
                .window
                .is_some_and(|window| distance.unsigned_abs() >= window as u64);
            let is_foreign = self.documents && document(batch, row) != document(batch, key);
            hidden.push(self.causal && distance < 0 || is_far || is_foreign);
        }
        Tensor::from_data(TensorData::new(hidden, [batch, 1, time, key_time]), device)
    }

    /// `[1, heads, time, key time]`
    fn distances(self, shape: Shape, like: &Tensor<4>) -> Tensor<4> {
        let Shape {
            heads,
            time,
            key_time,
            ..
        } = shape;
        let of = |head, row: usize, key: usize| {
            let distance = (row + key_time).abs_diff(key + time) as f64;
            f64::from(slope(head)) * distance
        };
        let mut all = Vec::new();
        for head in 0..heads {
            for row in 0..time {
                all.extend((0..key_time).map(|key| of(head, row, key)));
            }
        }
        let data = TensorData::new(all, [1, heads, time, key_time]).convert_dtype(like.dtype());
        Tensor::from_data(data, (&like.device(), like.dtype()))
    }

    /// Whether a shape has what the options are of, and a key for each query.
    pub(super) fn fits(self, shape: Shape) -> bool {
        let is_ordered = self.causal || self.window.is_some();
        let has_keys = shape.key_time >= shape.time || !is_ordered;
        has_keys && (!self.documents || shape.key_time == shape.time)
    }

    pub(super) fn ours(self, shape: Shape) -> impl Fn(&[Tensor<1>]) -> Tensor<1> {
        move |leaves| {
            let [query, key, value] = shape.split(leaves);
            let mut attention = Attention::new().with_quiet_softmax(self.quiet);
            for (mask, value) in self.masks(shape, &query.device()) {
                attention = attention.with_mask(mask, value);
            }
            if self.causal {
                attention = attention.causal();
            }
            if let Some(window) = self.window {
                attention = attention.with_window(window);
            }
            if self.documents {
                let of = |batch| (0..shape.time).map(move |at| document(batch, at));
                let ids: Vec<i64> = (0..shape.batch).flat_map(of).collect();
                let ids = TensorData::new(ids, [shape.batch, shape.time]);
                attention = attention.with_documents(Tensor::from_data(ids, &query.device()));
            }
            if self.alibi {
                attention = attention.with_alibi((0..shape.heads).map(slope).collect());
            }
            attention = attention.with_dropout(self.dropout);
            if let Some(softcap) = self.softcap {
                attention = attention.with_softcap(softcap);
            }
            attention.forward(query, key, value).flatten(0, 3)
        }
    }

    /// In Burn's operations, all scores at once.
    pub(super) fn reference(self, shape: Shape) -> impl Fn(&[Tensor<1>]) -> Tensor<1> {
        move |leaves| {
            let [query, key, value] = shape.split(leaves);
            let group = shape.heads / shape.key_heads;
            let spread = |tensor: Tensor<4>| {
                let [batch, heads, time, size] = tensor.dims();
                let spread = tensor.unsqueeze_dim::<5>(2).repeat_dim(2, group);
                spread.reshape([batch, heads * group, time, size])
            };
            let (key, value) = (spread(key), spread(value));
            let device = query.device();
            let mut scores = query.matmul(key.transpose()) * (shape.size as f64).sqrt().recip();
            if let Some(softcap) = self.softcap {
                // Burn's division by a number has a gradient of `f32`'s precision.
                scores = (scores * softcap.recip()).tanh() * softcap;
            }
            if self.alibi {
                scores = scores.clone() - self.distances(shape, &scores);
            }
            for (mask, value) in self.masks(shape, &device) {
                scores = scores.mask_fill(mask, value);
            }
            scores = scores.mask_fill(self.hidden(shape, &device), f64::NEG_INFINITY);
            let weights = match self.quiet {
                true => quiet_softmax(scores.clone(), 3),
                false => softmax(scores.clone(), 3),
            };
            // A row without keys.
            let empty = scores.max_dim(3).equal_scalar(f64::NEG_INFINITY);
            let weights = weights.mask_fill(empty, 0.0);
            let dropout = DropoutConfig::new(self.dropout).init();
            dropout.forward(weights).matmul(value).flatten(0, 3)
        }
    }
}
