//! The second half of a feed-forward network: its activation, dropout and linear layer.

use burn::tensor::{DType, Tensor};

use super::activation::Function;
use super::chunks::{as_rows, chunk_bytes, chunks, shaped, wide};
use super::dropout::{Drop, checked};
use super::linear::{add_product_of_columns, filled, linear, matmul, product_of_columns};
use super::node::{Gradient, OperandGradients, Operands, Operation, apply};

const INPUT: usize = 0;
const WEIGHT: usize = 1;
const BIAS: usize = 2;

/// How many bytes of the hidden layer are computed at once on a processor, at least: each part of
/// it goes through the weights once.
const PART_BYTES: usize = 2 << 20;

/// `linear(dropout(function(input)))` that keeps `input` and a bit for each element that may be
/// dropped. What the linear layer is given is computed again in backward, in parts of rows, and the
/// gradient of the input is written over the input, where nobody else holds that.
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
/// If the last axis of `input` is not `d_input`, or `prob` is no probability.
pub(super) fn activated_linear<const D: usize>(
    function: Function,
    prob: f64,
    input: Tensor<D>,
    weight: Tensor<2>,
    bias: Option<Tensor<1>>,
) -> Tensor<D> {
    if let DType::QFloat(_) = weight.dtype() {
        // For inference alone.
        return linear(function.value(input), weight, bias);
    }
    let prob = match input.device().is_autodiff() {
        true => checked(prob),
        false => 0.0,
    };
    let operands = [
        Some(input.into_dispatch()),
        Some(weight.into_dispatch()),
        bias.map(Tensor::into_dispatch),
    ];
    apply(operands, |mut operands: Operands<3>| {
        let wants_input = operands.wants(INPUT);
        let input = operands.take::<D>(INPUT);
        let weight = operands.take::<2>(WEIGHT);
        let bias = operands.take_optional::<1>(BIAS);
        let mut dims = input.dims();
        let mut kept = ActivatedLinear {
            function,
            input: input.clone(),
            weight: wants_input.then(|| weight.clone()),
            drops: Vec::new(),
        };
        let [d_input, d_output] = weight.dims();
        assert_eq!(
            dims[D - 1],
            d_input,
            "linear: the last axis of the input is `d_input` of the weight"
        );
        dims[D - 1] = d_output;

        let input = as_rows(input);
        let [rows, _] = input.dims();
        let mut output = filled([rows, d_output], input.dtype(), &input);
        for part in parts(&input) {
            let mut hidden = function.value(input.clone().slice([part.clone()]));
            if prob > 0.0 {
                let drop = Drop::draw(hidden.shape(), prob, &hidden.device());
                hidden = drop.apply(hidden);
                kept.drops.push(drop);
            }
            let product = matmul(hidden, weight.clone());
            let product = match &bias {
                Some(bias) => product + bias.clone().unsqueeze(),
                None => product,
            };
            if part.len() == rows {
                output = product;
                break;
            }
            output = output.slice_assign([part], product);
        }
        (shaped(output, dims), kept)
    })
}

fn parts(input: &Tensor<2>) -> impl Iterator<Item = std::ops::Range<usize>> + use<> {
    let [rows, width] = input.dims();
    chunks(rows, 4 * width, chunk_bytes(input).max(PART_BYTES))
}

#[derive(Clone)]
struct ActivatedLinear<const D: usize> {
    function: Function,
    input: Tensor<D>,
    /// For the gradient of the input.
    weight: Option<Tensor<2>>,
    /// One for each part of the rows, or none.
    drops: Vec<Drop>,
}

impl<const D: usize> Operation<3> for ActivatedLinear<D> {
    const NAME: &'static str = "feed-forward";

    fn backward(self, grad: Gradient, operands: &mut OperandGradients<'_, 3>) {
        let dims = self.input.dims();
        let dtype = self.input.dtype();
        let grad = as_rows(grad.tensor::<D>());
        if operands.wants(BIAS) {
            let sum = grad.clone().sum_dim(0);
            operands.give(BIAS, sum.squeeze_dim::<1>(0));
        }
        let mut input = as_rows(self.input);
        let weight = self.weight.map(Tensor::transpose);
        let mut of_weight: Option<Tensor<2>> = None;
        for (at, part) in parts(&input).enumerate() {
            let drop = self.drops.get(at);
            let dropped = |tensor: Tensor<2>| match drop {
                Some(drop) => drop.apply(tensor),
                None => tensor,
            };
            let grad = grad.clone().slice([part.clone()]);
            if operands.wants(WEIGHT) {
                let hidden = self.function.value(input.clone().slice([part.clone()]));
                let hidden = dropped(hidden);
                of_weight = Some(match of_weight {
                    Some(sum) => add_product_of_columns(sum, &hidden, &grad),
                    None => product_of_columns(&hidden, &grad).cast(wide(dtype)),
                });
            }
            if let Some(weight) = &weight {
                let of_hidden = dropped(matmul(grad, weight.clone()));
                let x = input.clone().slice([part.clone()]);
                let of_input = self.function.backward(x, of_hidden);
                input = input.slice_assign([part], of_input);
            }
        }
        if operands.wants(WEIGHT) {
            let none = || filled([dims[D - 1], grad.dims()[1]], dtype, &grad);
            operands.give(WEIGHT, of_weight.map_or_else(none, |sum| sum.cast(dtype)));
        }
        if weight.is_some() {
            operands.give(INPUT, shaped(input, dims));
        }
    }
}
