//! Rotations of pairs of numbers.

use super::vectorized::vectorized;

vectorized! {
    /// Rotates the pairs of `[time, heads, width]`. The angles are those of the position, as the
    /// cosine and the sine at each number of a pair, `[time, width, 2]`, times a direction, 1 or -1.
    pub fn rotate<S>(x: &mut [f32], angles: &[f32], dims: [usize; 2], direction: f32) {
        let [heads, width] = dims;
        let positions = x.chunks_exact_mut((heads * width).max(1));
        for (x, angles) in positions.zip(angles.chunks_exact((2 * width).max(1))) {
            let (angles, _) = angles.as_chunks::<4>();
            for x in x.chunks_exact_mut(width.max(1)) {
                let (pairs, _) = x.as_chunks_mut::<2>();
                for ([one, other], [cos, sin, ..]) in pairs.iter_mut().zip(angles) {
                    let sin = sin * direction;
                    // Each product is rounded: so are those of Burn's rotary encoding.
                    (*one, *other) = (*one * cos - *other * sin, *other * cos + *one * sin);
                }
            }
        }
    }
}
