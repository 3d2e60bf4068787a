//! A linear layer whose frozen weight has an adapter.

use burn::module::{LoraAdapter, Param};
use burn::tensor::Tensor;

use super::chunks::{as_rows, shaped};
use super::frozen::Frozen;
use super::linear::linear;
use super::node::{Gradient, OperandGradients, Operands, Operation, apply};
use super::product::{add_product, matmul};
use crate::wide::widened;

const INPUT: usize = 0;
const A: usize = 1;
const B: usize = 2;
const BIAS: usize = 3;

/// [`linear`] with a parameter that may have an [adapter](LoraAdapter), from the paper [LoRA: Low-Rank
/// Adaptation of Large Language Models](https://arxiv.org/abs/2106.09685): `input * weight + scale *
/// (input * a) * b + bias`.
///
/// The sum of weight and adapter is never made, and neither is its gradient, both of which Burn's
/// [`val`](Param::val) makes. Keeps the input and `input * a`; with a frozen `a` only the latter
/// ([LoRA-FA](https://arxiv.org/abs/2308.03303)). A quantized weight stays quantized: it is dense for the
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
    match weight.adapter() {
        Some(adapter) if !weight.is_require_grad() => {
            with_adapter(input, Frozen::new(weight.base()), adapter, bias)
        }
        _ => linear(input, weight.val(), bias),
    }
}

fn with_adapter<const D: usize>(
    input: Tensor<D>,
    base: Frozen,
    adapter: &LoraAdapter,
    bias: Option<Tensor<1>>,
) -> Tensor<D> {
    let scale = adapter.scale;
    let operands = [
        Some(input.into_dispatch()),
        Some(adapter.a.val().into_dispatch()),
        Some(adapter.b.val().into_dispatch()),
        bias.map(Tensor::into_dispatch),
    ];
    apply(operands, |mut operands: Operands<4>| {
        let [wants_a, wants_b] = [A, B].map(|at| operands.wants(at));
        let input = operands.take::<D>(INPUT);
        let [a, b] = [A, B].map(|at| operands.take::<2>(at));
        let bias = operands.take_optional::<1>(BIAS);
        let mut dims = input.dims();
        let [_, d_output] = base.dims();
        let rows = as_rows(input.clone());
        let hidden = matmul(widened(rows.clone()), widened(a.clone())) * scale;
        let kept = Adapted {
            dims,
            input: wants_a.then_some(input),
            hidden: wants_b.then(|| hidden.clone()),
            a: a.clone(),
            b: b.clone(),
            base: base.clone(),
            scale,
        };
        let output = add_product(base.product(rows, bias), hidden, widened(b));
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
    a: Tensor<2>,
    b: Tensor<2>,
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
        let wide = widened(grad.clone());
        let of_hidden = matmul(wide.clone(), widened(self.b).transpose()) * self.scale;
        // The factors have no owner here when they are stepped.
        let a = operands.wants(INPUT).then(|| widened(self.a));
        let of_b = self.hidden.map(|hidden| matmul(hidden.transpose(), wide));
        let input = self.input.map(as_rows);
        let of_a = input.as_ref().map(|input| {
            let input = widened(input.clone());
            matmul(input.transpose(), of_hidden.clone())
        });
        if let Some(a) = a {
            let of_base = self.base.product_transposed(grad, input);
            let of_input = add_product(of_base, of_hidden, a.transpose());
            operands.give(INPUT, shaped(of_input, self.dims));
        }
        if let Some(of_b) = of_b {
            operands.give(B, of_b);
        }
        if let Some(of_a) = of_a {
            operands.give(A, of_a);
        }
    }
}
