//! A linear layer with a frozen weight, and its adapter.

use std::ops::Range;

use burn::module::Param;
use burn::tensor::Tensor;

use super::chunks::{as_rows, shaped};
use super::linear::linear;
use super::node::{Gradient, OperandGradients, Operands, Operation, apply};
use super::product::{add_product, matmul};
use super::weight::{LinearWeight, Weight};
use crate::wide::widened;

const INPUT: usize = 0;
const A: usize = 1;
const B: usize = 2;
const BIAS: usize = 3;

/// [`linear`] with a parameter that may be [packed](super::Nf4), and may have an [adapter](burn::module::LoraAdapter), from
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
    match LinearWeight::from(weight) {
        LinearWeight {
            value: Some(value), ..
        } => linear(input, value, bias),
        frozen => over_frozen(input, frozen, bias),
    }
}

/// The factors of an adapter, without autodiff: of `scale * a * b`. What they make is in 32 bits at least.
#[derive(Clone)]
pub(super) struct Factors {
    a: Tensor<2>,
    b: Tensor<2>,
    scale: f64,
}

impl Factors {
    /// Takes them, if the weight has an adapter of this scale.
    pub(super) fn take<const N: usize>(
        operands: &mut Operands<N>,
        [a, b]: [usize; 2],
        scale: Option<f64>,
    ) -> Option<Self> {
        scale.map(|scale| Self {
            a: operands.take(a),
            b: operands.take(b),
            scale,
        })
    }

    pub(super) fn rank(&self) -> usize {
        self.a.dims()[1]
    }

    /// The factors for some columns of the input.
    pub(super) fn of_columns(&self, columns: Range<usize>) -> Self {
        Self {
            a: self.a.clone().slice_dim(0, columns),
            ..self.clone()
        }
    }

    /// `scale * input * a`
    pub(super) fn reduced(&self, input: Tensor<2>) -> Tensor<2> {
        matmul(widened(input), widened(self.a.clone())) * self.scale
    }

    /// `output + reduced * b`, of the type of `output`.
    pub(super) fn add(&self, output: Tensor<2>, reduced: Tensor<2>) -> Tensor<2> {
        add_product(output, reduced, widened(self.b.clone()))
    }

    /// The gradient of `input * a`, from that of the output.
    pub(super) fn of_reduced(&self, grad: Tensor<2>) -> Tensor<2> {
        matmul(widened(grad), widened(self.b.clone()).transpose()) * self.scale
    }

    /// Adds the adapter's part to the gradient of the input.
    pub(super) fn add_of_input(&self, of_input: Tensor<2>, of_reduced: Tensor<2>) -> Tensor<2> {
        add_product(of_input, of_reduced, widened(self.a.clone()).transpose())
    }
}

fn over_frozen<const D: usize>(
    input: Tensor<D>,
    weight: LinearWeight,
    bias: Option<Tensor<1>>,
) -> Tensor<D> {
    let ([_, a, b], base, scale) = weight.into_operands();
    let base = base.expect("what is no operand is frozen");
    let (input, bias) = (input.into_dispatch(), bias.map(Tensor::into_dispatch));
    let operands = [Some(input), a, b, bias];
    apply(operands, |mut operands: Operands<4>| {
        let [wants_a, wants_b] = [A, B].map(|at| operands.wants(at));
        let input = operands.take::<D>(INPUT);
        let factors = Factors::take(&mut operands, [A, B], scale);
        let bias = operands.take_optional::<1>(BIAS);
        let mut dims = input.dims();
        let [_, d_output] = base.dims();
        let rows = as_rows(input.clone());
        let mut kept = Adapted {
            dims,
            input: wants_a.then_some(input),
            reduced: None,
            factors: factors.clone(),
            base: base.clone(),
        };
        let mut output = base.product(rows.clone(), bias);
        if let Some(factors) = factors {
            let reduced = factors.reduced(rows);
            kept.reduced = wants_b.then(|| reduced.clone());
            output = factors.add(output, reduced);
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
    reduced: Option<Tensor<2>>,
    factors: Option<Factors>,
    base: Weight,
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
        let mut through_factors = None;
        if let Some(factors) = self.factors {
            let of_reduced = factors.of_reduced(grad.clone());
            of_factors = [
                input.as_ref().map(|input| {
                    let input = widened(input.clone());
                    matmul(input.transpose(), of_reduced.clone())
                }),
                self.reduced
                    .map(|reduced| matmul(reduced.transpose(), widened(grad.clone()))),
            ];
            through_factors = operands.wants(INPUT).then_some((factors, of_reduced));
        }
        if operands.wants(INPUT) {
            let mut sum = self.base.product_transposed(grad, input);
            if let Some((factors, of_reduced)) = through_factors {
                sum = factors.add_of_input(sum, of_reduced);
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
