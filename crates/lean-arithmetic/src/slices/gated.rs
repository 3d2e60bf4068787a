//! The product of a gated linear unit: `function(gate) * up`.

use pulp::{Arch, Simd, WithSimd};

use super::activation::{Activation, Function, Gelu, GeluApproximate, Silu};

impl Activation {
    /// Writes `function(gate) * up`.
    pub fn gated(self, gate: &[f32], up: &[f32], output: &mut [f32]) {
        match self {
            Self::Gelu => Arch::new().dispatch(Gated(Gelu, gate, up, output)),
            Self::GeluApproximate => {
                Arch::new().dispatch(Gated(GeluApproximate, gate, up, output));
            }
            Self::Silu => Arch::new().dispatch(Gated(Silu, gate, up, output)),
        }
    }

    /// Replaces the gradient of the output by that of `gate`, and `up` by its gradient.
    pub fn gated_backward(self, gate: &[f32], up: &mut [f32], grad: &mut [f32]) {
        match self {
            Self::Gelu => Arch::new().dispatch(Backward(Gelu, gate, up, grad)),
            Self::GeluApproximate => {
                Arch::new().dispatch(Backward(GeluApproximate, gate, up, grad));
            }
            Self::Silu => Arch::new().dispatch(Backward(Silu, gate, up, grad)),
        }
    }
}

struct Gated<'a, F>(F, &'a [f32], &'a [f32], &'a mut [f32]);

impl<F: Function> WithSimd for Gated<'_, F> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self(function, gate, up, output) = self;
        for ((gate, up), output) in gate.iter().zip(up).zip(output) {
            let [value, _] = function.value_and_derivative::<S>(*gate);
            *output = value * up;
        }
    }
}

struct Backward<'a, F>(F, &'a [f32], &'a mut [f32], &'a mut [f32]);

impl<F: Function> WithSimd for Backward<'_, F> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self(function, gate, up, grad) = self;
        for ((gate, up), grad) in gate.iter().zip(up).zip(grad) {
            let [value, derivative] = function.value_and_derivative::<S>(*gate);
            let (of_gate, of_up) = (derivative * *up * *grad, value * *grad);
            (*grad, *up) = (of_gate, of_up);
        }
    }
}
