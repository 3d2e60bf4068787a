//! The second half of a feed-forward network: its activation, dropout and linear layer.

use std::ops::Range;

use burn::tensor::{DType, Tensor};

use super::activation::Function;
use super::chunks::{as_rows, chunk_bytes, chunks, chunks_of, shaped};
use super::dropout::{Mask, checked, draw, scale};
#[cfg(feature = "flex")]
use super::flex;
use super::gated;
use super::linear::assert_fits;
use super::lora::Factors;
use super::node::{Gradient, OperandGradients, Operands, Operation, apply};
use super::product::{Before, filled, matmul, product_into};
use super::weight::{LinearWeight, Weight};
use crate::backend::is_on_flex;
use crate::wide::{wide, widened};

const INPUT: usize = 0;
const UP: usize = 1;
const WEIGHT: usize = 2;
const A: usize = 3;
const B: usize = 4;
const BIAS: usize = 5;

/// How many bytes of the hidden layer are computed at once on a processor, at least.
const PART_BYTES: usize = 2 << 20;

/// How many rows of it, at least, where the weight is unpacked or cast for each part.
const FEWEST_ROWS: usize = 256;

/// Matrix products of fewer columns are slower. Whole blocks of a packed weight.
const FEWEST_COLUMNS: usize = 128;

/// The second half of a gated feed-forward network: the linear layer of [`swiglu`](super::swiglu), `(silu(gate)
/// * up) * weight + bias`.
///
/// Keeps `gate` and `up`. The input of the linear layer is computed again in the backward pass, in blocks of
/// columns, and the gradients of `gate` and `up` are written over these, if nothing else holds them.
///
/// A parameter with an adapter, or a packed one, is as in [`adapted_linear`](super::adapted_linear).
///
/// # Shapes
///
/// - `gate`, `up`: `[..., d_input]`
/// - `weight`: `[d_input, d_output]`
/// - `bias`: `[d_output]`
/// - output: `[..., d_output]`
///
/// # Panics
///
/// If the shapes of `gate` and `up` differ, their last axis is not `d_input`, or the bias has not `d_output`
/// elements.
pub fn swiglu_linear<const D: usize>(
    gate: Tensor<D>,
    up: Tensor<D>,
    weight: impl Into<LinearWeight>,
    bias: Option<Tensor<1>>,
) -> Tensor<D> {
    activated_linear(Function::Silu, 0.0, gate, Some(up), weight.into(), bias)
}

