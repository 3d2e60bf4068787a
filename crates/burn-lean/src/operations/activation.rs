//! Activations that keep one tensor: their input, or their output.

use burn::tensor::{AsIndex, DType, Tensor};
use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI};
use std::ops::Range;

#[cfg(feature = "flex")]
use super::flex;
#[cfg(feature = "flex")]
use lean_arithmetic::slices;

use super::chunks::{as_rows, map_along, map_rows, shaped};
use crate::backend::is_on_flex;
use crate::wide::wide;

use super::node::{Gradient, OperandGradients, Operands, Operation, apply};

/// `√(2/π)`, as Burn computes it.
const SQRT_2_OVER_PI: f64 = FRAC_2_SQRT_PI * FRAC_1_SQRT_2;

/// The factor of `x³` in the approximation of GELU.
const CUBE: f64 = 0.044715;

/// GELU, as Burn's [`gelu`](burn::tensor::activation::gelu): `x * Φ(x)`, from the paper [Gaussian
/// Error Linear Units](https://arxiv.org/abs/1606.08415).
///
/// Keeps its input, and has the exact gradient `Φ(x) + x * φ(x)`: that of Burn is one of an
/// approximation, except on Flex.
///
/// # Shapes
///
/// `[...]`, and the output is as the input.
pub fn gelu<const D: usize>(tensor: Tensor<D>) -> Tensor<D> {
    elementwise(Function::Gelu, tensor)
}

/// The approximation of GELU with `tanh`, as Burn's
/// [`gelu_approximate`](burn::tensor::activation::gelu_approximate).
///
/// Keeps its input.
///
/// # Shapes
///
/// `[...]`, and the output is as the input.
pub fn gelu_approximate<const D: usize>(tensor: Tensor<D>) -> Tensor<D> {
    elementwise(Function::GeluApproximate, tensor)
}

/// SiLU, as Burn's [`silu`](burn::tensor::activation::silu): `x * sigmoid(x)`, from the paper
/// [Gaussian Error Linear Units](https://arxiv.org/abs/1606.08415).
///
/// Keeps its input.
///
/// # Shapes
///
/// `[...]`, and the output is as the input.
pub fn silu<const D: usize>(tensor: Tensor<D>) -> Tensor<D> {
    elementwise(Function::Silu, tensor)
}

/// A function of each element.
#[derive(Clone, Copy)]
pub(super) enum Function {
    Gelu,
    GeluApproximate,
    Silu,
}

impl Function {
    #[cfg(feature = "flex")]
    pub(super) fn over_slices(self) -> slices::Activation {
        match self {
            Self::Gelu => slices::Activation::Gelu,
            Self::GeluApproximate => slices::Activation::GeluApproximate,
            Self::Silu => slices::Activation::Silu,
        }
    }

    /// The backend's own.
    pub(super) fn of<const D: usize>(self, x: Tensor<D>) -> Tensor<D> {
        match self {
            Self::Gelu => burn::tensor::activation::gelu(x),
            Self::GeluApproximate => burn::tensor::activation::gelu_approximate(x),
            // Burn's has the precision of `f32`.
            Self::Silu if x.dtype() == DType::F64 => sigmoid(x.clone()) * x,
            Self::Silu => burn::tensor::activation::silu(x),
        }
    }

    /// The function of each element: Burn's own, in 32 bits at least.
    pub(super) fn value<const D: usize>(self, x: Tensor<D>) -> Tensor<D> {
        #[cfg(feature = "flex")]
        if flex::has_slices(&x) {
            return flex::activation(self.over_slices(), x);
        }
        let (dtype, wide) = (x.dtype(), wide(x.dtype()));
        if dtype == wide && !is_on_flex(&x) {
            return self.of(x);
        }
        let dims = x.dims();
        let value = |_, x: Tensor<2>| self.of(x.cast(wide)).cast(dtype);
        shaped(map_rows(as_rows(x), value), dims)
    }

    /// The gradient of the input, from that of the output.
    pub(super) fn backward(self, x: Tensor<2>, grad: Tensor<2>) -> Tensor<2> {
        #[cfg(feature = "flex")]
        if flex::has_slices(&x) {
            return flex::activation_backward(self.over_slices(), x, grad);
        }
        let (dtype, wide) = (x.dtype(), wide(x.dtype()));
        map_rows(grad, |chunk, grad| {
            let x = x.clone().slice([chunk]).cast(wide);
            let grad = grad.cast(wide);
            #[cfg(feature = "flex")]
            if flex::has_slices(&x) {
                return flex::activation_backward(self.over_slices(), x, grad).cast(dtype);
            }
            let [_, derivative] = self.value_and_derivative(x);
            (derivative * grad).cast(dtype)
        })
    }

