//! The gradient of cross entropy.

use pulp::{Arch, Simd, WithSimd};

use super::math::exp;

/// Replaces log probabilities in rows of this width by probabilities times the factor of their row.
pub fn exp_rows(rows: &mut [f32], factors: &[f32], width: usize) {
    Arch::new().dispatch(ExpRows(rows, factors, width));
}

struct ExpRows<'a>(&'a mut [f32], &'a [f32], usize);

impl WithSimd for ExpRows<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self(rows, factors, width) = self;
        for (row, factor) in rows.chunks_exact_mut(width.max(1)).zip(factors) {
            for number in row {
                *number = exp::<S>(*number) * factor;
            }
        }
    }
}
