//! Eight numbers at once.

use std::arch::x86_64::{__m256, __m256i};

use pulp::x86::V3;
use pulp::{Simd, WithSimd, cast};

/// A table of 16 numbers is two registers, and a word is looked up in both.
pub(super) fn unpack_words(simd: V3, words: &[i32], values: &[f32; 16], into: &mut [f32]) {
    struct Unpack<'a> {
        simd: V3,
        words: &'a [i32],
        values: &'a [f32; 16],
        into: &'a mut [f32],
    }
    impl WithSimd for Unpack<'_> {
        type Output = ();

        #[inline(always)]
        fn with_simd<S: Simd>(self, _: S) {
            let V3 { avx, avx2, .. } = self.simd;
            let [low, high]: [__m256; 2] = cast(*self.values);
            // The first number of a byte is in its high half.
            let shifts: __m256i = cast([4_u32, 0, 12, 8, 20, 16, 28, 24]);
            let (numbers, _) = self.into.as_chunks_mut::<8>();
            for (word, numbers) in self.words.iter().zip(numbers) {
                let codes = avx2._mm256_srlv_epi32(avx._mm256_set1_epi32(*word), shifts);
                let [low, high] =
                    [low, high].map(|half| avx2._mm256_permutevar8x32_ps(half, codes));
                let is_high: __m256 = cast(avx2._mm256_slli_epi32::<28>(codes));
                *numbers = cast(avx._mm256_blendv_ps(low, high, is_high));
            }
        }
    }
    Simd::vectorize(
        simd,
        Unpack {
            simd,
            words,
            values,
            into,
        },
    );
}