    /// The function of each element, and its derivative.
    pub(super) fn value_and_derivative(self, x: Tensor<2>) -> [Tensor<2>; 2] {
        match self {
            Self::Gelu => gelu_and_derivative(x),
            Self::GeluApproximate => gelu_approximate_and_derivative(x),
            Self::Silu => silu_and_derivative(x),
        }
    }
}

/// `x * Φ(x)` and `Φ(x) + x * φ(x)`
fn gelu_and_derivative(x: Tensor<2>) -> [Tensor<2>; 2] {
    let distribution = ((x.clone() * FRAC_1_SQRT_2).erf() + 1.0) * 0.5;
    let density = (x.clone().square() * -0.5).exp() * (0.5 * SQRT_2_OVER_PI);
    let derivative = density * x.clone() + distribution.clone();
    [distribution * x, derivative]
}

fn gelu_approximate_and_derivative(x: Tensor<2>) -> [Tensor<2>; 2] {
    // Farther out, tanh is 1 and its derivative 0, which the cube must not make a NaN of.
    let near = x.clone().clamp(-100.0, 100.0);
    let square = near.clone().square();
    let inner = (square.clone() * CUBE + 1.0) * near.clone() * SQRT_2_OVER_PI;
    let tanh = inner.tanh();
    let slope = (square * (3.0 * CUBE) + 1.0) * SQRT_2_OVER_PI;
    let of_tanh = tanh.clone().square().neg() + 1.0;
    let distribution = (tanh + 1.0) * 0.5;
    let derivative = of_tanh * slope * near * 0.5 + distribution.clone();
    [distribution * x, derivative]
}

/// `x * σ(x)` and `σ(x) * (1 + x * (1 - σ(x)))`
fn silu_and_derivative(x: Tensor<2>) -> [Tensor<2>; 2] {
    let sigmoid = sigmoid(x.clone());
    let rest = sigmoid.clone().neg() + 1.0;
    let derivative = (rest * x.clone() + 1.0) * sigmoid.clone();
    [sigmoid * x, derivative]
}

/// Not Burn's, which has the precision of `f32` for `f64` too.
fn sigmoid<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    (x.neg().exp() + 1.0).recip()
}

/// The function as one operation, which keeps its input.
pub(super) fn elementwise<const D: usize>(function: Function, tensor: Tensor<D>) -> Tensor<D> {
    apply(
        [Some(tensor.into_dispatch())],
        |mut operands: Operands<1>| {
            let input = operands.take::<D>(0);
            let kept = Elementwise {
                function,
                input: input.clone(),
            };
            (function.value(input), kept)
        },
    )
}

#[derive(Clone)]
struct Elementwise<const D: usize> {
    function: Function,
    input: Tensor<D>,
}

impl<const D: usize> Operation<1> for Elementwise<D> {
    const NAME: &'static str = "activation";

    fn backward(self, grad: Gradient, operands: &mut OperandGradients<'_, 1>) {
        let Self { function, input } = self;
        let dims = input.dims();
        let grad = function.backward(as_rows(input), as_rows(grad.tensor::<D>()));
        operands.give(0, shaped(grad, dims));
    }
}

/// Softmax along an axis, as Burn's [`softmax`](burn::tensor::activation::softmax).
///
/// Keeps its output.
///
/// # Shapes
///
/// `[...]`, and the output is as the input.
///
/// # Panics
///
/// If there is no axis `dim`.
pub fn softmax<const D: usize>(tensor: Tensor<D>, dim: impl AsIndex) -> Tensor<D> {
    normalizer(Normalizer::Softmax, tensor, dim)
}

/// Softmax that may give no weight to anything, as Burn's
/// [`quiet_softmax`](burn::tensor::activation::quiet_softmax): `exp(x) / (1 + sum(exp(x)))`.
///
/// Keeps its output.
///
/// # Shapes
///
/// `[...]`, and the output is as the input.
///
/// # Panics
///
/// If there is no axis `dim`.
pub fn quiet_softmax<const D: usize>(tensor: Tensor<D>, dim: impl AsIndex) -> Tensor<D> {
    normalizer(Normalizer::QuietSoftmax, tensor, dim)
}

/// The logarithm of softmax along an axis, as Burn's
/// [`log_softmax`](burn::tensor::activation::log_softmax).
///
/// Keeps its output.
///
/// # Shapes
///
/// `[...]`, and the output is as the input.
///
/// # Panics
///
/// If there is no axis `dim`.
pub fn log_softmax<const D: usize>(tensor: Tensor<D>, dim: impl AsIndex) -> Tensor<D> {
    normalizer(Normalizer::LogSoftmax, tensor, dim)
}

#[derive(Clone, Copy)]
enum Normalizer {
    Softmax,
    QuietSoftmax,
    LogSoftmax,
}

impl Normalizer {
    /// As it is over slices, where the rows of the tensor are.
    #[cfg(feature = "flex")]
    fn over_slices<const D: usize>(self, x: &Tensor<D>, dim: usize) -> Option<slices::Softmax> {
        (dim + 1 == D && flex::has_slices(x)).then_some(match self {
            Self::Softmax => slices::Softmax::Plain,
            Self::QuietSoftmax => slices::Softmax::Quiet,
            Self::LogSoftmax => slices::Softmax::Log,
        })
    }

