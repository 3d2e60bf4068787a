//! The second half of a feed-forward network: its activation, dropout and linear layer.

use std::ops::Range;

use burn::tensor::{DType, Tensor};

use super::activation::{Function, elementwise};
use super::chunks::{as_rows, chunk_bytes, chunks, map_along_with, map_rows, shaped};
#[cfg(feature = "flex")]
use super::flex;
use crate::backend::is_on_flex;
use crate::wide::{wide, widened};

use super::dropout::{Mask, checked, draw, dropout, scale};
use super::linear::{assert_fits, linear};
use super::node::{Gradient, OperandGradients, Operands, Operation, apply};
use super::product::{Before, filled, matmul, onto_bias, product_into};

const INPUT: usize = 0;
const WEIGHT: usize = 1;
const BIAS: usize = 2;

/// How many bytes of the hidden layer are computed at once on a processor, at least.
const PART_BYTES: usize = 2 << 20;

/// Matrix products of fewer columns are slower.
const FEWEST_COLUMNS: usize = 128;

/// `linear(dropout(function(input)))` that keeps `input` and a bit for each element that may be
/// dropped.
///
/// The input of the linear layer is computed again in the backward pass, in blocks of columns, and
/// the gradient of the input is written over the input, if nothing else holds that.
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
/// If the last axis of `input` is not `d_input`, or `prob` is no probability below 1.
pub(super) fn activated_linear<const D: usize>(
    function: Function,
    prob: f64,
    input: Tensor<D>,
    weight: Tensor<2>,
    bias: Option<Tensor<1>>,
) -> Tensor<D> {
    if let DType::QFloat(_) = weight.dtype() {
        return linear(dropout(elementwise(function, input), prob), weight, bias);
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
        let wants = [INPUT, WEIGHT].map(|at| operands.wants(at));
        let input = operands.take::<D>(INPUT);
        let weight = operands.take::<2>(WEIGHT);
        let bias = operands.take_optional::<1>(BIAS);
        let mut dims = input.dims();
        assert_fits(dims[D - 1], weight.dims(), bias.as_ref());
        let mut kept = ActivatedLinear {
            function,
            prob,
            input: wants.contains(&true).then(|| input.clone()),
            weight: wants[INPUT].then(|| weight.clone()),
            masks: Vec::new(),
        };
        let [_, d_output] = weight.dims();
        dims[D - 1] = d_output;

        let (dtype, input) = (input.dtype(), as_rows(input));
        let [rows, width] = input.dims();
        let (weight, bias) = (for_products(weight), bias.map(for_products));
        let mut hidden_of = |part: Range<usize>| {
            let mut hidden = function.value(widened(input.clone().slice([part])));
            if prob > 0.0 {
                let keep = draw(hidden.dims(), prob, &hidden.device());
                if kept.input.is_some() {
                    kept.masks.push(by_block(&keep, prob, &input));
                }
                hidden = dropped(hidden, keep, prob);
            }
            hidden.cast(weight.dtype())
        };
        let parts: Vec<_> = chunks(rows, 4 * width, part_bytes(&input)).collect();
        let output = match (&parts[..], dtype == weight.dtype()) {
            ([part], _) => linear(hidden_of(part.clone()), weight, bias).cast(dtype),
            (parts, true) => {
                let (output, before) = onto_bias(bias, [rows, d_output], &input);
                parts.iter().fold(output, |output, part| {
                    let hidden = hidden_of(part.clone());
                    let at = [part.clone(), 0..d_output];
                    product_into(output, at, before, hidden, weight.clone())
                })
            }
            (parts, false) => {
                let output = filled([rows, d_output], dtype, &input);
                parts.iter().fold(output, |output, part| {
                    let hidden = hidden_of(part.clone());
                    let part_of = linear(hidden, weight.clone(), bias.clone()).cast(dtype);
                    output.slice_assign([part.clone()], part_of)
                })
            }
        };
        (shaped(output, dims), kept)
    })
}

/// A tensor as it is multiplied: in f32 on Flex, which would widen half precision for each part of a
/// product, and round it.
fn for_products<const D: usize>(tensor: Tensor<D>) -> Tensor<D> {
    match is_on_flex(&tensor) {
        true => widened(tensor),
        false => tensor,
    }
}

fn part_bytes(input: &Tensor<2>) -> usize {
    chunk_bytes(input).max(PART_BYTES)
}

/// The columns of the hidden layer that backward computes at once.
fn blocks(input: &Tensor<2>) -> impl Iterator<Item = Range<usize>> + use<> {
    let [rows, width] = input.dims();
    let column = 4 * rows.max(1);
    chunks(
        width,
        column,
        part_bytes(input).max(FEWEST_COLUMNS * column),
    )
}

/// The mask of some rows, in parts for each of the [`blocks`] of the whole.
fn by_block(keep: &Tensor<2>, prob: f64, input: &Tensor<2>) -> Vec<Mask> {
    let mask = |block| Mask::of_columns(keep, block, prob);
    blocks(input).map(mask).collect()
}

fn dropped(hidden: Tensor<2>, keep: Tensor<2>, prob: f64) -> Tensor<2> {
    #[cfg(feature = "flex")]
    if flex::has_slices(&hidden) {
        return flex::drop_with(hidden, &keep, scale(prob));
    }
    let keep = keep.cast(hidden.dtype());
    hidden * keep * scale(prob)
}

