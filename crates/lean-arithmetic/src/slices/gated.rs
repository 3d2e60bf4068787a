//! The product of a gated linear unit: `silu(gate) * up`.

use pulp::{Arch, Simd, WithSimd};

use super::activation::{Function, Silu};

/// Writes `silu(gate) * up`.
pub fn gated(gate: &[f32], up: &[f32], output: &mut [f32]) {
    Arch::new().dispatch(Gated(gate, up, output));
}

/// Replaces the gradient of the output by that of `gate`, and `up` by its gradient.
pub fn gated_backward(gate: &[f32], up: &mut [f32], grad: &mut [f32]) {
    Arch::new().dispatch(Backward(gate, up, grad));
}

struct Gated<'a>(&'a [f32], &'a [f32], &'a mut [f32]);

impl WithSimd for Gated<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self(gate, up, output) = self;
        for ((gate, up), output) in gate.iter().zip(up).zip(output) {
            let [value, _] = Silu.value_and_derivative::<S>(*gate);
            *output = value * up;
        }
    }
}

struct Backward<'a>(&'a [f32], &'a mut [f32], &'a mut [f32]);

impl WithSimd for Backward<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self(gate, up, grad) = self;
        for ((gate, up), grad) in gate.iter().zip(up).zip(grad) {
            let [value, derivative] = Silu.value_and_derivative::<S>(*gate);
            let (of_gate, of_up) = (derivative * *up * *grad, value * *grad);
            (*grad, *up) = (of_gate, of_up);
        }
    }
}
