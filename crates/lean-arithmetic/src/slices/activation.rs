//! Functions of each element, and their gradients.

use pulp::Simd;

use super::math::{mul_add, normal, sigmoid};
use super::vectorized::vectorized;

/// A function of each element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `x * Φ(x)`, from the paper [Gaussian Error Linear Units](https://arxiv.org/abs/1606.08415).
    Gelu,
    /// The approximation of GELU with `tanh`.
    GeluApproximate,
    /// `x / (1 + e^-x)`
    Silu,
}

/// Calls a function of the type of an activation.
macro_rules! typed {
    ($activation:expr, $function:ident($($arg:expr),+)) => {
        match $activation {
            Activation::Gelu => $function::<Gelu>($($arg),+),
            Activation::GeluApproximate => $function::<GeluApproximate>($($arg),+),
            Activation::Silu => $function::<Silu>($($arg),+),
        }
    };
}

pub(super) use typed;

impl Activation {
    /// Writes the function of each number of `x` to `y`.
    pub fn value(self, x: &[f32], y: &mut [f32]) {
        typed!(self, value(x, y));
    }

    /// Replaces each number by the function of it.
    pub fn in_place(self, x: &mut [f32]) {
        typed!(self, in_place(x));
    }

    /// Writes the function of each number of `x` to `y`, and replaces `x` by its gradient, from
    /// that of `y`.
    pub fn value_and_backward(self, x: &mut [f32], y: &mut [f32], grad: &[f32]) {
        typed!(self, value_and_backward(x, y, grad));
    }

    /// Multiplies each gradient by the derivative at `x`.
    pub fn backward(self, x: &[f32], grad: &mut [f32]) {
        typed!(self, backward(x, grad));
    }
}

/// A function of a number, and its derivative there.
pub(super) trait Function {
    fn value_and_derivative<S: Simd>(x: f32) -> [f32; 2];
}

pub(super) struct Gelu;

impl Function for Gelu {
    #[inline(always)]
    fn value_and_derivative<S: Simd>(x: f32) -> [f32; 2] {
        let [distribution, density] = normal::<S>(x);
        // Far out `x` times the density, which is zero there, must be no NaN.
        [x * distribution, mul_add::<S>(x, density, distribution)]
    }
}

pub(super) struct GeluApproximate;

impl Function for GeluApproximate {
    /// `(1 + tanh(u)) / 2` is the sigmoid of `2u`, with `u = √(2/π) * (x + 0.044715 x³)`.
    #[inline(always)]
    fn value_and_derivative<S: Simd>(x: f32) -> [f32; 2] {
        /// `2 √(2/π)`
        const SLOPE: f32 = 1.595_769;
        const CUBE: f32 = 0.044_715;
        // Farther out the sigmoid is zero or one, and its derivative zero, which the cube must not
        // make a NaN of.
        let near = if x > 100.0 { 100.0 } else { x };
        let near = if near < -100.0 { -100.0 } else { near };
        let square = near * near;
        let [distribution, rest] = sigmoid::<S>(mul_add::<S>(square, CUBE, 1.0) * near * SLOPE);
        let slope = mul_add::<S>(square, 3.0 * CUBE, 1.0) * SLOPE;
        let of_distribution = distribution * rest * slope;
        [
            x * distribution,
            mul_add::<S>(near, of_distribution, distribution),
        ]
    }
}

pub(super) struct Silu;

impl Function for Silu {
    #[inline(always)]
    fn value_and_derivative<S: Simd>(x: f32) -> [f32; 2] {
        let [sigmoid, rest] = sigmoid::<S>(x);
        let derivative = mul_add::<S>(rest, x, 1.0) * sigmoid;
        [x * sigmoid, derivative]
    }
}

vectorized! {
    fn value<S, F: Function>(x: &[f32], y: &mut [f32]) {
        for (x, y) in x.iter().zip(y) {
            let [value, _] = F::value_and_derivative::<S>(*x);
            *y = value;
        }
    }

    fn in_place<S, F: Function>(x: &mut [f32]) {
        for x in x {
            let [value, _] = F::value_and_derivative::<S>(*x);
            *x = value;
        }
    }

    fn value_and_backward<S, F: Function>(x: &mut [f32], y: &mut [f32], grad: &[f32]) {
        for ((x, y), grad) in x.iter_mut().zip(y).zip(grad) {
            let [value, derivative] = F::value_and_derivative::<S>(*x);
            *y = value;
            *x = grad * derivative;
        }
    }

    fn backward<S, F: Function>(x: &[f32], grad: &mut [f32]) {
        for (x, grad) in x.iter().zip(grad) {
            let [_, derivative] = F::value_and_derivative::<S>(*x);
            *grad *= derivative;
        }
    }
}
