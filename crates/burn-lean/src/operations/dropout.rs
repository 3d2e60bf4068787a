//! Dropout that keeps 24 elements of its mask in a number.

use std::ops::Range;

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
    assert!(
        (0.0..=1.0).contains(&prob),
        "dropout: {prob} is no probability"
    );
    if prob == 0.0 || !tensor.device().is_autodiff() {
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
struct Drop {
    /// `[words, 1]`
    words: Tensor<2>,
    shape: Shape,
    prob: f64,
}

impl Drop {
    /// Draws from the generator of the device, as Burn's dropout does.
    fn draw(shape: Shape, prob: f64, device: &Device) -> Self {
        let elements = shape.num_elements();
        let kept = draw(1, elements, prob, device);
        Self {
            words: shaped(pack(kept), [elements.div_ceil(WORD), 1]),
            shape,
            prob,
        }
    }

    /// Zeroes what is dropped, and scales the rest.
    fn apply<const D: usize>(&self, tensor: Tensor<D>) -> Tensor<D> {
        let bits = unpack(self.words.clone()).flatten::<1>(0, 1);
        let bits = bits.narrow(0, 0, self.shape.num_elements());
        let keep = bits.reshape(self.shape.clone()).cast(tensor.dtype());
        tensor * keep * (1.0 / (1.0 - self.prob))
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

    /// Zeroes what is dropped of `[batch, heads, rows, keys]`, which are these of the batch and the
    /// rows, and the first of the keys; and scales the rest.
    pub(super) fn apply(
        &self,
        tensor: Tensor<4>,
        batch: Range<usize>,
        rows: Range<usize>,
    ) -> Tensor<4> {
        let [size, heads, count, keys] = tensor.dims();
        let words = keys.div_ceil(WORD);
        let part = self.words.clone().slice([batch, 0..heads, rows, 0..words]);
        let bits = unpack(part.reshape([size * heads * count * words, 1]));
        let keep = bits.reshape([size, heads, count, words * WORD]);
        let keep = keep.narrow(3, 0, keys).cast(tensor.dtype());
        tensor * keep * (1.0 / (1.0 - self.prob))
    }
}

/// Ones, and zeros with this probability: `[rows, width]`.
fn draw(rows: usize, width: usize, prob: f64, device: &Device) -> Tensor<2> {
    Tensor::random(
        [rows, width],
        Distribution::Bernoulli(1.0 - prob),
        (device, DType::F32),
    )
}

/// Zeros and ones `[rows, width]` as bits: `[rows, words]`.
fn pack(bits: Tensor<2>) -> Tensor<2> {
    let [rows, width] = bits.dims();
    let device = bits.device();
    let words = width.div_ceil(WORD);
    let bits = match words * WORD - width {
        0 => bits,
        padding => Tensor::cat(
            vec![bits, Tensor::zeros([rows, padding], (&device, DType::F32))],
            1,
        ),
    };
    let bits = shaped::<2, 2>(bits, [rows * words, WORD]);
    shaped((bits * powers(&device)).sum_dim(1), [rows, words])
}

/// Words `[words, 1]` as zeros and ones `[words, WORD]`.
fn unpack(words: Tensor<2>) -> Tensor<2> {
    let shifted = (words.clone() / powers(&words.device())).floor();
    shifted.clone() - (shifted * 0.5).floor() * 2.0
}

/// `[1, WORD]`
fn powers(device: &Device) -> Tensor<2> {
    let powers: [f32; WORD] = std::array::from_fn(|bit| (1_u32 << bit) as f32);
    Tensor::<1>::from_data(powers, (device, DType::F32)).unsqueeze()
}
