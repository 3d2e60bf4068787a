//! Numbers in 8 bits as powers of their codes: a root before rounding, in place of a table.
//!
//! A block of 128 numbers has a scale `r` in 32 bits: the root of its largest magnitude, of the
//! power that the [`Kind`] of its numbers has. With a code `q` of 8 bits,
//!
//! - a signed number is `sign(q) * (q / 127 * r)^2`, with `q` from -127 to 127;
//! - a positive number is `(q / 255 * r)^4`, with `q` from 0 to 255.
//!
//! Codes lie closer together near zero: 127 codes cover four decades with a sign, 255 nearly ten
//! without. FlashOptim (2026), <https://arxiv.org/abs/2602.23349>, takes a softsign and a root.
//!
//! The largest of the positive codes lie 1.6 % apart, and a second moment with a `beta_2` of 0.999
//! changes by 0.1 % in a step: rounded to the nearest code it would never move. A first moment
//! without a gradient would keep every code below ten, and with a second moment that goes on
//! decaying, its weight would walk away. So numbers are rounded with [`Noise`], and are right on
//! average. The scale has 32 bits for the same reason: in a grid that shrinks with its numbers,
//! numbers without a gradient keep their codes.
//!
//! A positive number never has the code zero. If a second moment became zero and the first one did
//! not, the step would be the first moment divided by epsilon.
//!
//! A number that is not finite has no code. It is kept as zero and does not count for the scale,
//! so that the other numbers of its block are kept; the pass puts it into the weight, where it
//! shows.

use super::{Kind, Noise};

/// Numbers in a block, which share a scale.
pub const BLOCK: usize = 128;

/// Codes in an `i32`.
const CODES: usize = 4;

/// `i32` words of a block: its codes, from the lowest byte on, and the bits of its scale.
pub const WORDS: usize = BLOCK / CODES + 1;

/// Bytes of a block.
pub(super) const BYTES: usize = CODES * WORDS;

/// Number of `i32` words for a number of numbers.
pub const fn words(numbers: usize) -> usize {
    numbers.div_ceil(BLOCK) * WORDS
}

/// The smallest scale: one over it is finite, and the root of any number is above it.
pub const LEAST_SCALE: f32 = 1e-30;

/// The noise of a block whose first place this is.
#[inline(always)]
pub(super) fn noise_of_block(noise: Noise, first: u32) -> [f32; BLOCK] {
    let mut fractions = [0.0; BLOCK];
    for (place, fraction) in (0u32..).zip(&mut fractions) {
        *fraction = noise.fraction(first.wrapping_add(place));
    }
    fractions
}

/// What a block is written with.
#[derive(Clone, Copy)]
pub(super) struct Scale {
    scale: f32,
    code_of_root: f32,
    root_of_code: f32,
    /// Whether all numbers of the block are finite.
    pub(super) are_finite: bool,
}

impl Kind {
    /// The largest code.
    pub const fn most(self) -> f32 {
        match self {
            Self::Signed => 127.0,
            Self::Positive => 255.0,
        }
    }

    /// The largest scale whose power is finite, however it is rounded.
    pub const fn largest_scale(self) -> f32 {
        match self {
            Self::Signed => 1.844_674e19,
            Self::Positive => 4.294_966e9,
        }
    }

    #[inline(always)]
    fn power(self, root: f32) -> f32 {
        let square = root * root;
        match self {
            Self::Signed => square,
            Self::Positive => square * square,
        }
    }

    #[inline(always)]
    fn root(self, magnitude: f32) -> f32 {
        match self {
            Self::Signed => magnitude.sqrt(),
            Self::Positive => magnitude.sqrt().sqrt(),
        }
    }

    /// The scale of a block. A processor takes a while for it, and computes that of another block
    /// meanwhile.
    #[inline(always)]
    pub(super) fn scale(self, numbers: &[f32; BLOCK]) -> Scale {
        let mut most = largest(numbers);
        let are_finite = most < INFINITY;
        if !are_finite {
            most = largest(&finite(numbers));
        }
        let scale = self.root(f32::from_bits(most));
        let scale = scale.clamp(LEAST_SCALE, self.largest_scale());
        Scale {
            scale,
            code_of_root: self.most() / scale,
            root_of_code: scale / self.most(),
            are_finite,
        }
    }

