//! Weights of 16 bits, and the bits beside them that the optimizer keeps: master weights.
//!
//! A number in 32 bits is rounded to the nearest that its 16 bits have, so that a model computes
//! with that, and the lower bits say what was rounded away:
//!
//! - all sixteen of a number in bf16: Kalamkar et al., "Optimizing Deep Learning Recommender
//!   Systems' Training on CPU Cluster Architectures" (2020), "Split-SGD-BF16", who cut the bits in
//!   two where the upper half is rounded here;
//! - or eight, after FlashOptim (2026), <https://arxiv.org/abs/2602.23349>: with a correction `c`
//!   from -128 to 127 the number is `w + c / 128 * h`, where `h` is half a unit in the last place of
//!   `w`. FlashOptim divides by 127, and rounds `c` to the nearest; here the last of the 24 bits is
//!   rounded with [noise](super::Noise), so that a step that is smaller is right on average. A
//!   number is then the upper 24 bits of itself.

/// How a number is split.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Split {
    /// bf16 and sixteen bits: no bit is lost.
    Bf16In32,
    /// bf16 and eight bits.
    Bf16In24,
    /// f16 and eight bits.
    F16In24,
}

/// The bits of the smallest number that is normal in f16, 2^-14.
pub const NORMAL_IN_F16: u32 = 0x3880_0000;

/// The difference of the exponents of f32 and f16, in the bits of an f32.
pub const BIAS_OF_F16: u32 = 112 << 23;

/// The bits of the numbers that f16 does not have: from 2^16 on.
pub const BEYOND_F16: u32 = 0x4780_0000;

impl Split {
    /// Bits beside each number.
    pub const fn low_bits(self) -> u32 {
        match self {
            Self::Bf16In32 => 16,
            Self::Bf16In24 | Self::F16In24 => 8,
        }
    }

    /// Number of `i32` words for the lower bits of this many numbers.
    pub const fn words(self, numbers: usize) -> usize {
        numbers.div_ceil(self.in_word())
    }

    /// Numbers whose lower bits are in a word, from the lowest bits on.
    pub const fn in_word(self) -> usize {
        (32 / self.low_bits()) as usize
    }

    /// The bits of the infinite number.
    pub const fn infinite(self) -> u32 {
        match self {
            Self::Bf16In32 => 0x7f80_0000,
            Self::Bf16In24 => 0x007f_8000,
            Self::F16In24 => 0x007c_0000,
        }
    }

    /// The nearest number of the 16 bits, of two as near the larger one, and the lower bits. The
    /// last bit is rounded away from zero where the part that is cut off is above the noise.
    #[inline(always)]
    pub fn split(self, number: f32, noise: u32) -> (f32, u16) {
        let bits = self.narrow(number, noise);
        let middle = 1 << (self.low_bits() - 1);
        let mask = (1 << self.low_bits()) - 1;
        let nearest = self.widen((bits + middle) & !mask);
        (nearest.copysign(number), (bits & mask) as u16)
    }

    /// The number that was [`split`](Self::split), but for the bits that it has no place for; of
    /// NaN, a NaN.
    ///
    /// Zero is never rounded up: a weight that was set to zero since stays zero, where the bits alone
    /// would be those of NaN.
    #[inline(always)]
    pub fn join(self, nearest: f32, low: u16) -> f32 {
        let bits = self.narrow(nearest, 0);
        let was_rounded_up = u32::from(low) >> (self.low_bits() - 1);
        let is_kept = bits > self.infinite() || (bits == 0 && was_rounded_up == 1);
        let joined = (bits.wrapping_sub(was_rounded_up << self.low_bits())) | u32::from(low);
        self.widen(if is_kept { bits } else { joined })
            .copysign(nearest)
    }

    /// The bits of the magnitude: those of the half, and the lower ones after them.
    #[inline(always)]
    fn narrow(self, number: f32, noise: u32) -> u32 {
        let bits = number.abs().to_bits();
        let narrow = match self {
            Self::Bf16In32 => bits,
            Self::Bf16In24 => (bits + (noise >> 24)) >> 8,
            // In units of 2^-40 below the normal numbers, which all have one exponent.
            Self::F16In24 if bits < NORMAL_IN_F16 => {
                let units = (f32::from_bits(bits) * (1u64 << 40) as f32) as u32;
                (units + (noise >> 24)) >> 8
            }
            Self::F16In24 => (bits.min(BEYOND_F16) - BIAS_OF_F16 + (noise >> 27)) >> 5,
        };
        match number.is_nan() {
            // The payload would round to infinity.
            true => self.infinite() | self.infinite() >> 1,
            false => narrow.min(self.infinite()),
        }
    }

