//! Functions of each element, and their gradients.

use pulp::{Arch, Simd, WithSimd};

use super::math::{mul_add, normal, sigmoid};

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

impl Activation {
    /// Writes the function of each number of `x` to `y`.
    pub fn value(self, x: &[f32], y: &mut [f32]) {
        match self {
            Self::Gelu => Arch::new().dispatch(Value(Gelu, x, y)),
            Self::GeluApproximate => Arch::new().dispatch(Value(GeluApproximate, x, y)),
            Self::Silu => Arch::new().dispatch(Value(Silu, x, y)),
        }
    }

    /// Replaces each number by the function of it.
    pub fn in_place(self, x: &mut [f32]) {
        match self {
            Self::Gelu => Arch::new().dispatch(InPlace(Gelu, x)),
            Self::GeluApproximate => Arch::new().dispatch(InPlace(GeluApproximate, x)),
            Self::Silu => Arch::new().dispatch(InPlace(Silu, x)),
        }
    }

    /// Writes the function of each number of `x` to `y`, and replaces `x` by its gradient, from
    /// that of `y`.
    pub fn value_and_backward(self, x: &mut [f32], y: &mut [f32], grad: &[f32]) {
        match self {
            Self::Gelu => Arch::new().dispatch(Both(Gelu, x, y, grad)),
            Self::GeluApproximate => Arch::new().dispatch(Both(GeluApproximate, x, y, grad)),
            Self::Silu => Arch::new().dispatch(Both(Silu, x, y, grad)),
        }
    }

    /// Multiplies each gradient by the derivative at `x`.
    pub fn backward(self, x: &[f32], grad: &mut [f32]) {
        match self {
            Self::Gelu => Arch::new().dispatch(Backward(Gelu, x, grad)),
            Self::GeluApproximate => Arch::new().dispatch(Backward(GeluApproximate, x, grad)),
            Self::Silu => Arch::new().dispatch(Backward(Silu, x, grad)),
        }
    }
}

/// A function of a number, and its derivative there.
pub(super) trait Function: Copy {
    fn value_and_derivative<S: Simd>(self, x: f32) -> [f32; 2];
}

#[derive(Clone, Copy)]
pub(super) struct Gelu;

impl Function for Gelu {
    #[inline(always)]
    fn value_and_derivative<S: Simd>(self, x: f32) -> [f32; 2] {
        let [distribution, density] = normal::<S>(x);
        // Far out `x` times the density, which is zero there, must be no NaN.
        [x * distribution, mul_add::<S>(x, density, distribution)]
    }
}

#[derive(Clone, Copy)]
pub(super) struct GeluApproximate;

impl Function for GeluApproximate {
    /// `(1 + tanh(u)) / 2` is the sigmoid of `2u`, with `u = √(2/π) * (x + 0.044715 x³)`.
    #[inline(always)]
    fn value_and_derivative<S: Simd>(self, x: f32) -> [f32; 2] {
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

#[derive(Clone, Copy)]
pub(super) struct Silu;

impl Function for Silu {
    #[inline(always)]
    fn value_and_derivative<S: Simd>(self, x: f32) -> [f32; 2] {
        let [sigmoid, rest] = sigmoid::<S>(x);
        let derivative = mul_add::<S>(rest, x, 1.0) * sigmoid;
        [x * sigmoid, derivative]
    }
}

struct Value<'a, F>(F, &'a [f32], &'a mut [f32]);

impl<F: Function> WithSimd for Value<'_, F> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self(function, x, y) = self;
        for (x, y) in x.iter().zip(y) {
            let [value, _] = function.value_and_derivative::<S>(*x);
            *y = value;
        }
    }
}

struct InPlace<'a, F>(F, &'a mut [f32]);

impl<F: Function> WithSimd for InPlace<'_, F> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self(function, x) = self;
        for x in x {
            let [value, _] = function.value_and_derivative::<S>(*x);
            *x = value;
        }
    }
}

struct Both<'a, F>(F, &'a mut [f32], &'a mut [f32], &'a [f32]);

impl<F: Function> WithSimd for Both<'_, F> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self(function, x, y, grad) = self;
        for ((x, y), grad) in x.iter_mut().zip(y).zip(grad) {
            let [value, derivative] = function.value_and_derivative::<S>(*x);
            *y = value;
            *x = grad * derivative;
        }
    }
}

struct Backward<'a, F>(F, &'a [f32], &'a mut [f32]);

impl<F: Function> WithSimd for Backward<'_, F> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self(function, x, grad) = self;
        for (x, grad) in x.iter().zip(grad) {
            let [_, derivative] = function.value_and_derivative::<S>(*x);
            *grad *= derivative;
        }
    }
}
