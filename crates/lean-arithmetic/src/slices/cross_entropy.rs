//! The gradient of cross entropy.

use super::math::exp;
use super::vectorized::vectorized;

vectorized! {
    /// Replaces log probabilities in rows of this width by probabilities times the factor of their
    /// row.
    pub fn exp_rows<S>(rows: &mut [f32], factors: &[f32], width: usize) {
        for (row, factor) in rows.chunks_exact_mut(width.max(1)).zip(factors) {
            for number in row {
                *number = exp::<S>(*number) * factor;
            }
        }
    }
}
