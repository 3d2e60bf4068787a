//! Dropout that keeps 24 elements of its mask in a number.

use std::ops::Range;

use burn::tensor::ops::PadMode;
use burn::tensor::{DType, Device, Distribution, Tensor};

use super::chunks::{as_rows, chunks, chunks_along, map_rows, shaped};
#[cfg(feature = "flex")]
use super::flex;
use crate::wide::widened;

use super::node::{Gradient, OperandGradients, Operands, Operation, apply};

/// Bits in a number: `f32` holds integers of this many bits exactly.
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
/// If `prob` is not at least 0 and below 1.
pub fn dropout<const D: usize>(tensor: Tensor<D>, prob: f64) -> Tensor<D> {
    if checked(prob) == 0.0 || !tensor.device().is_autodiff() {
        return tensor;
    }
    apply(
        [Some(tensor.into_dispatch())],
        |mut operands: Operands<1>| {
            let input = operands.take::<D>(0);
            let dims = input.dims();
            let input = as_rows(input);
            let [_, width] = input.dims();
            // From the generator of the device, as Burn's dropout does: one chunk after the other.
            let draw = |rows: Range<usize>| Mask::draw([rows.len(), width], prob, &input.device());
            let masks = chunks_along(&input, 0).into_iter().map(draw).collect();
            let dropped = Dropped::<D> { dims, masks };
            (dropped.apply(input), dropped)
        },
    )
}

pub(super) fn checked(prob: f64) -> f64 {
    assert!(
        (0.0..1.0).contains(&prob),
        "dropout: {prob} is no probability below 1"
    );
    prob
}

#[derive(Clone)]
struct Dropped<const D: usize> {
    dims: [usize; D],
    /// One for each of the [chunks of rows](chunks_along).
    masks: Vec<Mask>,
}

impl<const D: usize> Dropped<D> {
    /// Zeroes the dropped elements of the tensor, or of another of its shape and type, and scales
    /// the rest: `[rows, width]`.
    fn apply(&self, rows: Tensor<2>) -> Tensor<D> {
        let rows = map_rows(rows, |chunk, rows| {
            let [length, _] = self.masks[0].dims;
            self.masks[chunk.start / length].apply(rows)
        });
        shaped(rows, self.dims)
    }
}

impl<const D: usize> Operation<1> for Dropped<D> {
    const NAME: &'static str = "dropout";

    fn backward(self, grad: Gradient, operands: &mut OperandGradients<'_, 1>) {
        operands.give(0, self.apply(as_rows(grad.tensor::<D>())));
    }
}

/// Which elements of `[rows, width]` are dropped.
#[derive(Clone)]
pub(super) struct Mask {
    /// `[1, words]`
    words: Tensor<2>,
    dims: [usize; 2],
    prob: f64,
}

impl Mask {
    fn draw(dims: [usize; 2], prob: f64, device: &Device) -> Self {
        Self::of(draw(dims, prob, device), prob)
    }

    /// The mask as numbers.
    #[cfg(feature = "flex")]
    pub(super) fn packed(&self) -> flex::PackedMask {
        flex::PackedMask {
            words: self.words.clone(),
            elements: self.dims[0] * self.dims[1],
            scale: scale(self.prob),
        }
    }

    /// [`of`](Self::of) some columns of a mask.
    pub(super) fn of_columns(keep: &Tensor<2>, columns: Range<usize>, prob: f64) -> Self {
        let [rows, _] = keep.dims();
        #[cfg(feature = "flex")]
        if flex::has_slices(keep) {
            let dims = [rows, columns.len()];
            let words = (dims[0] * dims[1]).div_ceil(WORD).max(1);
            return Self {
                words: flex::pack_block(keep, &columns, words),
                dims,
                prob,
            };
        }
        Self::of(keep.clone().slice([0..rows, columns]), prob)
    }

    /// The mask of ones where elements are kept, and zeros.
    pub(super) fn of(keep: Tensor<2>, prob: f64) -> Self {
        let dims = keep.dims();
        Self {
            words: pack(keep.reshape([1, dims[0] * dims[1]])),
            dims,
            prob,
        }
    }

