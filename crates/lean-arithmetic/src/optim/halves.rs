//! Numbers in 32 bits as two halves: the nearest number in bf16, and the lower sixteen bits.
//!
//! Kalamkar et al., "Optimizing Deep Learning Recommender Systems' Training on CPU Cluster
//! Architectures" (2020), cut the bits in two: "Split-SGD-BF16". Here the upper half is rounded
//! instead, so that the model computes with the nearest number; the lower half says which way.

/// The bits of the nearest number in bf16, of two as near the larger one, and the lower half of the
/// number's own. [`join`] has the number again, bit for bit; of NaN, a NaN.
#[inline(always)]
pub fn split(number: f32) -> (u16, u16) {
    let bits = match number.is_nan() {
        // The payload would round to infinity, or to another sign.
        true => number.to_bits() & 0xffff_0000 | 0x0040_0000,
        false => number.to_bits(),
    };
    let nearest = bits.wrapping_add(0x8000) >> 16;
    (nearest as u16, bits as u16)
}

/// The number that was [`split`].
///
/// Zero is never an upper half that was rounded up: a weight that was set to zero since stays zero,
/// where the bits alone would be those of NaN.
#[inline(always)]
pub fn join(nearest: u16, low: u16) -> f32 {
    let was_rounded_up = low >> 15;
    let is_zero = nearest << 1 == 0;
    match is_zero && was_rounded_up == 1 {
        true => f32::from_bits(u32::from(nearest) << 16),
        false => {
            let high = nearest.wrapping_sub(was_rounded_up);
            f32::from_bits(u32::from(high) << 16 | u32::from(low))
        }
    }
}

/// Number of 32-bit words for the lower halves of this many numbers.
pub fn half_words(numbers: usize) -> usize {
    numbers.div_ceil(2)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn widened(nearest: u16) -> f32 {
        f32::from_bits(u32::from(nearest) << 16)
    }

    /// Every upper half, with lower halves on both sides of the middle.
    #[test]
    fn joined_is_what_was_split() {
        for high in 0..=u16::MAX {
            for low in [0, 1, 0x7fff, 0x8000, 0x8001, 0xffff] {
                let number = f32::from_bits(u32::from(high) << 16 | low);
                let (nearest, low) = split(number);
                let joined = join(nearest, low);
                if number.is_nan() {
                    assert!(joined.is_nan() && widened(nearest).is_nan());
                    continue;
                }
                assert_eq!(joined.to_bits(), number.to_bits());
                let reference = half::bf16::from_f32(number);
                if low != 0x8000 {
                    assert_eq!(nearest, reference.to_bits(), "{number:e}");
                } else {
                    let away = widened(nearest).abs() > number.abs();
                    assert!(away && nearest - reference.to_bits() <= 1, "{number:e}");
                }
            }
        }
    }

    #[test]
    fn a_weight_made_zero_stays_so() {
        for low in [0x8000, 0xffff] {
            assert_eq!(join(0, low).to_bits(), 0);
            assert_eq!(join(0x8000, low).to_bits(), 0x8000_0000);
        }
        // Below half of the smallest number of bf16: split again, it is zero.
        assert_eq!(split(join(0, 0x7fff)).0, 0);
    }
}
