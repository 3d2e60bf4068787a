//! A rule over slices, with the widest instructions the processor has.

use std::ops::{Add, Div, Mul, Sub};

use pulp::Simd;

use super::super::{Clip, Measure, Number, Rule};

/// Steps the elements of slices of the same length.
#[inline(always)]
pub(super) fn step<S: Simd, R: Rule<N>, const N: usize>(
    simd: S,
    rule: R,
    clip: Clip,
    fresh: bool,
    weight: &mut [f32],
    grad: &[f32],
    states: [&mut [f32]; N],
) {
    let (weights, weight_rest) = S::as_mut_simd_f32s(weight);
    let (grads, grad_rest) = S::as_simd_f32s(grad);
    let states = states.map(S::as_mut_simd_f32s);
    let (mut states, mut states_rest) = unzip(states);
    // Loops, since a closure of `array::map` may be compiled on its own, without the wide
    // instructions.
    let value = simd.splat_f32s(0.0);
    let mut old = [Vector { simd, value }; N];
    for (place, (weight, grad)) in weights.iter_mut().zip(grads).enumerate() {
        for (old, state) in old.iter_mut().zip(&states) {
            old.value = state[place];
        }
        let grad = clip.clip(Vector { simd, value: *grad });
        let value = *weight;
        let (new_weight, new) = rule.step(Vector { simd, value }, grad, (!fresh).then_some(old));
        *weight = new_weight.value;
        for (state, new) in states.iter_mut().zip(new) {
            state[place] = new.value;
        }
    }
    for (place, (weight, grad)) in weight_rest.iter_mut().zip(grad_rest).enumerate() {
        let old = states_rest.each_ref().map(|state| state[place]);
        let (new_weight, new) = rule.step(*weight, clip.clip(*grad), (!fresh).then_some(old));
        *weight = new_weight;
        for (state, new) in states_rest.iter_mut().zip(new) {
            state[place] = new;
        }
    }
}

/// Writes the measure of each element of slices of the same length.
#[inline(always)]
pub(super) fn measure<S: Simd, M: Measure<N>, const N: usize>(
    simd: S,
    measure: M,
    clip: Clip,
    fresh: bool,
    grad: &[f32],
    states: [&[f32]; N],
    measured: &mut [f32],
) {
    let (all_measured, measured_rest) = S::as_mut_simd_f32s(measured);
    let (grads, grad_rest) = S::as_simd_f32s(grad);
    let (states, states_rest) = unzip(states.map(S::as_simd_f32s));
    let value = simd.splat_f32s(0.0);
    let mut old = [Vector { simd, value }; N];
    for (place, (measured, grad)) in all_measured.iter_mut().zip(grads).enumerate() {
        for (old, state) in old.iter_mut().zip(&states) {
            old.value = state[place];
        }
        let grad = clip.clip(Vector { simd, value: *grad });
        *measured = measure.measure(grad, (!fresh).then_some(old)).value;
    }
    for (place, (measured, grad)) in measured_rest.iter_mut().zip(grad_rest).enumerate() {
        let old = states_rest.each_ref().map(|state| state[place]);
        *measured = measure.measure(clip.clip(*grad), (!fresh).then_some(old));
    }
}

#[inline(always)]
fn unzip<A, B, const N: usize>(pairs: [(A, B); N]) -> ([A; N], [B; N]) {
    let mut pairs = pairs.map(|(one, other)| (Some(one), Some(other)));
    let ones = pairs
        .each_mut()
        .map(|pair| pair.0.take().expect("taken once"));
    let others = pairs.map(|pair| pair.1.expect("never taken"));
    (ones, others)
}

/// A register of numbers.
#[derive(Clone, Copy)]
struct Vector<S: Simd> {
    simd: S,
    value: S::f32s,
}

impl<S: Simd> Vector<S> {
    #[inline(always)]
    fn with(self, value: S::f32s) -> Self {
        Self { value, ..self }
    }

    #[inline(always)]
    fn splat(self, scalar: f64) -> S::f32s {
        self.simd.splat_f32s(scalar as f32)
    }
}

macro_rules! operators {
    ($($trait:ident::$function:ident = $operation:ident,)*) => {$(
        impl<S: Simd> $trait for Vector<S> {
            type Output = Self;

            #[inline(always)]
            fn $function(self, other: Self) -> Self {
                self.with(self.simd.$operation(self.value, other.value))
            }
        }
    )*};
}

operators! {
    Add::add = add_f32s,
    Sub::sub = sub_f32s,
    Mul::mul = mul_f32s,
    Div::div = div_f32s,
}

impl<S: Simd> Number for Vector<S> {
    #[inline(always)]
    fn add_scalar(self, scalar: f64) -> Self {
        self.with(self.simd.add_f32s(self.value, self.splat(scalar)))
    }

    #[inline(always)]
    fn mul_scalar(self, scalar: f64) -> Self {
        self.with(self.simd.mul_f32s(self.value, self.splat(scalar)))
    }

    #[inline(always)]
    fn div_scalar(self, scalar: f64) -> Self {
        self.with(self.simd.div_f32s(self.value, self.splat(scalar)))
    }

    #[inline(always)]
    fn sqrt(self) -> Self {
        self.with(self.simd.sqrt_f32s(self.value))
    }

    #[inline(always)]
    fn square(self) -> Self {
        self.with(self.simd.mul_f32s(self.value, self.value))
    }

    #[inline(always)]
    fn sign(self) -> Self {
        let Self { simd, value } = self;
        let zero = simd.splat_f32s(0.0);
        let positive = simd.less_than_f32s(zero, value);
        let negative = simd.less_than_f32s(value, zero);
        let sign = simd.select_f32s(negative, simd.splat_f32s(-1.0), zero);
        self.with(simd.select_f32s(positive, simd.splat_f32s(1.0), sign))
    }

    #[inline(always)]
    fn max_pair(self, other: Self) -> Self {
        let less = self.simd.less_than_f32s(self.value, other.value);
        self.with(self.simd.select_f32s(less, other.value, self.value))
    }

    #[inline(always)]
    fn clamp_min(self, min: f64) -> Self {
        let min = self.splat(min);
        let above = self.simd.less_than_f32s(min, self.value);
        self.with(self.simd.select_f32s(above, self.value, min))
    }

    #[inline(always)]
    fn clip_by_value(self, threshold: f64) -> Self {
        let (most, least) = (self.splat(threshold), self.splat(-threshold));
        let above = self.simd.less_than_f32s(most, self.value);
        let below = self.simd.less_than_f32s(self.value, least);
        let clipped = self.simd.select_f32s(above, most, self.value);
        self.with(self.simd.select_f32s(below, least, clipped))
    }

    #[inline(always)]
    fn zeros_like(&self) -> Self {
        self.with(self.simd.splat_f32s(0.0))
    }

    #[inline(always)]
    fn zero_where_signs_differ(self, one: Self, other: Self) -> Self {
        let Self { simd, value } = self;
        let zero = simd.splat_f32s(0.0);
        let kept = |sign: Self, then, otherwise| {
            let positive = simd.less_than_or_equal_f32s(zero, sign.value);
            simd.select_f32s(positive, then, otherwise)
        };
        self.with(kept(
            one,
            kept(other, value, zero),
            kept(other, zero, value),
        ))
    }
}
