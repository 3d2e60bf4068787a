//! Gated linear units, which keep their two inputs.

use burn::tensor::Tensor;

use super::activation::Function;
use super::chunks::{as_rows, map_along_with, map_rows, shaped};
#[cfg(feature = "flex")]
use super::flex;
use super::node::{Gradient, OperandGradients, Operands, Operation, apply};
use crate::wide::wide;

/// The product of the Swish gated linear unit, as in Burn's [`SwiGlu`](burn::nn::SwiGlu):
/// `silu(gate) * up`, from the paper [GLU Variants Improve
/// Transformer](https://arxiv.org/abs/2002.05202).
///
/// Keeps its two inputs, which the linear layers have made. Their gradients are written over the
/// gradient of the output and over `up`, if nothing else holds these.
///
/// # Shapes
///
/// `gate`, `up` and the output are of one shape.
///
/// # Panics
///
/// If the shapes differ.
pub fn swiglu<const D: usize>(gate: Tensor<D>, up: Tensor<D>) -> Tensor<D> {
    gated(Function::Silu, gate, up)
}

/// The product of the GELU gated linear unit: `gelu(gate) * up`, from the paper [GLU Variants
/// Improve Transformer](https://arxiv.org/abs/2002.05202). As [`swiglu`] with [`gelu`](super::gelu).
///
/// # Shapes
///
/// `gate`, `up` and the output are of one shape.
///
/// # Panics
///
/// If the shapes differ.
pub fn geglu<const D: usize>(gate: Tensor<D>, up: Tensor<D>) -> Tensor<D> {
    gated(Function::Gelu, gate, up)
}

/// [`geglu`] with [`gelu_approximate`](super::gelu_approximate), as [Gemma](https://arxiv.org/abs/2403.08295) has it.
///
/// # Shapes
///
/// `gate`, `up` and the output are of one shape.
///
/// # Panics
///
/// If the shapes differ.
pub fn geglu_approximate<const D: usize>(gate: Tensor<D>, up: Tensor<D>) -> Tensor<D> {
    gated(Function::GeluApproximate, gate, up)
}

fn gated<const D: usize>(function: Function, gate: Tensor<D>, up: Tensor<D>) -> Tensor<D> {
    assert_eq!(
        gate.dims(),
        up.dims(),
        "gated linear unit: the shapes differ"
    );
    let operands = [Some(gate.into_dispatch()), Some(up.into_dispatch())];
    apply(operands, |mut operands: Operands<2>| {
        let gate = operands.take::<D>(0);
        let up = operands.take::<D>(1);
        let kept = Gated {
            function,
            gate: gate.clone(),
            up: up.clone(),
        };
        let dims = gate.dims();
        let output = product(function, as_rows(gate), as_rows(up));
        (shaped(output, dims), kept)
    })
}

/// `function(gate) * up`, of the type of `gate`.
pub(super) fn product(function: Function, gate: Tensor<2>, up: Tensor<2>) -> Tensor<2> {
    #[cfg(feature = "flex")]
    if flex::has_slices(&gate) && flex::has_slices(&up) {
        return flex::gated(function.over_slices(), gate, up);
    }
    let (dtype, wide) = (gate.dtype(), wide(gate.dtype()));
    if dtype == wide && up.dtype() == dtype {
        return function.of(gate) * up;
    }
    map_rows(gate, |chunk, gate| {
        let up = up.clone().slice([chunk]).cast(wide);
        (function.of(gate.cast(wide)) * up).cast(dtype)
    })
}

/// The gradients of `gate` and `up`, from that of the product.
pub(super) fn product_backward(
    function: Function,
    gate: Tensor<2>,
    up: Tensor<2>,
    grad: Tensor<2>,
) -> [Tensor<2>; 2] {
    #[cfg(feature = "flex")]
    if flex::has_slices(&gate) && flex::has_slices(&up) {
        return flex::gated_backward(function.over_slices(), gate, up, grad);
    }
    let (dtype, wide) = (gate.dtype(), wide(gate.dtype()));
    let up_dtype = up.dtype();
    let map = |chunk, [grad, up]: [Tensor<2>; 2]| {
        let x = gate.clone().slice([chunk]).cast(wide);
        let grad = grad.cast(wide);
        let [value, derivative] = function.value_and_derivative(x);
        let of_gate = (derivative * up.cast(wide) * grad.clone()).cast(dtype);
        let of_up = (value * grad).cast(up_dtype);
        ([of_gate, of_up], ())
    };
    map_along_with([grad, up], 0, map, |()| {})
}

#[derive(Clone)]
struct Gated<const D: usize> {
    function: Function,
    gate: Tensor<D>,
    up: Tensor<D>,
}

impl<const D: usize> Operation<2> for Gated<D> {
    const NAME: &'static str = "gated linear unit";
    const MIXES: bool = true;

    fn backward(self, grad: Gradient, operands: &mut OperandGradients<'_, 2>) {
        let dims = self.gate.dims();
        let [gate, up] = [self.gate, self.up].map(as_rows);
        let grad = as_rows(grad.tensor::<D>());
        let [of_gate, of_up] = product_backward(self.function, gate, up, grad);
        operands.give(0, shaped(of_gate, dims));
        operands.give(1, shaped(of_up, dims));
    }
}
