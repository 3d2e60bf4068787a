//! Random numbers for rounding by chance.

/// The random numbers of one step, of which each place of a tensor has its own: the same on every
/// device.
#[derive(Clone, Copy, Debug)]
pub struct Noise {
    /// The seeds of the generator.
    pub seeds: [u32; 2],
}

impl Noise {
    /// The generator for a key.
    pub fn new(key: u64) -> Self {
        let low = mixed(key as u32);
        // Not the first step of `at`: where both are equal, zero would come out at every step.
        let high = mixed(mixed((key >> 32) as u32 ^ low) ^ GOLDEN_RATIO);
        Self { seeds: [low, high] }
    }

    /// The generator for one step of a run.
    pub fn of_step(seed: u64, time: usize) -> Self {
        Self::new(seed.rotate_left(32) ^ time as u64)
    }

    /// The bits of a number that is rounded to one of its two neighbours in bf16: away from zero
    /// with the probability of the part that bf16 has no bits for. Infinity and NaN stay as they
    /// are.
    #[inline(always)]
    pub fn round_to_bf16(self, number: f32, place: u32) -> u16 {
        round_to_bf16(number, self.at(place))
    }

    /// The number at a place, from zero on and below one.
    #[inline(always)]
    pub(super) fn fraction(self, place: u32) -> f32 {
        // As many bits as an `f32` has.
        (self.at(place) >> 8) as f32 / FRACTIONS
    }

    /// The number at a place.
    #[inline(always)]
    fn at(self, place: u32) -> u32 {
        let [low, high] = self.seeds;
        mixed(mixed(place ^ low) ^ high)
    }
}

/// A counter in, a random number out, in 32 bits, as devices without longer integers have them:
/// `lowbias32` of Wellons, "Prospecting for Hash Functions" (2018).
#[inline(always)]
fn mixed(mut bits: u32) -> u32 {
    bits = (bits ^ (bits >> 16)).wrapping_mul(MIXING[0]);
    bits = (bits ^ (bits >> 15)).wrapping_mul(MIXING[1]);
    bits ^ (bits >> 16)
}

/// The fraction of the golden ratio in 32 bits: a constant like no other in a hash.
const GOLDEN_RATIO: u32 = 0x9e37_79b9;

/// Number of fractions.
pub(super) const FRACTIONS: f32 = (1 << 24) as f32;

/// The factors that a counter is mixed with.
pub const MIXING: [u32; 2] = [0x7feb_352d, 0x846c_a68b];

#[inline(always)]
fn round_to_bf16(number: f32, random: u32) -> u16 {
    let bits = number.to_bits();
    let high = (bits >> 16) as u16;
    if number.is_nan() {
        // Its upper half alone may be that of infinity.
        return high | 0x0040;
    }
    if number.is_infinite() {
        return high;
    }
    // Beyond the largest number the bits are those of infinity, as with rounding to the nearest.
    ((bits + (random >> 16)) >> 16) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rounded(number: f32, random: u32) -> f32 {
        f32::from_bits(u32::from(round_to_bf16(number, random)) << 16)
    }

    #[test]
    fn rounding_by_chance_is_right_on_average_and_exact_where_bf16_is() {
        let number = 1.0 + 3.0 / 512.0;
        let count = 100_000;
        // Over the places of a tensor, and over the steps at one place.
        let places = |place: u32| Noise::new(7).at(place);
        let steps = |time: u32| Noise::new(7 << 32 ^ u64::from(time)).at(3);
        for random in [&places as &dyn Fn(u32) -> u32, &steps] {
            let rounded = |counter| rounded(number, random(counter));
            let mean = (0..count).map(rounded).map(f64::from).sum::<f64>() / f64::from(count);
            // Steps of 2^-7 with probability 3/4: a deviation of 3.4e-3 an element, 1.1e-5 of the
            // mean.
            assert!((mean - f64::from(number)).abs() < 5e-5, "{mean}");
        }
        for exact in [0.0, -1.5, 2.0f32.powi(100)] {
            assert_eq!(rounded(exact, u32::MAX), exact);
        }
        assert!(rounded(f32::NAN, u32::MAX).is_nan());
        assert!(rounded(-f32::INFINITY, u32::MAX).is_infinite());
        assert!(rounded(f32::MAX, u32::MAX).is_infinite());
        assert!(rounded(-f32::MAX, u32::MAX).is_infinite());
    }

    /// Whatever the seed, no place is rounded in one direction in all steps.
    #[test]
    fn every_place_is_rounded_both_ways_over_time() {
        let steps = 1000u32;
        for seed in [0, 1, 7, 42, 255, u64::from(u32::MAX), u64::MAX, 3 << 32] {
            for place in (0..300).chain([seed as u32, (seed >> 32) as u32, u32::MAX]) {
                let random = |time| Noise::of_step(seed, time as usize).at(place) >> 16;
                let mean = (1..=steps).map(random).map(f64::from).sum::<f64>() / f64::from(steps);
                // Independent numbers deviate by 0.009, over some 2,400 places.
                let mean = mean / f64::from(u16::MAX);
                assert!((mean - 0.5).abs() < 0.045, "seed {seed}, {place}: {mean}");
            }
        }
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
        // Independent numbers deviate by 3e-3.
        for of in [
            correlation(&|place| (bits(first, place), bits(first, place + 1))),
            correlation(&|place| (bits(first, place), bits(second, place))),
            correlation(&|place| (bits(first, place), bits(second, place + 1))),
        ] {
            assert!(of.abs() < 0.015, "{of}");
        }
    }
}
