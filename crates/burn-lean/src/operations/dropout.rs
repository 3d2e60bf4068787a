//! Dropout that keeps 24 elements of its mask in a number.

use burn::tensor::{DType, Device, Distribution, Shape, Tensor};

use super::chunks::{as_rows, map_rows, shaped};
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
pub(super) struct Drop {
    /// `[words, 1]`
    words: Tensor<2>,
    shape: Shape,
    prob: f64,
}

impl Drop {
    /// Draws from the generator of the device, as Burn's dropout does.
    pub(super) fn draw(shape: Shape, prob: f64, device: &Device) -> Self {
        let elements = shape.num_elements();
        let words = elements.div_ceil(WORD);
        let keep = Tensor::<1>::random(
            [elements],
            Distribution::Bernoulli(1.0 - prob),
            (device, DType::F32),
        );
        let keep = match words * WORD - elements {
            0 => keep,
            padding => Tensor::cat(
                vec![keep, Tensor::zeros([padding], (device, DType::F32))],
                0,
            ),
        };
        let words = (keep.reshape([words, WORD]) * powers(device)).sum_dim(1);
        Self { words, shape, prob }
    }

    /// Zeroes what is dropped, and scales the rest.
    pub(super) fn apply<const D: usize>(&self, tensor: Tensor<D>) -> Tensor<D> {
        let shifted = (self.words.clone() / powers(&tensor.device())).floor();
        let bits = shifted.clone() - (shifted * 0.5).floor() * 2.0;
        let bits = bits.flatten::<1>(0, 1);
        let bits = bits.narrow(0, 0, self.shape.num_elements());
        let keep = bits.reshape(self.shape.clone()).cast(tensor.dtype());
        tensor * keep * (1.0 / (1.0 - self.prob))
    }
}

/// `[1, WORD]`
fn powers(device: &Device) -> Tensor<2> {
    let powers: [f32; WORD] = std::array::from_fn(|bit| (1_u32 << bit) as f32);
    Tensor::<1>::from_data(powers, (device, DType::F32)).unsqueeze()
}