#[derive(Clone)]
struct ActivatedLinear<const D: usize> {
    function: Function,
    prob: f64,
    /// For the gradients of the input and the weight.
    input: Option<Tensor<D>>,
    /// For the gradient of the input.
    weight: Option<Tensor<2>>,
    /// For each part of the rows, one for each of the [`blocks`]. Empty without dropout.
    masks: Vec<Vec<Mask>>,
}

impl<const D: usize> ActivatedLinear<D> {
    /// The mask of all rows of a block: ones where elements are kept, and zeros.
    fn keep(&self, block: usize) -> Option<Tensor<2>> {
        let parts: Vec<_> = self.masks.iter().map(|masks| masks[block].keep()).collect();
        (!parts.is_empty()).then(|| Tensor::cat(parts, 0))
    }

    /// The gradient of some columns of the hidden layer, if that of the input is wanted.
    fn of_hidden(&self, columns: &Range<usize>, grad: &Tensor<2>) -> Option<Tensor<2>> {
        let weight = self.weight.clone()?.slice([columns.clone()]);
        Some(matmul(grad.clone(), for_products(weight).transpose()))
    }

    /// The input of the linear layer, and the gradient of the operation's input from that of the
    /// layer's, if there is one. All are columns of a block.
    fn block(
        &self,
        input: Tensor<2>,
        keep: Option<Tensor<2>>,
        grad: Option<Tensor<2>>,
    ) -> (Tensor<2>, Option<Tensor<2>>) {
        let (dtype, wide) = (input.dtype(), wide(input.dtype()));
        let dropped = |rows: Range<usize>, hidden: Tensor<2>| match &keep {
            Some(keep) => dropped(hidden, keep.clone().slice([rows]), self.prob),
            None => hidden,
        };
        let Some(grad) = grad else {
            let hidden = map_rows(input, |rows, x| {
                let [value, _] = self.function.value_and_derivative(x.cast(wide));
                dropped(rows, value).cast(dtype)
            });
            return (hidden, None);
        };
        let map = |rows: Range<usize>, [x, grad]: [Tensor<2>; 2]| {
            let [value, derivative] = self.function.value_and_derivative(x.cast(wide));
            let grad = dropped(rows.clone(), grad.cast(wide)) * derivative;
            ([dropped(rows, value).cast(dtype), grad.cast(dtype)], ())
        };
        let [hidden, grad] = map_along_with([input, grad], 0, map, |()| {});
        (hidden, Some(grad))
    }
}

/// Writes the gradient of the rows of the weight that columns of the hidden layer are multiplied by.
fn write_of_weight(
    of_weight: &mut Option<Tensor<2>>,
    columns: Range<usize>,
    hidden: &Tensor<2>,
    grad: &Tensor<2>,
) {
    if let Some(of_weight) = of_weight {
        let hidden = hidden.clone().transpose();
        let [_, d_output] = of_weight.dims();
        of_weight.inplace(|all| {
            let at = [columns, 0..d_output];
            product_into(all, at, Before::Anything, hidden, grad.clone())
        });
    }
}

impl<const D: usize> Operation<3> for ActivatedLinear<D> {
    const NAME: &'static str = "activated_linear";

    fn backward(mut self, grad: Gradient, operands: &mut OperandGradients<'_, 3>) {
        let grad = for_products(as_rows(grad.tensor::<D>()));
        if operands.wants(BIAS) {
            let sum = grad.clone().sum_dim(0);
            operands.give(BIAS, sum.squeeze_dim::<1>(0));
        }
        let Some(input) = self.input.take() else {
            return;
        };
        let dims = input.dims();
        let mut input = as_rows(input);
        let [rows, d_output] = grad.dims();
        let of_weight = || filled([dims[D - 1], d_output], input.dtype(), &grad);
        let mut of_weight = operands.wants(WEIGHT).then(of_weight);
        #[cfg(feature = "flex")]
        if flex::has_slices(&input) && flex::has_slices(&grad) {
            let blocks: Vec<_> = blocks(&input).collect();
            let mut layer = flex::Hidden::new(self.function.over_slices(), input);
            for (at, columns) in blocks.into_iter().enumerate() {
                let masks: Vec<_> = self.masks.iter().map(|masks| masks[at].packed()).collect();
                let of_hidden = self.of_hidden(&columns, &grad);
                let hidden = layer.block(&columns, &masks, of_hidden);
                write_of_weight(&mut of_weight, columns, &hidden, &grad);
            }
            if let Some(of_weight) = of_weight {
                operands.give(WEIGHT, of_weight);
            }
            operands.give(INPUT, shaped(layer.into_input(), dims));
            return;
        }
        for (at, columns) in blocks(&input).enumerate() {
            let block = [0..rows, columns.clone()];
            let of_hidden = self.of_hidden(&columns, &grad);
            let x = for_products(input.clone().slice(block.clone()));
            let (hidden, of_input) = self.block(x, self.keep(at), of_hidden);
            if let Some(of_input) = of_input {
                let dtype = input.dtype();
                input = input.slice_assign(block, of_input.cast(dtype));
            }
            write_of_weight(&mut of_weight, columns, &hidden, &grad);
        }
        if let Some(of_weight) = of_weight {
            operands.give(WEIGHT, of_weight);
        }
        operands.give(INPUT, shaped(input, dims));
    }
}