    /// Writes a block of this scale. A number becomes one of the two powers beside it, the nearer one
    /// with the larger probability. `fractions` is the noise, if it is not that of the scale, and
    /// `first` the place of the first number among those of its tensor.
    #[inline(always)]
    pub(super) fn write(
        self,
        numbers: &[f32; BLOCK],
        scale: Scale,
        block: &mut [u8; BYTES],
        fractions: Option<&[f32; BLOCK]>,
        first: u32,
    ) {
        // Loops by place and without branches, which are vectorized; a closure may be compiled on
        // its own, without the wide instructions.
        let replaced;
        let finite = match scale.are_finite {
            true => numbers,
            false => {
                replaced = finite(numbers);
                &replaced
            }
        };
        let (codes, bytes) = block.split_at_mut(BLOCK);
        bytes.copy_from_slice(&scale.scale.to_le_bytes());
        let of_scale;
        let fractions = match fractions {
            Some(fractions) => fractions,
            None => {
                of_scale = noise_of_block(Noise::of_scale(scale.scale), first);
                &of_scale
            }
        };
        let mut rounded = [0.0; BLOCK];
        match self {
            Self::Signed => Self::Signed.round(finite, scale, fractions, &mut rounded),
            Self::Positive => Self::Positive.round(finite, scale, fractions, &mut rounded),
        }
        for place in 0..BLOCK {
            codes[place] = whole(rounded[place]);
        }
    }

    /// One of the two codes whose powers are beside each number.
    #[inline(always)]
    fn round(
        self,
        numbers: &[f32; BLOCK],
        scale: Scale,
        fractions: &[f32; BLOCK],
        codes: &mut [f32; BLOCK],
    ) {
        let Scale {
            code_of_root,
            root_of_code,
            ..
        } = scale;
        for place in 0..BLOCK {
            let magnitude = numbers[place].abs();
            let below = (self.root(magnitude) * code_of_root).floor();
            let least = self.power(below * root_of_code);
            let gap = self.power((below + 1.0) * root_of_code) - least;
            let is_up = magnitude - least > fractions[place] * gap;
            let code = below + if is_up { 1.0 } else { 0.0 };
            codes[place] = self.code(code, numbers[place]);
        }
    }

    /// The code of a number, from that of its magnitude.
    #[inline(always)]
    fn code(self, magnitude: f32, number: f32) -> f32 {
        let code = at_most(magnitude, self.most());
        match self {
            Self::Signed => code.copysign(number),
            Self::Positive => {
                let least = if number > 0.0 { 1.0 } else { 0.0 };
                if code < least { least } else { code }
            }
        }
    }

    #[inline(always)]
    pub(super) fn read(self, block: &[u8; BYTES], numbers: &mut [f32; BLOCK]) {
        let (codes, scale) = block.split_at(BLOCK);
        let scale = f32::from_le_bytes(scale.try_into().expect("four bytes"));
        let root_of_code = scale / self.most();
        match self {
            Self::Signed => {
                for place in 0..BLOCK {
                    let root = f32::from(codes[place].cast_signed()) * root_of_code;
                    numbers[place] = root * root.abs();
                }
            }
            Self::Positive => {
                for place in 0..BLOCK {
                    numbers[place] = Self::Positive.power(f32::from(codes[place]) * root_of_code);
                }
            }
        }
    }

    /// The words of numbers, rounded as in a pass; the last block is filled up with zeros.
    pub fn encode(self, numbers: &[f32], noise: Option<Noise>) -> Vec<i32> {
        let firsts = (0u32..).step_by(BLOCK);
        let blocks = numbers.chunks(BLOCK).zip(firsts).map(|(numbers, first)| {
            let (mut block, mut bytes) = ([0.0; BLOCK], [0; BYTES]);
            block[..numbers.len()].copy_from_slice(numbers);
            let fractions = noise.map(|noise| noise_of_block(noise, first));
            self.write(
                &block,
                self.scale(&block),
                &mut bytes,
                fractions.as_ref(),
                first,
            );
            bytes
        });
        blocks.flat_map(words_of).collect()
    }

    /// The numbers of words.
    pub fn decode(self, words: &[i32], numbers: usize) -> Vec<f32> {
        let blocks = words.chunks_exact(WORDS).flat_map(|block| {
            let mut floats = [0.0; BLOCK];
            self.read(&bytes_of(block), &mut floats);
            floats
        });
        blocks.take(numbers).collect()
    }
}

/// The codes of numbers, and the scales of their blocks.
pub fn unpack(words: &[i32], numbers: usize) -> (Vec<u8>, Vec<f32>) {
    let blocks = words.chunks_exact(WORDS);
    let codes = blocks
        .clone()
        .flat_map(|block| bytes_of(block).into_iter().take(BLOCK));
    let scales = blocks.map(|block| f32::from_bits(block[WORDS - 1].cast_unsigned()));
    (codes.take(numbers).collect(), scales.collect())
}