    #[inline(always)]
    fn widen(self, bits: u32) -> f32 {
        match self {
            Self::Bf16In32 => f32::from_bits(bits),
            Self::Bf16In24 => f32::from_bits(bits << 8),
            Self::F16In24 if bits >= self.infinite() => {
                f32::from_bits(0x7f80_0000 | (bits - self.infinite()) << 5)
            }
            Self::F16In24 if bits < 1 << 18 => bits as f32 / (1u64 << 32) as f32,
            Self::F16In24 => f32::from_bits((bits << 5) + BIAS_OF_F16),
        }
    }

    /// Splits numbers: rounds them in their place, and returns the words of their lower bits.
    /// `noise` is for each place.
    pub fn split_all(self, numbers: &mut [f32], noise: impl Fn(u32) -> u32) -> Vec<i32> {
        let mut words = vec![0; self.words(numbers.len())];
        for ((place, number), at) in (0u32..).zip(numbers).zip(0..) {
            let (nearest, low) = self.split(*number, noise(place));
            let shift = self.low_bits() * (at % self.in_word()) as u32;
            words[at / self.in_word()] |= (u32::from(low) << shift).cast_signed();
            *number = nearest;
        }
        words
    }

    /// Joins numbers that were split, in their place.
    pub fn join_all(self, numbers: &mut [f32], words: &[i32]) {
        let mask = (1 << self.low_bits()) - 1;
        for (at, number) in numbers.iter_mut().enumerate() {
            let shift = self.low_bits() * (at % self.in_word()) as u32;
            let low = words[at / self.in_word()].cast_unsigned() >> shift & mask;
            *number = self.join(*number, low as u16);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Split; 3] = [Split::Bf16In32, Split::Bf16In24, Split::F16In24];

    /// As `half` rounds to the 16 bits, to even where two are as near.
    fn reference(split: Split, number: f32) -> f32 {
        match split {
            Split::F16In24 => half::f16::from_f32(number).to_f32(),
            _ => half::bf16::from_f32(number).to_f32(),
        }
    }

    /// Every number of the 16 bits with corrections: what is joined is split the same again,
    /// and lies where the formula says.
    #[test]
    fn every_half_with_its_corrections() {
        for split in [Split::Bf16In24, Split::F16In24] {
            for bits in 0..=u16::MAX {
                let nearest = match split {
                    Split::F16In24 => half::f16::from_bits(bits).to_f32(),
                    _ => half::bf16::from_bits(bits).to_f32(),
                };
                if nearest.is_nan() {
                    let (nearest, low) = split.split(nearest, u32::MAX);
                    assert!(nearest.is_nan() && split.join(nearest, low).is_nan());
                    continue;
                }
                // Up to the next number of a larger magnitude: half of it is a unit of 128ths.
                let above = match split {
                    Split::F16In24 => half::f16::from_bits(bits + 1).to_f32(),
                    _ => half::bf16::from_bits(bits + 1).to_f32(),
                };
                // All corrections for the mantissas of one exponent and for small numbers.
                let is_one = matches!(bits, 0..0x400 | 0x3c00..0x4000);
                let few = |low: &u16| [0, 1, 100, 127, 128, 129, 200, 255].contains(low);
                for low in (0..=255u16).filter(|low| is_one || few(low)) {
                    let joined = split.join(nearest, low);
                    let correction = f64::from((low as u8).cast_signed());
                    let is_zero = nearest == 0.0 && correction < 0.0;
                    if is_zero {
                        assert_eq!(joined.to_bits(), nearest.to_bits());
                        continue;
                    }
                    // Infinity is itself, or a number that was rounded to it.
                    if nearest.is_infinite() && correction > 0.0 {
                        continue;
                    }
                    if above.is_finite() {
                        let half = (f64::from(above) - f64::from(nearest)) / 2.0;
                        let expected = f64::from(nearest) + correction / 128.0 * half;
                        // Below a power of two the units are half as large.
                        let is_power = correction < 0.0 && nearest.to_bits() << 9 == 0;
                        let off = (f64::from(joined) - expected).abs();
                        assert!(off == 0.0 || is_power, "{split:?} {nearest:e} {low}");
                        assert!(off <= half.abs() / 2.0);
                    }
                    // Whatever the noise, as there is nothing to be cut off.
                    for noise in [0, u32::MAX] {
                        assert_eq!(
                            split.split(joined, noise),
                            (nearest, low),
                            "{split:?} {joined:e}"
                        );
                    }
                }
            }
        }
    }

    /// Every upper half, with lower halves on both sides of the middle.
    #[test]
    fn the_nearest_is_kept_and_joined_is_what_was_split() {
        for split in ALL {
            for high in 0..=u16::MAX {
                for low in [0, 1, 0xff, 0x7fff, 0x8000, 0x8001, 0xffff] {
                    let number = f32::from_bits(u32::from(high) << 16 | low);
                    let (nearest, low) = split.split(number, 0);
                    let joined = split.join(nearest, low);
                    if number.is_nan() {
                        assert!(joined.is_nan() && nearest.is_nan());
                        continue;
                    }
                    if split == Split::Bf16In32 && number.is_finite() {
                        assert_eq!(joined.to_bits(), number.to_bits());
                    }
                    // Cut off towards zero: less than a unit of the 24 bits.
                    let (exact, to_nearest) = (f64::from(number), reference(split, number));
                    if to_nearest.is_finite() && nearest.is_finite() {
                        let unit = exact.abs() * 2f64.powi(-15);
                        let least = if split == Split::F16In24 {
                            2f64.powi(-32)
                        } else {
                            1e-42
                        };
                        let cut = exact.abs() - f64::from(joined).abs();
                        assert!(
                            (0.0..=unit.max(least)).contains(&cut),
                            "{split:?} {number:e}"
                        );
                        let [found, best] =
                            [nearest, to_nearest].map(|to| (f64::from(to) - exact).abs());
                        // Where the cut makes a tie, either is as near but for the cut.
                        assert!(
                            found <= best + 2.0 * cut,
                            "{split:?} {number:e}: {nearest:e}"
                        );
                    } else {
                        assert!(
                            nearest.is_infinite() || nearest.abs() >= 65504.0,
                            "{number:e}"
                        );
                    }
                }
            }
        }
    }

    /// Steps of a 16th of the last of the 24 bits, and of a hundredth of that.
    #[test]
    fn tiny_steps_move_a_weight_on_average() {
        use crate::optim::Noise;
        for split in [Split::Bf16In24, Split::F16In24] {
            for start in [1.0f32, 1.99, -1.3, 3e-3, 2e-5, -1e-6] {
                // A power of two, which 32 bits add exactly. f16 has no smaller unit than 2^-24, and
                // the last of 24 bits is 2^-32.
                let least = if split == Split::F16In24 { -36 } else { -149 };
                let step = 2f32.powi((start.abs().log2().floor() as i32 - 20).max(least));
                let steps = 4_000;
                let (mut sum, places) = (0.0, 20);
                for place in 0..places {
                    let (mut nearest, mut low) = split.split(start, 1 << 31);
                    let from = f64::from(split.join(nearest, low));
                    for time in 1..=steps {
                        let weight = split.join(nearest, low) + step;
                        let noise = Noise::of_step(1, time).at(place);
                        (nearest, low) = split.split(weight, noise);
                    }
                    sum += f64::from(split.join(nearest, low)) - from;
                }
                let expected = f64::from(step) * steps as f64;
                let moved = sum / f64::from(places);
                assert!(
                    (moved / expected - 1.0).abs() < 0.02,
                    "{split:?} {start}: {moved:e} of {expected:e}"
                );
            }
        }
    }

    #[test]
    fn words_hold_the_bits_of_all_numbers() {
        for split in ALL {
            for count in [0usize, 1, 3, 4, 5, 130] {
                let numbers: Vec<f32> =
                    (0..count).map(|place| (place as f32 + 0.1).sin()).collect();
                let mut halves = numbers.clone();
                let words = split.split_all(&mut halves, |_| 1 << 31);
                assert_eq!(words.len(), count.div_ceil(split.in_word()));
                split.join_all(&mut halves, &words);
                for (found, number) in halves.iter().zip(numbers) {
                    assert!(
                        (found - number).abs() <= number.abs() * 2f32.powi(-16),
                        "{split:?}"
                    );
                }
            }
        }
    }
}