    fn of<const D: usize>(self, x: Tensor<D>, dim: usize) -> Tensor<D> {
        match self {
            Self::Softmax => softmax_of(x, dim),
            Self::QuietSoftmax => burn::tensor::activation::quiet_softmax(x, dim),
            Self::LogSoftmax => burn::tensor::activation::log_softmax(x, dim),
        }
    }

    fn forward<const D: usize>(self, input: Tensor<D>, dim: usize) -> Tensor<D> {
        #[cfg(feature = "flex")]
        if let Some(softmax) = self.over_slices(&input, dim) {
            return flex::softmax(softmax, input);
        }
        let (dtype, wide) = (input.dtype(), wide(input.dtype()));
        if dtype == wide && !is_on_flex(&input) {
            return self.of(input, dim);
        }
        map_beside(input, dim, |_, _, x| self.of(x.cast(wide), dim).cast(dtype))
    }

    /// The gradient of the input, from the output and its gradient.
    fn backward<const D: usize>(self, output: Tensor<D>, grad: Tensor<D>, dim: usize) -> Tensor<D> {
        #[cfg(feature = "flex")]
        if let Some(softmax) = self.over_slices(&output, dim) {
            return flex::softmax_backward(softmax, output, grad);
        }
        let (dtype, wide) = (output.dtype(), wide(output.dtype()));
        map_beside(grad, dim, |axis, chunk, grad| {
            let output = output.clone().slice_dim(axis, chunk).cast(wide);
            self.of_part(output, grad.cast(wide), dim).cast(dtype)
        })
    }

    fn of_part<const D: usize>(self, output: Tensor<D>, grad: Tensor<D>, dim: usize) -> Tensor<D> {
        match self {
            Self::Softmax | Self::QuietSoftmax => softmax_backward(output, grad, dim),
            Self::LogSoftmax => {
                let sum = grad.clone().sum_dim(dim);
                grad - output.exp() * sum
            }
        }
    }
}

/// Replaces each chunk along the longest axis that no sum runs along by the result of `map`, which gets
/// that axis and where the chunk is on it.
fn map_beside<const D: usize>(
    tensor: Tensor<D>,
    dim: usize,
    map: impl Fn(usize, Range<usize>, Tensor<D>) -> Tensor<D> + Sync,
) -> Tensor<D> {
    let dims = tensor.dims();
    if dims.contains(&0) {
        return tensor;
    }
    let others = (0..D).filter(|axis| *axis != dim);
    match others.max_by_key(|axis| dims[*axis]) {
        Some(axis) => map_along(tensor, axis, |chunk, part| map(axis, chunk, part)),
        None => map(dim, 0..dims[dim], tensor),
    }
}

/// Longer rows are divided by their sum once more.
const SHORT: usize = 64;

/// The backend's own. That of Flex is for inference: it adds up a row number by number, so that one of
/// 50,257 is off by hundreds of roundings, all of its numbers by the same factor.
pub(super) fn softmax_of<const D: usize>(x: Tensor<D>, dim: usize) -> Tensor<D> {
    let is_long = x.dims()[dim] > SHORT && is_on_flex(&x);
    let weights = burn::tensor::activation::softmax(x, dim);
    match is_long {
        true => {
            let sum = weights.clone().sum_dim(dim);
            weights / sum
        }
        false => weights,
    }
}

/// `y * (grad - sum(grad * y))`
pub(super) fn softmax_backward<const D: usize>(
    output: Tensor<D>,
    grad: Tensor<D>,
    dim: usize,
) -> Tensor<D> {
    let along = (grad.clone() * output.clone()).sum_dim(dim);
    (grad - along) * output
}

fn normalizer<const D: usize>(
    function: Normalizer,
    tensor: Tensor<D>,
    dim: impl AsIndex,
) -> Tensor<D> {
    let dim = dim.expect_dim_index(D);
    apply(
        [Some(tensor.into_dispatch())],
        |mut operands: Operands<1>| {
            let input = operands.take::<D>(0);
            let output = function.forward(input, dim);
            let kept = Normalized {
                function,
                output: output.clone(),
                dim,
            };
            (output, kept)
        },
    )
}

#[derive(Clone)]
struct Normalized<const D: usize> {
    function: Normalizer,
    output: Tensor<D>,
    dim: usize,
}

impl<const D: usize> Operation<1> for Normalized<D> {
    const NAME: &'static str = "softmax";

    fn backward(self, grad: Gradient, operands: &mut OperandGradients<'_, 1>) {
        let Self {
            function,
            output,
            dim,
        } = self;
        operands.give(0, function.backward(output, grad.tensor::<D>(), dim));
    }
}
