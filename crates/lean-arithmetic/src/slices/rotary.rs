//! Rotations of pairs of numbers.

use pulp::{Arch, Simd, WithSimd};

/// Rotates the pairs of `[time, heads, width]`. The angles are those of the position, as the cosine
/// and the sine at each number of a pair, `[time, width, 2]`, times a direction, 1 or -1.
pub fn rotate(x: &mut [f32], angles: &[f32], [heads, width]: [usize; 2], direction: f32) {
    Arch::new().dispatch(Rotate(x, angles, [heads, width], direction));
}

struct Rotate<'a>(&'a mut [f32], &'a [f32], [usize; 2], f32);

impl WithSimd for Rotate<'_> {
    type Output = ();

    /// Each product is rounded: so are those of Burn's rotary encoding.
    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self(x, angles, [heads, width], direction) = self;
        let positions = x.chunks_exact_mut((heads * width).max(1));
        for (x, angles) in positions.zip(angles.chunks_exact((2 * width).max(1))) {
            let (angles, _) = angles.as_chunks::<4>();
            for x in x.chunks_exact_mut(width.max(1)) {
                let (pairs, _) = x.as_chunks_mut::<2>();
                for ([one, other], [cos, sin, ..]) in pairs.iter_mut().zip(angles) {
                    let sin = sin * direction;
                    (*one, *other) = (*one * cos - *other * sin, *other * cos + *one * sin);
                }
            }
        }
    }
}
