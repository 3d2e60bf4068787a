//! A linear layer with a frozen weight, and its adapter.

use burn::module::{LoraAdapter, Param};
use burn::tensor::Tensor;

use super::chunks::{as_rows, shaped};
use super::frozen::Frozen;
use super::linear::linear;
use super::nf4::Nf4Weight;
use super::node::{Gradient, OperandGradients, Operands, Operation, apply};
use super::product::{add_product, matmul};
use crate::wide::widened;

const INPUT: usize = 0;
const A: usize = 1;
const B: usize = 2;
const BIAS: usize = 3;

/// [`linear`] with a parameter that may be [packed](super::Nf4), and may have an [adapter](LoraAdapter), from
/// the paper [LoRA: Low-Rank Adaptation of Large Language Models](https://arxiv.org/abs/2106.09685): `input *
/// weight + scale * (input * a) * b + bias`.
///
/// The sum of weight and adapter is never made, and neither is its gradient, both of which Burn's
/// [`val`](Param::val) makes. Keeps the input and `input * a`; with a frozen `a` only the latter
/// ([LoRA-FA](https://arxiv.org/abs/2308.03303)). A packed or quantized weight stays so: it is dense for the
/// time of a product, in the forward pass and in backward.
///
/// The result is Burn's up to rounding, as it adds up in another order. A weight that is trained beside
/// its adapter is computed by Burn.
///
/// # Shapes
///
/// - `input`: `[..., d_input]`
/// - `weight`: `[d_input, d_output]`
/// - `bias`: `[d_output]`
/// - output: `[..., d_output]`
///
/// # Panics
///
/// If the last axis of `input` is not `d_input`, or the bias has not `d_output` elements.
pub fn adapted_linear<const D: usize>(
    input: Tensor<D>,
    weight: &Param<Tensor<2>>,
    bias: Option<Tensor<1>>,
) -> Tensor<D> {
    let frozen = is_adapted(weight).then(|| Frozen::of(weight));
    match frozen.flatten() {
        Some(base) => over_frozen(input, base, adapter_of(weight), bias),
        None => linear(input, weight.val(), bias),
    }
}

/// Whether the value of a parameter is not one tensor.
pub(super) fn is_adapted(weight: &Param<Tensor<2>>) -> bool {
    Nf4Weight::of(weight).is_some() || weight.adapter().is_some()
}

/// The adapter of a parameter, packed or not.
pub(super) fn adapter_of(weight: &Param<Tensor<2>>) -> Option<&LoraAdapter> {
    match Nf4Weight::of(weight) {
        Some(packed) => packed.lora.as_ref(),
        None => weight.adapter(),
    }
}

fn over_frozen<const D: usize>(
    input: Tensor<D>,
    base: Frozen,
    adapter: Option<&LoraAdapter>,
    bias: Option<Tensor<1>>,
) -> Tensor<D> {
    let scale = adapter.map_or(1.0, |adapter| adapter.scale);
    let operands = [
        Some(input.into_dispatch()),
        adapter.map(|adapter| adapter.a.val().into_dispatch()),
        adapter.map(|adapter| adapter.b.val().into_dispatch()),
        bias.map(Tensor::into_dispatch),
    ];
    apply(operands, |mut operands: Operands<4>| {
        let [wants_a, wants_b] = [A, B].map(|at| operands.wants(at));
        let input = operands.take::<D>(INPUT);
        let factors = operands.take_optional(A).zip(operands.take_optional(B));
        let bias = operands.take_optional::<1>(BIAS);
        let mut dims = input.dims();
        let [_, d_output] = base.dims();
        let rows = as_rows(input.clone());
        let mut kept = Adapted {
            dims,
            input: wants_a.then_some(input),
            hidden: None,
            factors: factors.clone(),
            base: base.clone(),
            scale,
        };
        let mut output = base.product(rows.clone(), bias);
        if let Some((a, b)) = factors {
            let hidden = matmul(widened(rows), widened(a)) * scale;
            kept.hidden = wants_b.then(|| hidden.clone());
            output = add_product(output, hidden, widened(b));
        }
        dims[D - 1] = d_output;
        (shaped(output, dims), kept)
    })
}

#[derive(Clone)]
struct Adapted<const D: usize> {
    dims: [usize; D],
    /// For the gradient of `a`.
    input: Option<Tensor<D>>,
    /// `scale * input * a`, for the gradient of `b`.
    hidden: Option<Tensor<2>>,
    factors: Option<(Tensor<2>, Tensor<2>)>,
    base: Frozen,
    scale: f64,
}

impl<const D: usize> Operation<4> for Adapted<D> {
    const NAME: &'static str = "adapted_linear";
    const MIXES: bool = true;

    fn backward(self, grad: Gradient, operands: &mut OperandGradients<'_, 4>) {
        let grad = as_rows(grad.tensor::<D>());
        if operands.wants(BIAS) {
            let sum = widened(grad.clone()).sum_dim(0);
            operands.give(BIAS, sum.squeeze_dim::<1>(0));
        }
        let input = self.input.map(as_rows);
        let mut of_factors = [None, None];
        let mut of_input = None;
        if let Some((a, b)) = self.factors {
            let wide = widened(grad.clone());
            let of_hidden = matmul(wide.clone(), widened(b).transpose()) * self.scale;
            of_factors = [
                input.as_ref().map(|input| {
                    let input = widened(input.clone());
                    matmul(input.transpose(), of_hidden.clone())
                }),
                self.hidden.map(|hidden| matmul(hidden.transpose(), wide)),
            ];
            of_input = operands
                .wants(INPUT)
                .then(|| (of_hidden, widened(a).transpose()));
        }
        if operands.wants(INPUT) {
            let mut sum = self.base.product_transposed(grad, input);
            if let Some((of_hidden, a)) = of_input {
                sum = add_product(sum, of_hidden, a);
            }
            operands.give(INPUT, shaped(sum, self.dims));
        }
        // Nothing here holds the factors any more, which are stepped now.
        for (at, grad) in [B, A].into_iter().zip(of_factors.into_iter().rev()) {
            if let Some(grad) = grad {
                operands.give(at, grad);
            }
        }
    }
}