    /// Ones where elements are kept, and zeros.
    pub(super) fn keep(&self) -> Tensor<2> {
        let [rows, width] = self.dims;
        unpack(self.words.clone(), rows * width).reshape(self.dims)
    }

    /// Zeroes the dropped elements, and scales the rest: in 32 bits at least, and rounded once.
    fn apply(&self, tensor: Tensor<2>) -> Tensor<2> {
        let dtype = tensor.dtype();
        let tensor = widened(tensor);
        #[cfg(feature = "flex")]
        if flex::has_slices(&tensor) {
            return flex::drop(self.words.clone(), tensor, scale(self.prob)).cast(dtype);
        }
        let keep = self.keep().cast(tensor.dtype());
        (tensor * keep * scale(self.prob)).cast(dtype)
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
    /// Draws for `[batch, heads, rows, width]`, row after row, the numbers that Burn's dropout
    /// draws for a whole tensor. Draws about `bytes` at a time.
    pub(super) fn draw(dims: [usize; 4], prob: f64, device: &Device, bytes: usize) -> Self {
        let [batch, heads, rows, width] = dims;
        let parts = chunks(batch * heads * rows, 4 * width, bytes)
            .map(|chunk| pack(draw([chunk.len(), width], prob, device)));
        let words = Tensor::cat(parts.collect(), 0);
        Self {
            words: words.reshape([batch, heads, rows, width.div_ceil(WORD)]),
            prob,
        }
    }

    /// `[batch, heads, rows, words]`, and the factor of the weights that are kept.
    #[cfg(feature = "flex")]
    pub(super) fn packed(&self) -> (Tensor<4>, f64) {
        (self.words.clone(), scale(self.prob))
    }

    /// The mask `[batch, heads, rows, keys]` of a part of the batch, of the rows and of the keys.
    pub(super) fn mask(
        &self,
        batch: Range<usize>,
        rows: Range<usize>,
        keys: Range<usize>,
    ) -> RowsMask {
        let [_, heads, _, words] = self.words.dims();
        let dims = [batch.len(), heads, rows.len(), keys.len()];
        let part = self.words.clone().slice([batch, 0..heads, rows]);
        let part = part.reshape([dims[..3].iter().product(), words]);
        let first = unpack(part, keys.end);
        RowsMask {
            keep: first.narrow(1, keys.start, keys.len()).reshape(dims),
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
    /// Zeroes the dropped elements, and scales the rest.
    pub(super) fn apply(&self, tensor: Tensor<4>) -> Tensor<4> {
        let keep = self.keep.clone().cast(tensor.dtype());
        tensor * keep * scale(self.prob)
    }
}

/// The factor of the elements that are kept.
pub(super) fn scale(prob: f64) -> f64 {
    1.0 / (1.0 - prob)
}

/// Ones, and zeros with this probability: `[rows, width]`.
pub(super) fn draw(dims: [usize; 2], prob: f64, device: &Device) -> Tensor<2> {
    let distribution = Distribution::Bernoulli(1.0 - prob);
    Tensor::random(dims, distribution, (device, DType::F32))
}

/// Zeros and ones `[rows, width]` as bits: `[rows, words]`. Elements that are next to each other
/// are in words next to each other, so that each step runs over contiguous numbers; the first of a
/// word has its highest bit.
fn pack(bits: Tensor<2>) -> Tensor<2> {
    let [_, width] = bits.dims();
    let words = width.div_ceil(WORD).max(1);
    #[cfg(feature = "flex")]
    if flex::has_slices(&bits) {
        return flex::pack(bits, words);
    }
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

/// Unpacks the first columns of a mask that [`pack`] made: `[rows, width]`.
fn unpack(words: Tensor<2>, width: usize) -> Tensor<2> {
    #[cfg(feature = "flex")]
    if flex::has_slices(&words) {
        return flex::unpack(words, width);
    }
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

/// The number that a bit stands for.
fn power(plane: usize) -> f64 {
    (1_u32 << (WORD - 1 - plane)).into()
}
