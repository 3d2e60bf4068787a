//! The product of a gated linear unit: `function(gate) * up`.

use super::activation::{Activation, Function, Gelu, GeluApproximate, Silu, typed};
use super::vectorized::vectorized;

impl Activation {
    /// Writes `function(gate) * up`.
    pub fn gated(self, gate: &[f32], up: &[f32], output: &mut [f32]) {
        typed!(self, gated(gate, up, output));
    }

    /// Replaces the gradient of the output by that of `gate`, and `up` by its gradient.
    pub fn gated_backward(self, gate: &[f32], up: &mut [f32], grad: &mut [f32]) {
        typed!(self, backward(gate, up, grad));
    }
}

vectorized! {
    fn gated<S, F: Function>(gate: &[f32], up: &[f32], output: &mut [f32]) {
        for ((gate, up), output) in gate.iter().zip(up).zip(output) {
            let [value, _] = F::value_and_derivative::<S>(*gate);
            *output = value * up;
        }
    }

    fn backward<S, F: Function>(gate: &[f32], up: &mut [f32], grad: &mut [f32]) {
        for ((gate, up), grad) in gate.iter().zip(up).zip(grad) {
            let [value, derivative] = F::value_and_derivative::<S>(*gate);
            let (of_gate, of_up) = (derivative * *up * *grad, value * *grad);
            (*grad, *up) = (of_gate, of_up);
        }
    }
}