/// The words of [`unpack`]ed codes and scales.
pub fn pack(codes: &[u8], scales: &[f32]) -> Vec<i32> {
    let blocks = codes.chunks(BLOCK).zip(scales).map(|(codes, scale)| {
        let mut bytes = [0; BYTES];
        bytes[..codes.len()].copy_from_slice(codes);
        bytes[BLOCK..].copy_from_slice(&scale.to_le_bytes());
        bytes
    });
    blocks.flat_map(words_of).collect()
}

fn bytes_of(block: &[i32]) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    for (bytes, word) in bytes.chunks_exact_mut(CODES).zip(block) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

fn words_of(bytes: [u8; BYTES]) -> [i32; WORDS] {
    let mut words = [0; WORDS];
    for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(CODES)) {
        *word = i32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    }
    words
}

/// One instruction, where `f32::min` asks for NaN.
#[inline(always)]
fn at_most(number: f32, most: f32) -> f32 {
    if number < most { number } else { most }
}

/// The lowest byte of a whole number of at most 255 either way. The sum has the number in its
/// lowest bits: cheaper than a cast, which looks at its range.
#[inline(always)]
fn whole(number: f32) -> u8 {
    (number + 12_582_912.0).to_bits() as u8
}

/// The bits of the largest magnitude: positive floats are ordered as their bits are, with infinity
/// and NaN above all others.
#[inline(always)]
fn largest(numbers: &[f32]) -> u32 {
    let magnitudes = numbers.iter().map(|number| number.abs().to_bits());
    magnitudes.fold(0, u32::max)
}

/// The lowest bits of a number that is not finite.
const INFINITY: u32 = f32::INFINITY.to_bits();

/// The numbers of a block, and zero for those that are not finite.
#[inline(always)]
fn finite(numbers: &[f32; BLOCK]) -> [f32; BLOCK] {
    let mut finite = [0.0; BLOCK];
    for place in 0..BLOCK {
        let number = numbers[place];
        finite[place] = if is_finite(number) { number } else { 0.0 };
    }
    finite
}

#[inline(always)]
fn is_finite(number: f32) -> bool {
    number.abs().to_bits() < INFINITY
}

#[cfg(test)]
mod tests {
    use super::*;

    const KINDS: [Kind; 2] = [Kind::Signed, Kind::Positive];

    fn again(kind: Kind, numbers: &[f32]) -> Vec<f32> {
        kind.decode(&kind.encode(numbers, None), numbers.len())
    }

    /// Each code is kept as it is, whatever the noise.
    #[test]
    fn codes_survive() {
        for scale in [1e-6f32, 0.03, 1.0, 7.7, 3e8] {
            for (kind, codes) in [
                (
                    Kind::Signed,
                    Vec::from_iter((-127..=127).map(|code: i8| code.cast_unsigned())),
                ),
                (Kind::Positive, Vec::from_iter(0..=255u8)),
            ] {
                // In each block the largest code as well, which makes the scale.
                for codes in codes.chunks(BLOCK - 1) {
                    let codes = [codes, &[kind.most() as u8]].concat();
                    let words = pack(&codes, &[scale]);
                    let numbers = kind.decode(&words, codes.len());
                    for noise in [None, Some(Noise::of_step(0, 1)), Some(Noise::of_step(0, 9))] {
                        let (found, scales) = unpack(&kind.encode(&numbers, noise), codes.len());
                        assert_eq!(found, codes, "{kind:?} {scale}");
                        assert!((scales[0] / scale - 1.0).abs() < 1e-6, "{kind:?} {scale}");
                    }
                }
            }
        }
    }

    #[test]
    fn numbers_are_the_powers_that_the_formula_says() {
        let codes = [1, 2, 100, 127, 129, 255];
        let words = pack(&codes, &[0.5]);
        let signed = [1.0, 2.0, 100.0, 127.0, -127.0, -1.0f64];
        let signed = signed.map(|code| code.signum() * (code / 127.0 * 0.5).powi(2));
        let positive = codes.map(|code| (f64::from(code) / 255.0 * 0.5).powi(4));
        for (kind, expected) in [(Kind::Signed, signed), (Kind::Positive, positive)] {
            for (found, expected) in kind.decode(&words, 6).iter().zip(expected) {
                assert!(
                    (f64::from(*found) / expected - 1.0).abs() < 1e-6,
                    "{kind:?}"
                );
            }
        }
    }

