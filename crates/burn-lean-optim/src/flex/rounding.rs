//! Rounding to bf16 by chance.

use burn::tensor::bf16;

use crate::bf16::Noise;

/// Rounds numbers; `first` is the place of the first of them in the tensor.
pub(super) fn stochastically(numbers: &[f32], rounded: &mut [bf16], noise: Noise, first: u32) {
    for ((place, number), rounded) in (0u32..).zip(numbers).zip(rounded) {
        *rounded = round_stochastically(*number, noise.at(first.wrapping_add(place)));
    }
}

/// Rounds away from zero with the probability of the part that bf16 has no bits for.
#[inline(always)]
fn round_stochastically(number: f32, random: u32) -> bf16 {
    if !number.is_finite() {
        return bf16::from_f32(number);
    }
    // Beyond the largest number the bits are those of infinity, as with rounding to the nearest.
    bf16::from_bits(((number.to_bits() + (random >> 16)) >> 16) as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_by_chance_is_right_on_average_and_exact_where_bf16_is() {
        let number = 1.0 + 3.0 / 512.0;
        let count = 100_000;
        // Over the places of a tensor, and over the steps at one place.
        let places = |place: u32| Noise::new(7).at(place);
        let steps = |time: u32| Noise::new(7 << 32 ^ u64::from(time)).at(3);
        for random in [&places as &dyn Fn(u32) -> u32, &steps] {
            let rounded = |counter| round_stochastically(number, random(counter)).to_f32();
            let mean = (0..count).map(rounded).map(f64::from).sum::<f64>() / f64::from(count);
            // Steps of 2^-7 with probability 3/4: a deviation of 3.4e-3 an element, 1.1e-5 of the mean.
            assert!((mean - f64::from(number)).abs() < 5e-5, "{mean}");
        }
        for exact in [0.0, -1.5, 2.0f32.powi(100)] {
            assert_eq!(round_stochastically(exact, u32::MAX).to_f32(), exact);
        }
        assert!(round_stochastically(f32::NAN, u32::MAX).is_nan());
        assert!(round_stochastically(-f32::INFINITY, u32::MAX).is_infinite());
        assert!(round_stochastically(f32::MAX, u32::MAX).is_infinite());
        assert!(round_stochastically(-f32::MAX, u32::MAX).is_infinite());
    }

    /// No place and no step looks like another.
    #[test]
    fn noise_of_neighbours_is_independent() {
        let bits = |noise: Noise, place: u32| noise.at(place) >> 16;
        let correlation = |pairs: &dyn Fn(u32) -> (u32, u32)| {
            let half = f64::from(u16::MAX) / 2.0;
            let product = |counter| {
                let (one, other) = pairs(counter);
                (f64::from(one) / half - 1.0) * (f64::from(other) / half - 1.0)
            };
            (0..100_000).map(product).sum::<f64>() / 100_000.0 * 3.0
        };
        let (first, second) = (Noise::new(7), Noise::new(8));
        // Of independent numbers a deviation of 3e-3.
        for of in [
            correlation(&|place| (bits(first, place), bits(first, place + 1))),
            correlation(&|place| (bits(first, place), bits(second, place))),
            correlation(&|place| (bits(first, place), bits(second, place + 1))),
        ] {
            assert!(of.abs() < 0.015, "{of}");
        }
    }
}
