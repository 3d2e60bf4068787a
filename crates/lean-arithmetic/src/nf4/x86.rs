//! Eight numbers at once.

use std::arch::x86_64::{__m256, __m256i};

use pulp::x86::V3;
use pulp::{Simd, WithSimd, cast};

/// A table of 16 quantiles is two registers, and a word of eight codes is looked up in both. A block has `WORDS`
/// words and a scale.
pub(super) fn unpack_blocks<const WORDS: usize>(
    simd: V3,
    quantiles: [f32; 16],
    words: &[[i32; WORDS]],
    scales: &[f32],
    into: &mut [[[f32; 8]; WORDS]],
) {
    struct Unpack<'a, const WORDS: usize> {
        simd: V3,
        quantiles: [f32; 16],
        words: &'a [[i32; WORDS]],
        scales: &'a [f32],
        into: &'a mut [[[f32; 8]; WORDS]],
    }
    impl<const WORDS: usize> WithSimd for Unpack<'_, WORDS> {
        type Output = ();

        #[inline(always)]
        fn with_simd<S: Simd>(self, _: S) {
            let V3 { avx, avx2, .. } = self.simd;
            let quantiles: [__m256; 2] = cast(self.quantiles);
            // The first number of a byte is in its high half.
            let shifts: __m256i = cast([4_u32, 0, 12, 8, 20, 16, 28, 24]);
            let blocks = self.words.iter().zip(self.into);
            for (scale, (words, block)) in self.scales.iter().zip(blocks) {
                let scale = avx._mm256_set1_ps(*scale);
                let [low, high] = quantiles.map(|half| avx._mm256_mul_ps(half, scale));
                for (word, numbers) in words.iter().zip(block) {
                    let codes = avx2._mm256_srlv_epi32(avx._mm256_set1_epi32(*word), shifts);
                    let [low, high] =
                        [low, high].map(|half| avx2._mm256_permutevar8x32_ps(half, codes));
                    let is_high: __m256 = cast(avx2._mm256_slli_epi32::<28>(codes));
                    *numbers = cast(avx._mm256_blendv_ps(low, high, is_high));
                }
            }
        }
    }
    Simd::vectorize(
        simd,
        Unpack {
            simd,
            quantiles,
            words,
            scales,
            into,
        },
    );
}
