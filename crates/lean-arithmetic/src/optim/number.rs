//! The numbers that the rules of optimizers compute with.

use std::ops::{Add, Div, Mul, Sub};

/// A number of a [`Rule`](super::Rule): an `f32`, all elements of a tensor at once, or a number of
/// a kernel that is being made.
///
/// The operations of an `f32` round as those of Burn's tensors of `f32` do. Scalars are `f64`, as
/// Burn's are before an operation rounds them.
pub trait Number:
    Clone + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self> + Div<Output = Self>
{
    /// Adds a scalar.
    fn add_scalar(self, scalar: f64) -> Self;

    /// Multiplies by a scalar.
    fn mul_scalar(self, scalar: f64) -> Self;

    /// Divides by a scalar.
    fn div_scalar(self, scalar: f64) -> Self;

    /// The square root.
    fn sqrt(self) -> Self;

    /// The square.
    fn square(self) -> Self;

    /// One, minus one or zero: the sign. Zero for NaN, as with PyTorch.
    fn sign(self) -> Self;

    /// The larger one; the first if one is NaN.
    fn max_pair(self, other: Self) -> Self;

    /// The number, at least `min`.
    fn clamp_min(self, min: f64) -> Self;

    /// The number, at least `-threshold` and at most `threshold`; NaN stays NaN.
    fn clip_by_value(self, threshold: f64) -> Self;

    /// Zeros of the same shape.
    fn zeros_like(&self) -> Self;

    /// Zero where one of two numbers is negative and the other is not.
    fn zero_where_signs_differ(self, one: Self, other: Self) -> Self;
}

impl Number for f32 {
    #[inline(always)]
    fn add_scalar(self, scalar: f64) -> Self {
        self + scalar as Self
    }

    #[inline(always)]
    fn mul_scalar(self, scalar: f64) -> Self {
        self * scalar as Self
    }

    #[inline(always)]
    fn div_scalar(self, scalar: f64) -> Self {
        self / scalar as Self
    }

    #[inline(always)]
    fn sqrt(self) -> Self {
        Self::sqrt(self)
    }

    #[inline(always)]
    fn square(self) -> Self {
        self * self
    }

    #[inline(always)]
    fn sign(self) -> Self {
        if self > 0.0 {
            1.0
        } else if self < 0.0 {
            -1.0
        } else {
            0.0
        }
    }

    #[inline(always)]
    fn max_pair(self, other: Self) -> Self {
        if self < other { other } else { self }
    }

    #[inline(always)]
    fn clamp_min(self, min: f64) -> Self {
        self.max(min as Self)
    }

    #[inline(always)]
    fn clip_by_value(self, threshold: f64) -> Self {
        let threshold = threshold as Self;
        if self > threshold {
            threshold
        } else if self < -threshold {
            -threshold
        } else {
            self
        }
    }

    #[inline(always)]
    fn zeros_like(&self) -> Self {
        0.0
    }

    #[inline(always)]
    fn zero_where_signs_differ(self, one: Self, other: Self) -> Self {
        if (one >= 0.0) == (other >= 0.0) {
            self
        } else {
            0.0
        }
    }
}

/// Clipping of a gradient.
#[derive(Clone, Copy, Debug)]
pub enum Clip {
    /// No clipping.
    None,
    /// Clips each element to at most this magnitude.
    Value(f32),
}

impl Clip {
    /// The gradient after clipping.
    #[inline(always)]
    pub fn clip<T: Number>(self, grad: T) -> T {
        match self {
            Self::None => grad,
            Self::Value(threshold) => grad.clip_by_value(threshold.into()),
        }
    }
}
