//! Dropout that keeps 24 elements of its mask in a number.

use std::ops::Range;

use burn::tensor::ops::PadMode;
use burn::tensor::{DType, Device, Distribution, Shape, Tensor};

use super::chunks::{as_rows, chunks, map_rows, shaped};
use super::node::{Gradient, OperandGradients, Operands, Operation, apply};

/// Bits in a number: `f32` holds whole numbers of so many bits exactly.
const WORD: usize = 24;

/// Dropout, as Burn's [`Dropout`](burn::nn::Dropout) in training: zeroes each element with the
/// probability `prob`, and divides the others by `1 - prob`. From the paper [Dropout: A Simple Way
/// to Prevent Neural Networks from Overfitting](https://jmlr.org/papers/v15/srivastava14a.html).
///
/// Keeps the mask in a twenty-fourth of the bytes of an `f32` tensor. Drops in training alone: of a
/// tensor without autodiff it returns the tensor.
///
/// # Shapes
///
/// `[...]`, and the output is as the input.
///
/// # Panics
///
/// If `prob` is no probability.
pub fn dropout<const D: usize>(tensor: Tensor<D>, prob: f64) -> Tensor<D> {
    if checked(prob) == 0.0 || !tensor.device().is_autodiff() {
        return tensor;
    }
    apply(
        [Some(tensor.into_dispatch())],
        |mut operands: Operands<1>| {
            let input = operands.take::<D>(0);
            let dims = input.dims();
            let mut drops = Vec::new();
            let output = map_rows(as_rows(input), |_, rows| {
                let mask = Drop::draw(rows.shape(), prob, &rows.device());
                let rows = mask.apply(rows);
                drops.push(mask);
                rows
            });
            (shaped(output, dims), Dropped { drops, dims })
        },
    )
}

pub(super) fn checked(prob: f64) -> f64 {
    assert!(
        (0.0..=1.0).contains(&prob),
        "dropout: {prob} is no probability"
    );
    prob
}

#[derive(Clone)]
struct Dropped<const D: usize> {
    /// One for each chunk of rows.
    drops: Vec<Drop>,
    dims: [usize; D],
}

impl<const D: usize> Operation<1> for Dropped<D> {
    const NAME: &'static str = "dropout";

    fn backward(self, grad: Gradient, operands: &mut OperandGradients<'_, 1>) {
        let mut drops = self.drops.into_iter();
        let grad = map_rows(as_rows(grad.tensor::<D>()), |_, rows| {
            let drop = drops.next().expect("chunks are as in the forward pass");
            drop.apply(rows)
        });
        operands.give(0, shaped(grad, self.dims));
    }
}

/// Which elements of a tensor are dropped.
#[derive(Clone)]
pub(super) struct Drop {
    /// `[1, words]`
    words: Tensor<2>,
    shape: Shape,
    prob: f64,
}

impl Drop {
    /// Draws from the generator of the device, as Burn's dropout does.
    pub(super) fn draw(shape: Shape, prob: f64, device: &Device) -> Self {
        Self {
            words: pack(draw(1, shape.num_elements(), prob, device)),
            shape,
            prob,
        }
    }

    /// Zeroes what is dropped, and scales the rest.
    pub(super) fn apply<const D: usize>(&self, tensor: Tensor<D>) -> Tensor<D> {
        let bits = unpack(self.words.clone(), self.shape.num_elements());
        let keep = bits.reshape(self.shape.clone()).cast(tensor.dtype());
        tensor * keep * scale(self.prob)
    }
}

/// Which of the weights of attention are dropped. Each row has words of its own, so that a part of
/// the rows can be taken out.
#[derive(Clone)]
pub(super) struct DropRows {
    /// `[batch, heads, rows, words]`
    words: Tensor<4>,
    prob: f64,
}

impl DropRows {
    /// Draws for `[batch, heads, rows, width]`, row after row: what Burn's dropout draws of a whole
    /// tensor. About so many bytes at a time.
    pub(super) fn draw(dims: [usize; 4], prob: f64, device: &Device, bytes: usize) -> Self {
        let [batch, heads, rows, width] = dims;
        let parts = chunks(batch * heads * rows, 4 * width, bytes)
            .map(|chunk| pack(draw(chunk.len(), width, prob, device)));
        let words = Tensor::cat(parts.collect(), 0);
        Self {
            words: words.reshape([batch, heads, rows, width.div_ceil(WORD)]),
            prob,
        }
    }

    /// The mask `[batch, heads, rows, keys]` of a part of the batch and of the rows, and of the
    /// first of the keys.
    pub(super) fn mask(&self, batch: Range<usize>, rows: Range<usize>, keys: usize) -> RowsMask {
        let [_, heads, _, words] = self.words.dims();
        let dims = [batch.len(), heads, rows.len(), keys];
        let part = self.words.clone().slice([batch, 0..heads, rows]);
        let part = part.reshape([dims[..3].iter().product(), words]);
        RowsMask {
            keep: unpack(part, keys).reshape(dims),
            prob: self.prob,
        }
    }
}

/// A part of [`DropRows`], as numbers.
pub(super) struct RowsMask {
    keep: Tensor<4>,
    prob: f64,
}

impl RowsMask {
    /// Zeroes what is dropped, and scales the rest.
    pub(super) fn apply(&self, tensor: Tensor<4>) -> Tensor<4> {
        let keep = self.keep.clone().cast(tensor.dtype());
        tensor * keep * scale(self.prob)
    }
}

fn scale(prob: f64) -> f64 {
    1.0 / (1.0 - prob)
}

/// Ones, and zeros with this probability: `[rows, width]`.
fn draw(rows: usize, width: usize, prob: f64, device: &Device) -> Tensor<2> {
    Tensor::random(
        [rows, width],
        Distribution::Bernoulli(1.0 - prob),
        (device, DType::F32),
    )
}

/// Zeros and ones `[rows, width]` as bits: `[rows, words]`. Elements that are next to each other are
/// in words next to each other, so that each step runs over contiguous numbers; the first of a word
/// has its highest bit.
fn pack(bits: Tensor<2>) -> Tensor<2> {
    let [_, width] = bits.dims();
    let words = width.div_ceil(WORD).max(1);
    let planes = (0..width).step_by(words).enumerate().map(|(plane, start)| {
        let count = words.min(width - start);
        let bits = bits.clone().narrow(1, start, count);
        let padded = bits.pad([(0, 0), (0, words - count)], PadMode::Constant(0.0));
        padded * power(plane)
    });
    planes
        .reduce(|sum, plane| sum + plane)
        .unwrap_or(bits.clone())
}

/// What [`pack`] packed: the first columns of it, `[rows, width]`.
fn unpack(words: Tensor<2>, width: usize) -> Tensor<2> {
    let count = words.dims()[1].max(1);
    let mut rest = words;
    let mut planes = Vec::new();
    for plane in 0..width.div_ceil(count) {
        let bits = rest.clone().greater_equal_elem(power(plane));
        let bits = bits.float().cast(DType::F32);
        rest = rest - bits.clone() * power(plane);
        planes.push(bits);
    }
    if planes.is_empty() {
        return rest;
    }
    Tensor::cat(planes, 1).narrow(1, 0, width)
}

/// What a bit stands for.
fn power(plane: usize) -> f64 {
    (1_u32 << (WORD - 1 - plane)).into()
}