    /// No other code lies between.
    #[test]
    fn a_number_becomes_one_of_the_two_beside_it() {
        let mut bits = 1e-12f32.to_bits();
        while bits <= 1f32.to_bits() {
            let magnitude = f32::from_bits(bits);
            for number in [magnitude, -magnitude] {
                let root = f64::from(magnitude).sqrt() * 127.0;
                let found = unpack(&Kind::Signed.encode(&[number, 1.0], None), 2).0[0];
                let found = f64::from(found.cast_signed());
                assert!((found.abs() - root).abs() < 1.0 + 1e-4, "{number}: {found}");
                assert!(found == 0.0 || found.is_sign_negative() == number.is_sign_negative());
            }
            let root = f64::from(magnitude).powf(0.25) * 255.0;
            let found = unpack(&Kind::Positive.encode(&[magnitude, 1.0], None), 2).0[0];
            assert!(
                (f64::from(found) - root.max(1.0)).abs() < 1.0 + 1e-4,
                "{magnitude}: {found}"
            );
            bits += 99_733;
        }
    }

    #[test]
    fn a_positive_number_never_becomes_zero_without_a_sign() {
        let numbers = [1e30, 1e20, 1.0, 1e-20, 1e-45, 0.0];
        for noise in [None, Some(Noise::of_step(0, 1))] {
            let codes = unpack(&Kind::Positive.encode(&numbers, noise), 6).0;
            assert_eq!(codes[2..], [1, 1, 1, 0], "{codes:?}");
        }
        // The smallest code of the smallest scale is not zero either.
        let least = again(Kind::Positive, &[1e-20, 1e-30, 0.0]);
        assert!(least[1] > 0.0 && least[2] == 0.0, "{least:?}");
    }

    /// From the smallest number to the largest, one number and a block that is not full.
    #[test]
    fn numbers_of_all_sizes_are_kept() {
        for largest in [f32::MAX, 1e38, 1e20, 1.0, 1e-20, 1.2e-38, 1e-40, 1e-45] {
            for kind in KINDS {
                for count in [1, 2, 127, 128, 129, 1000] {
                    let numbers = vec![largest; count];
                    for number in again(kind, &numbers) {
                        // A denormal number has few bits.
                        let allowed = 1e-5 * largest + f32::from_bits(1);
                        assert!(
                            (number - largest).abs() <= allowed,
                            "{kind:?} {largest:e} {number:e}"
                        );
                    }
                }
                let (codes, _) = unpack(&kind.encode(&[0.0; 130], Some(Noise::of_step(0, 1))), 130);
                assert!(codes.iter().all(|code| *code == 0), "{kind:?}");
            }
            assert!(again(Kind::Signed, &[-largest])[0] < 0.0);
        }
    }

    #[test]
    fn what_is_not_finite_is_zero_and_leaves_its_block_as_it_is() {
        for kind in KINDS {
            for bad in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let found = kind.encode(&[1.0, bad, 2.0, 0.5], None);
                assert_eq!(found, kind.encode(&[1.0, 0.0, 2.0, 0.5], None), "{bad}");
                assert_eq!(kind.decode(&found, 4)[1], 0.0);
                assert_eq!(again(kind, &[bad; 2]), [0.0; 2], "{bad}");
            }
        }
    }

    /// Of any number between two codes, and over the steps at one place.
    #[test]
    fn numbers_rounded_with_noise_are_right_on_average() {
        let of_step = |time| Some(Noise::of_step(0, time));
        for kind in KINDS {
            for number in [0.99, 0.9, 0.5004, 0.1, 0.012, 5e-5, 1e-6] {
                assert_right_on_average(kind, number, of_step);
            }
        }
        assert_right_on_average(Kind::Positive, 1e-8, of_step);
        assert_right_on_average(Kind::Signed, -0.3, of_step);
    }

    fn assert_right_on_average(kind: Kind, number: f32, noise: impl Fn(usize) -> Option<Noise>) {
        let steps = 4096;
        let numbers = [1.0, number];
        let (mut sum, mut seen) = (0.0, std::collections::BTreeSet::new());
        for time in 1..=steps {
            let words = kind.encode(&numbers, noise(time));
            let (codes, _) = unpack(&words, 2);
            assert_eq!(f32::from(codes[0]), kind.most());
            sum += f64::from(kind.decode(&words, 2)[1]);
            seen.insert(codes[1]);
        }
        let (least, most) = (*seen.first().unwrap(), *seen.last().unwrap());
        let is_between = most - least == 1 && seen.len() == 2;
        assert!(is_between, "{kind:?} {number}: {seen:?}");
        let [least, most] = [least, most].map(|code| {
            let words = pack(&[code], &[1.0]);
            f64::from(kind.decode(&words, 1)[0])
        });
        let error = (sum / steps as f64 - f64::from(number)).abs() / (most - least).abs();
        // Of 128 runs of 32 steps, each off by less than one and a half of them, which have
        // nothing to do with each other.
        let limit = 4.0 * 1.5 / 32.0 / (steps as f64 / 32.0).sqrt();
        assert!(error < limit, "{kind:?} {number}: {error}");
    }
}