/// `linear(dropout(function(input)))` that keeps `input` and a bit for each element that may be
/// dropped. With `up`, that is multiplied by the function.
///
/// The input of the linear layer is computed again in the backward pass, in blocks of columns, and
/// the gradient of the input is written over the input, if nothing else holds that.
///
/// # Shapes
///
/// - `input`, `up`: `[..., d_input]`
/// - `weight`: `[d_input, d_output]`
/// - `bias`: `[d_output]`
/// - output: `[..., d_output]`
///
/// # Panics
///
/// If the last axis of `input` is not `d_input`, `up` is of another shape, or `prob` is no probability below 1.
pub(super) fn activated_linear<const D: usize>(
    function: Function,
    prob: f64,
    input: Tensor<D>,
    up: Option<Tensor<D>>,
    weight: LinearWeight,
    bias: Option<Tensor<1>>,
) -> Tensor<D> {
    if let Some(up) = &up {
        let [dims, of_up] = [input.dims(), up.dims()];
        assert_eq!(dims, of_up, "gated linear unit: the shapes differ");
    }
    if let Some(value) = &weight.value {
        let types = [input.dtype(), value.dtype()];
        assert!(
            types[0] == types[1],
            "activated_linear: input and weight are of the types {types:?}: cast them to one"
        );
    }
    let prob = match input.device().is_autodiff() {
        true => checked(prob),
        false => 0.0,
    };
    let ([value, a, b], frozen, scale) = weight.into_operands();
    let input = Some(input.into_dispatch());
    let [up, bias] = [
        up.map(Tensor::into_dispatch),
        bias.map(Tensor::into_dispatch),
    ];
    let operands = [input, up, value, a, b, bias];
    apply(operands, |mut operands: Operands<6>| {
        let wants: [bool; 6] = std::array::from_fn(|at| operands.wants(at));
        let input = operands.take::<D>(INPUT);
        let (dtype, mut dims) = (input.dtype(), input.dims());
        let up = operands.take_optional::<D>(UP);
        let inputs: Vec<_> = std::iter::once(input).chain(up).map(as_rows).collect();
        let mut weight = frozen.unwrap_or_else(|| Weight::Tensor(operands.take(WEIGHT)));
        let factors = Factors::take(&mut operands, [A, B], scale);
        let bias = operands.take_optional::<1>(BIAS);
        assert_fits(dims[D - 1], weight.dims(), bias.as_ref());

        let of_inputs = wants[INPUT] || wants[UP];
        let is_kept = of_inputs || wants[WEIGHT] || wants[A];
        // On Flex, half precision would be widened for each part of a product, and rounded.
        let computed = match is_on_flex(&inputs[0]) || !weight.is_ready(dtype) {
            true => wide(dtype),
            false => dtype,
        };
        let mut kept = ActivatedLinear {
            dims,
            computed,
            inputs: is_kept.then(|| Hidden {
                function,
                prob,
                inputs: inputs.clone(),
                masks: Vec::new(),
            }),
            weight: of_inputs.then(|| weight.clone()),
            factors: factors.clone(),
            reduced: None,
        };
        let [rows, width] = inputs[0].dims();
        let [_, d_output] = weight.dims();
        dims[D - 1] = d_output;
        if is_on_flex(&inputs[0]) {
            weight = weight.dequantized();
        }
        let mut bytes = part_bytes(&inputs[0]);
        if !weight.is_ready(computed) {
            bytes = bytes.max(FEWEST_ROWS * 4 * width);
        }
        // Of no rows: there may be none at all.
        let none = |factors: &Factors| filled([0, factors.rank()], wide(dtype), &inputs[0]);
        let mut reduced = Vec::from_iter(factors.as_ref().map(none));
        let mut output_of = |part: Range<usize>| {
            let inputs = inputs.iter().map(|x| x.clone().slice([part.clone()]));
            let mut hidden = activated(function, inputs.collect());
            if prob > 0.0 {
                let keep = draw(hidden.dims(), prob, &hidden.device());
                if let Some(kept) = &mut kept.inputs {
                    kept.masks.push(by_block(&keep, prob, &kept.inputs[0]));
                }
                hidden = dropped(hidden, keep, prob);
            }
            let hidden = hidden.cast(computed);
            let mut output = weight.product(hidden.clone(), bias.clone());
            if let Some(factors) = &factors {
                let part = factors.reduced(hidden);
                output = factors.add(output, part.clone());
                reduced.push(part);
            }
            output.cast(dtype)
        };
        let parts: Vec<_> = chunks(rows, 4 * width, bytes).collect();
        let output = match &parts[..] {
            [part] => output_of(part.clone()),
            parts => {
                let output = filled([rows, d_output], dtype, &inputs[0]);
                parts.iter().fold(output, |output, part| {
                    let of_part = output_of(part.clone());
                    output.slice_assign([part.clone()], of_part)
                })
            }
        };
        if wants[B] {
            kept.reduced = Some(Tensor::cat(reduced, 0));
        }
        (shaped(output, dims), kept)
    })
}

/// The function of the first input, times the second if there is one; in 32 bits at least.
fn activated(function: Function, inputs: Vec<Tensor<2>>) -> Tensor<2> {
    let mut inputs = inputs.into_iter().map(widened);
    let first = inputs.next().expect("there is an input");
    match inputs.next() {
        Some(up) => gated::product(function, first, up),
        None => function.value(first),
    }
}

fn part_bytes(input: &Tensor<2>) -> usize {
    chunk_bytes(input).max(PART_BYTES)
}

/// The columns of the hidden layer that backward computes at once.
fn blocks(input: &Tensor<2>) -> impl Iterator<Item = Range<usize>> + use<> {
    let [rows, width] = input.dims();
    let columns = part_bytes(input) / (4 * rows.max(1));
    chunks_of(width, columns.max(1).next_multiple_of(FEWEST_COLUMNS))
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
    dims: [usize; D],
    /// The type that the hidden layer is multiplied in.
    computed: DType,
    /// For the gradients of the inputs, the weight and the first factor.
    inputs: Option<Hidden>,
    /// For the gradients of the inputs.
    weight: Option<Weight>,
    factors: Option<Factors>,
    /// `scale * hidden * a`, for the gradient of `b`.
    reduced: Option<Tensor<2>>,
}

impl<const D: usize> Operation<6> for ActivatedLinear<D> {
    const NAME: &'static str = "activated_linear";
    const MIXES: bool = true;

