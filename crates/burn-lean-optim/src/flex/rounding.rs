//! Rounding to bf16 by chance.

use burn::tensor::bf16;

/// Rounds numbers; `first` is the place of the first of them in the tensor.
pub(super) fn stochastically(numbers: &[f32], rounded: &mut [bf16], key: u64, first: u64) {
    for ((place, number), rounded) in (first..).zip(numbers).zip(rounded) {
        *rounded = round_stochastically(*number, splitmix(key ^ splitmix(place)));
    }
}

/// Rounds away from zero with the probability of the part that bf16 has no bits for.
#[inline(always)]
fn round_stochastically(number: f32, random: u64) -> bf16 {
    if !number.is_finite() {
        return bf16::from_f32(number);
    }
    let noise = (random >> 48) as u32;
    // Beyond the largest number the bits are those of infinity, as with rounding to the nearest.
    bf16::from_bits((number.to_bits().saturating_add(noise) >> 16) as u16)
}

/// SplitMix64 (Steele et al., 2014): a counter in, a random number out.
#[inline(always)]
fn splitmix(counter: u64) -> u64 {
    let mut bits = counter.wrapping_add(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_by_chance_is_right_on_average_and_exact_where_bf16_is() {
        let number = 1.0 + 3.0 / 512.0;
        let count = 100_000;
        let mean = (0..count)
            .map(|place| f64::from(round_stochastically(number, splitmix(place)).to_f32()))
            .sum::<f64>()
            / count as f64;
        // Steps of 2^-7 with probability 3/4: a deviation of 3.4e-3 an element, 1.1e-5 of the mean.
        assert!((mean - f64::from(number)).abs() < 5e-5, "{mean}");
        for exact in [0.0, -1.5, 2.0f32.powi(100)] {
            assert_eq!(round_stochastically(exact, u64::MAX).to_f32(), exact);
        }
        assert!(round_stochastically(f32::NAN, u64::MAX).is_nan());
        assert!(round_stochastically(-f32::INFINITY, u64::MAX).is_infinite());
        assert!(round_stochastically(f32::MAX, u64::MAX).is_infinite());
    }
}
