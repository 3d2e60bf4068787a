//! Rotary encoding of positions.

use burn::tensor::Tensor;

use super::chunks::{map_rows, shaped};
#[cfg(feature = "flex")]
use super::flex;
use super::node::{Gradient, OperandGradients, Operands, Operation, apply};
use crate::wide::wide;

/// Rotates each pair of features by an angle that grows with the position, as Burn's
/// [`RotaryEncoding`](burn::nn::RotaryEncoding): from the paper [RoFormer](https://arxiv.org/abs/2104.09864).
///
/// Keeps the frequencies alone: its backward pass rotates the gradient by the negative angles, in
/// place if nothing else holds it.
///
/// # Shapes
///
/// - `x` and output: `[..., time, d_model]`
/// - `frequencies`: `[time, d_model, 2]`, the cosine and the sine of the angle of a pair, at each of
///   its two features. The field `freq_complex` of Burn's module has them, for the longest sequence.
///
/// # Panics
///
/// If the shapes do not fit, `d_model` is odd, or `frequencies` needs a gradient.
pub fn rotary_encoding<const D: usize>(x: Tensor<D>, frequencies: Tensor<3>) -> Tensor<D> {
    assert!(
        !frequencies.is_tracked(),
        "rotary_encoding: the frequencies have no gradient: detach them"
    );
    let dims = x.dims();
    assert!(
        D >= 2
            && dims[D - 1].is_multiple_of(2)
            && frequencies.dims() == [dims[D - 2], dims[D - 1], 2],
        "rotary_encoding: frequencies {:?} for {dims:?}; they are `[time, d_model, 2]` of pairs",
        frequencies.dims()
    );
    let frequencies = frequencies.inner();
    apply([Some(x.into_dispatch())], |mut operands: Operands<1>| {
        let rotary = Rotary::<D> { frequencies };
        let output = rotary.rotate(operands.take(0), 1.0);
        (output, rotary)
    })
}

#[derive(Clone)]
struct Rotary<const D: usize> {
    frequencies: Tensor<3>,
}

impl<const D: usize> Rotary<D> {
    /// Rotates by the angles times a direction, 1 or -1. In 32 bits at least, and rounded once.
    fn rotate(&self, x: Tensor<D>, direction: f32) -> Tensor<D> {
        let (dims, dtype, wide) = (x.dims(), x.dtype(), wide(x.dtype()));
        let frequencies = self.frequencies.clone().cast(wide);
        #[cfg(feature = "flex")]
        if flex::has_slices(&x) {
            return flex::rotate(x, frequencies, direction);
        }
        let (lead, row) = dims.split_at(D - 2);
        let (rows, width) = (lead.iter().product(), row.iter().product::<usize>());
        // Cosine and sine, twice.
        let of_pairs = shaped(frequencies, [1, width / 2, 4]);
        let cos = of_pairs.clone().narrow(2, 0, 1);
        let sin = of_pairs.narrow(2, 1, 1) * direction;
        let rotated = map_rows(shaped(x, [rows, width]), |_, x| {
            let dims = x.dims();
            let pairs = x.cast(wide).reshape([dims[0], width / 2, 2]);
            let [one, other] = [0, 1].map(|at| pairs.clone().narrow(2, at, 1));
            let rotated = vec![
                one.clone() * cos.clone() - other.clone() * sin.clone(),
                other * cos.clone() + one * sin.clone(),
            ];
            Tensor::cat(rotated, 2).reshape(dims).cast(dtype)
        });
        shaped(rotated, dims)
    }
}

impl<const D: usize> Operation<1> for Rotary<D> {
    const NAME: &'static str = "rotary_encoding";

    fn backward(self, grad: Gradient, operands: &mut OperandGradients<'_, 1>) {
        operands.give(0, self.rotate(grad.tensor(), -1.0));
    }
}