    fn backward(self, grad: Gradient, operands: &mut OperandGradients<'_, 6>) {
        let grad = as_rows(grad.tensor::<D>()).cast(self.computed);
        if operands.wants(BIAS) {
            let sum = grad.clone().sum_dim(0);
            operands.give(BIAS, sum.squeeze_dim::<1>(0));
        }
        let of_b = self
            .reduced
            .map(|reduced| matmul(reduced.transpose(), widened(grad.clone())));
        let (mut of_weight, mut of_a) = (None, None);
        if let Some(mut layer) = self.inputs {
            let [[_, width], [_, d_output]] = [layer.inputs[0].dims(), grad.dims()];
            if operands.wants(WEIGHT) {
                let dtype = layer.inputs[0].dtype();
                of_weight = Some(filled([width, d_output], dtype, &grad));
            }
            let factors = self.factors.map(|factors| {
                let of_reduced = factors.of_reduced(grad.clone());
                (factors, of_reduced)
            });
            if let Some((factors, of_reduced)) = factors.as_ref().filter(|_| operands.wants(A)) {
                of_a = Some(filled([width, factors.rank()], of_reduced.dtype(), &grad));
            }
            let weight = self.weight.map(Weight::dequantized);
            for (at, columns) in blocks(&layer.inputs[0]).enumerate() {
                let of_hidden = weight.as_ref().map(|weight| {
                    let rows = weight.rows(columns.clone(), self.computed);
                    let of_hidden = matmul(grad.clone(), rows.transpose());
                    match &factors {
                        Some((factors, of_reduced)) => {
                            let factors = factors.of_columns(columns.clone());
                            factors.add_of_input(of_hidden, of_reduced.clone())
                        }
                        None => of_hidden,
                    }
                });
                let hidden = layer.block(at, &columns, of_hidden).cast(self.computed);
                write_of_weight(&mut of_weight, &columns, &hidden, &grad);
                if let Some((_, of_reduced)) = &factors {
                    write_of_weight(&mut of_a, &columns, &widened(hidden), of_reduced);
                }
            }
            drop((weight, factors));
            for (at, of_input) in [INPUT, UP].into_iter().zip(layer.inputs) {
                operands.give(at, shaped(of_input, self.dims));
            }
        }
        // Nothing here holds what is stepped now.
        for (at, grad) in [(WEIGHT, of_weight), (B, of_b), (A, of_a)] {
            if let Some(grad) = grad {
                operands.give(at, grad);
            }
        }
    }
}

/// Writes the gradient of the rows of a weight that columns of the hidden layer are multiplied by.
fn write_of_weight(
    of_weight: &mut Option<Tensor<2>>,
    columns: &Range<usize>,
    hidden: &Tensor<2>,
    grad: &Tensor<2>,
) {
    if let Some(of_weight) = of_weight {
        let hidden = hidden.clone().transpose();
        let [_, d_output] = of_weight.dims();
        of_weight.inplace(|all| {
            let at = [columns.clone(), 0..d_output];
            product_into(all, at, Before::Anything, hidden, grad.clone())
        });
    }
}

/// What the hidden layer is computed again from.
#[derive(Clone)]
struct Hidden {
    function: Function,
    prob: f64,
    /// That of the function, and what it is multiplied with if it is gated: `[rows, width]`.
    inputs: Vec<Tensor<2>>,
    /// For each part of the rows, one for each of the [`blocks`]. Empty without dropout.
    masks: Vec<Vec<Mask>>,
}

impl Hidden {
    /// Columns of the hidden layer. With their gradient, those of the inputs are written over these.
    fn block(&mut self, at: usize, columns: &Range<usize>, grad: Option<Tensor<2>>) -> Tensor<2> {
        #[cfg(feature = "flex")]
        if let Some(grad) = &grad
            && self.inputs.iter().chain([grad]).all(flex::has_slices)
        {
            let masks: Vec<_> = self.masks.iter().map(|masks| masks[at].packed()).collect();
            let (function, inputs) = (
                self.function.over_slices(),
                std::mem::take(&mut self.inputs),
            );
            let (inputs, hidden) =
                flex::hidden_block(function, inputs, columns, &masks, grad.clone());
            self.inputs = inputs;
            return hidden;
        }
        let keep: Vec<_> = self.masks.iter().map(|masks| masks[at].keep()).collect();
        let dropped = |hidden: Tensor<2>| match keep.is_empty() {
            true => hidden,
            false => dropped(hidden, Tensor::cat(keep.clone(), 0), self.prob),
        };
        let part = |input: &Tensor<2>| widened(input.clone().slice_dim(1, columns.clone()));
        let parts: Vec<_> = self.inputs.iter().map(part).collect();
        let hidden = dropped(activated(self.function, parts.clone()));
        if let Some(grad) = grad {
            let grad = dropped(widened(grad));
            let grads = match &parts[..] {
                [gate, up] => {
                    let (gate, up) = (gate.clone(), up.clone());
                    Vec::from(gated::product_backward(self.function, gate, up, grad))
                }
                parts => vec![self.function.backward(parts[0].clone(), grad)],
            };
            for (input, grad) in self.inputs.iter_mut().zip(grads) {
                let [rows, _] = input.dims();
                let grad = grad.cast(input.dtype());
                input.inplace(|input| input.slice_assign([0..rows, columns.clone()], grad));
            }
        }
        hidden
    }
}
