//! Noise for rounding: a Weyl sequence at each place of a tensor.
//!
//! The number of place `i` in step `t` is the fraction of `hash(i, t / 32) + t * 0.618..`. A number
//! is rounded up where the part that is cut off is above it: up with the probability of that part,
//! as with random numbers, so that the mean is right. But fractions of `t` times the golden ratio
//! are spread more evenly than random numbers are, and roundings of one place that follow each
//! other cancel: over 32 steps they are off by about one, where random numbers are off by three.
//!
//! A new hash every 32 steps keeps rounding from locking in with gradients of a period. In a step
//! out of 55, say, the sequence is nearly the same for a thousand steps.

/// The noise of one step, a number for each place of a tensor: the same on every device.
#[derive(Clone, Copy, Debug)]
pub struct Noise {
    /// The seed of the hash, and what is added to it.
    pub seeds: [u32; 2],
}

/// Steps with the same hash.
const STEPS: u64 = 32;

impl Noise {
    /// The noise of one step of a run.
    pub fn of_step(seed: u64, time: usize) -> Self {
        let time = time as u64;
        let run = mixed(mixed(seed as u32) ^ (seed >> 32) as u32);
        let hash = mixed(run ^ (time / STEPS) as u32);
        Self {
            seeds: [hash, (time as u32).wrapping_mul(GOLDEN_RATIO)],
        }
    }

    /// The noise of a block in 8 bits where nothing counts the steps: its scale changes with them.
    #[inline(always)]
    pub(super) fn of_scale(scale: f32) -> Self {
        Self {
            seeds: [scale.to_bits().wrapping_mul(GOLDEN_RATIO), 0],
        }
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
        // As many bits as an `f32` has. A cast from a signed number is one instruction.
        (self.at(place) >> 8).cast_signed() as f32 * (1.0 / FRACTIONS)
    }

    /// The number at a place.
    #[inline(always)]
    pub fn at(self, place: u32) -> u32 {
        let [hash, turn] = self.seeds;
        mixed(place ^ hash).wrapping_add(turn)
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

/// The fraction of the golden ratio in 32 bits.
pub(super) const GOLDEN_RATIO: u32 = 0x9e37_79b9;

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
    fn rounding_is_right_on_average_and_exact_where_bf16_is() {
        let number = 1.0 + 3.0 / 512.0;
        let count = 100_000;
        // Over the places of a tensor, and over the steps at one place.
        let places = |place: u32| Noise::of_step(7, 1).at(place);
        let steps = |time: u32| Noise::of_step(7, time as usize).at(3);
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

    /// The mean of the noise at a place over some steps, less a half.
    fn mean(seed: u64, place: u32, steps: impl ExactSizeIterator<Item = usize>) -> f64 {
        let count = steps.len() as f64;
        let fraction = |time| f64::from(Noise::of_step(seed, time).fraction(place));
        steps.map(fraction).sum::<f64>() / count - 0.5
    }

    /// Whatever the seed, no place is rounded in one direction in all steps.
    #[test]
    fn every_place_is_rounded_both_ways_over_time() {
        for seed in [0, 1, 7, 42, 255, u64::from(u32::MAX), u64::MAX, 3 << 32] {
            for place in (0..300).chain([seed as u32, (seed >> 32) as u32, u32::MAX]) {
                let mean = mean(seed, place, 1..1001);
                // Random numbers deviate by 0.009, and these by a third of it, over some 2,400
                // places.
                assert!(mean.abs() < 0.015, "seed {seed}, {place}: {mean}");
            }
        }
    }

    /// Of the steps of a period, 64 have nearly the mean of all, about as random numbers have it,
    /// whatever the period. Those of one hash alone are off by seven times as much with 55 and 89,
    /// whose multiples of the golden ratio are nearly whole.
    #[test]
    fn noise_does_not_lock_in_with_a_period() {
        const COUNT: usize = 64;
        let of_chance = (1.0 / 12.0 / COUNT as f64).sqrt();
        for period in (1..=100).chain([128, 144, 233, 256, 377]) {
            let squares = (0..400).map(|place| {
                let steps = (0..COUNT).map(|step| 1000 + step * period);
                mean(5, place, steps).powi(2)
            });
            let off = (squares.sum::<f64>() / 400.0).sqrt() / of_chance;
            // Four steps of one hash may lie close, those of the period 8: twice the deviation.
            assert!(off < 2.0, "period {period}: {off}");
            if period == 1 {
                assert!(off < 0.5, "{off}");
            }
        }
    }

    /// No place looks like another, and no seed.
    #[test]
    fn noise_of_neighbours_is_independent() {
        let correlation = |pairs: &dyn Fn(u32) -> (f32, f32)| {
            let product = |counter| {
                let (one, other) = pairs(counter);
                (2.0 * f64::from(one) - 1.0) * (2.0 * f64::from(other) - 1.0)
            };
            (0..100_000).map(product).sum::<f64>() / 100_000.0 * 3.0
        };
        let [first, other] = [7, 8].map(|seed| Noise::of_step(seed, 70));
        let later = Noise::of_step(7, 70 + STEPS as usize);
        let at = |noise: Noise, place| noise.fraction(place);
        // Independent numbers deviate by 3e-3.
        for of in [
            correlation(&|place| (at(first, place), at(first, place + 1))),
            correlation(&|place| (at(first, place), at(other, place))),
            correlation(&|place| (at(first, place), at(other, place + 1))),
            correlation(&|place| (at(first, place), at(later, place))),
        ] {
            assert!(of.abs() < 0.015, "{of}");
        }
    }
}
