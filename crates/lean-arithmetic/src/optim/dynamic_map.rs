//! Numbers in 8 bits: the dynamic map of Dettmers et al., "8-bit Optimizers via Block-wise
//! Quantization" (2022), <https://arxiv.org/abs/2110.02861>.
//!
//! A block of numbers is divided by its largest magnitude, and each number becomes the place of the
//! nearest entry of a table. The table covers seven decades, each with twice the entries of the one
//! below.
//!
//! Here a positive number of an unsigned map is never zero, but at least the smallest entry. A
//! second moment that became zero, where the first moment keeps a number, would make a step of that
//! number over epsilon: some 80,000 times the learning rate.
//!
//! A number that is not finite has no entry. It is kept as zero and does not count for the scale,
//! so that the other numbers of its block are kept; the pass puts it into the weight, where it
//! shows.
//!
//! The entries of the unsigned map lie up to 0.7 % of the largest number apart, and a second moment
//! with a `beta_2` of 0.999 changes by some 0.1 % in a step: rounded to the nearest entry it would
//! never move. So it is [rounded by chance](DynamicMap::quantize), and is right on average.

use std::sync::OnceLock;

use super::Noise;

/// Numbers in a block, which share a scale.
pub const BLOCK: usize = 256;

/// Codes in an `i32`.
const WORD: usize = 4;

/// Number of blocks for a number of numbers.
pub const fn blocks(numbers: usize) -> usize {
    numbers.div_ceil(BLOCK)
}

/// Number of `i32` words for the codes of a number of numbers.
pub const fn words(numbers: usize) -> usize {
    numbers.div_ceil(WORD)
}

const DECADES: usize = 7;

/// A cell is the upper half of a float's bits, so fine that none holds more than one middle between
/// two entries.
const fn cell(magnitude: f32) -> u32 {
    magnitude.to_bits() >> 16
}

/// Below half of the smallest entry.
const FIRST_CELL: u32 = cell(1e-7);

const LAST_CELL: u32 = cell(1.0);

/// A power of two, so that a masked place needs no check.
const CELLS: usize = ((LAST_CELL - FIRST_CELL + 1) as usize).next_power_of_two();

/// The map of a state: signed for a first moment, unsigned for a second one, which is never
/// negative.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DynamicMap {
    /// Entries from -0.99 to 1.
    Signed,
    /// Entries from 0 to 1, twice as dense.
    Unsigned,
}

impl DynamicMap {
    /// The entries, in ascending order.
    pub fn entries(self) -> &'static [f32; 256] {
        &self.table().entries
    }

    /// Writes the codes of at most 256 numbers, and returns their scale. With noise, the numbers
    /// of the unsigned map become one of the two entries beside them, the nearer one with the
    /// larger probability; `first` is the place of the first number among those of its tensor.
    #[inline(always)]
    pub fn quantize(
        self,
        numbers: &[f32],
        codes: &mut [u8],
        noise: Option<Noise>,
        first: u32,
    ) -> f32 {
        let mut block = [0.0; BLOCK];
        block[..numbers.len()].copy_from_slice(numbers);
        let mut most = largest(&block);
        if most >= INFINITY {
            for number in &mut block {
                *number = if number.is_finite() { *number } else { 0.0 };
            }
            most = largest(&block);
        }
        // At least the smallest normal number, so that the quotient of a block of zeros is zero.
        let scale = f32::from_bits(most).max(f32::MIN_POSITIVE);
        let mut quotients = [0.0; BLOCK];
        for (quotient, number) in quotients.iter_mut().zip(&block) {
            *quotient = number / scale;
        }
        let table = self.table();
        let rounded = match (self, noise) {
            (Self::Unsigned, Some(noise)) => table.beside(&block, &quotients, noise, first),
            _ => table.nearest(&block, &quotients),
        };
        codes.copy_from_slice(&rounded[..codes.len()]);
        scale
    }

    /// Writes the numbers of these codes.
    #[inline(always)]
    pub fn dequantize(self, codes: &[u8], scale: f32, numbers: &mut [f32]) {
        let entries = self.entries();
        for (code, number) in codes.iter().zip(numbers) {
            *number = entries[usize::from(*code)] * scale;
        }
    }

    /// Quantizes numbers in blocks; with noise, rounded [by chance](Self::quantize).
    pub fn encode(self, numbers: &[f32], noise: Option<Noise>) -> EightBitData {
        let mut codes = vec![0; numbers.len()];
        let blocks = numbers.chunks(BLOCK).zip(codes.chunks_mut(BLOCK));
        let firsts = (0u32..).step_by(BLOCK);
        let scales = blocks
            .zip(firsts)
            .map(|((numbers, codes), first)| self.quantize(numbers, codes, noise, first))
            .collect();
        EightBitData { codes, scales }
    }

    fn table(self) -> &'static Table {
        static SIGNED: OnceLock<Table> = OnceLock::new();
        static UNSIGNED: OnceLock<Table> = OnceLock::new();
        match self {
            Self::Signed => SIGNED.get_or_init(|| Table::new(true)),
            Self::Unsigned => UNSIGNED.get_or_init(|| Table::new(false)),
        }
    }
}

/// The bits of the largest magnitude: positive floats are ordered as their bits are, with infinity
/// and NaN above all others.
#[inline(always)]
pub(super) fn largest(numbers: &[f32]) -> u32 {
    let magnitudes = numbers.iter().map(|number| number.abs().to_bits());
    magnitudes.fold(0, u32::max)
}

/// The lowest bits of a number that is not finite.
pub(super) const INFINITY: u32 = f32::INFINITY.to_bits();

/// Numbers in 8 bits on the host.
#[derive(Clone, Debug, PartialEq)]
pub struct EightBitData {
    /// The codes.
    pub codes: Vec<u8>,
    /// The scale of each block.
    pub scales: Vec<f32>,
}

impl EightBitData {
    /// Unpacks the codes of `numbers` numbers from words, from the lowest byte on.
    pub fn from_words(words: &[i32], scales: Vec<f32>, numbers: usize) -> Self {
        let bytes = words.iter().flat_map(|word| word.to_le_bytes());
        Self {
            codes: bytes.take(numbers).collect(),
            scales,
        }
    }

    /// The codes in words, from the lowest byte on, the last one filled up with zeros.
    pub fn words(&self) -> Vec<i32> {
        let word = |codes: &[u8]| {
            let mut bytes = [0; WORD];
            bytes[..codes.len()].copy_from_slice(codes);
            i32::from_le_bytes(bytes)
        };
        self.codes.chunks(WORD).map(word).collect()
    }

    /// The numbers.
    pub fn decode(&self, map: DynamicMap) -> Vec<f32> {
        let mut numbers = vec![0.0; self.codes.len()];
        let blocks = self.codes.chunks(BLOCK).zip(numbers.chunks_mut(BLOCK));
        for ((codes, numbers), scale) in blocks.zip(&self.scales) {
            map.dequantize(codes, *scale, numbers);
        }
        numbers
    }
}

struct Table {
    entries: [f32; 256],
    /// Each entry, and its distance to the next one; 0 for the last.
    steps: [[f32; 2]; 256],
    /// Index of the entry zero.
    zero: u8,
    /// Lookup of the midpoints between entries from zero on.
    middles: Cells,
    /// Lookup of the entries above zero.
    above_zero: Cells,
}

/// A lookup table: the number of bounds, in ascending order, below a number, by the number's cell.
struct Cells([Cell; CELLS]);

/// A cell of the lookup table. Its lowest byte is the number of bounds that lie below the cell. The
/// bits above are the lower half of a bound inside the cell, or [`NO_BOUND`].
type Cell = u32;

const NO_BOUND: u32 = 1 << 16;

impl Cells {
    /// Lookup of bounds, as the bits of floats. A cell can hold one bound only.
    fn new(bounds: &[u32]) -> Self {
        let mut cells = [NO_BOUND << 8; CELLS];
        for (number, cell) in (FIRST_CELL..=LAST_CELL).zip(&mut cells) {
            let below = bounds.iter().filter(|bound| *bound >> 16 < number);
            // No number of a cell is above its last one.
            let is_inside = |bound: u32| bound >> 16 == number && bound & 0xffff < 0xffff;
            let mut inside = bounds.iter().filter(|bound| is_inside(**bound));
            let bound = inside.next().map_or(NO_BOUND, |bound| bound & 0xffff);
            debug_assert!(inside.next().is_none(), "a cell holds one bound at most");
            *cell = (bound << 8) | below.count() as u32;
        }
        Self(cells)
    }

    /// The number of bounds below each magnitude. Magnitudes are at most one.
    ///
    /// In three loops: the first and the last are vectorized, the one between looks up.
    #[inline(always)]
    fn below(&self, numbers: &[f32; BLOCK]) -> [i32; BLOCK] {
        let mut places = [0; BLOCK];
        for (place, number) in places.iter_mut().zip(numbers) {
            *place = cell(number.abs()).clamp(FIRST_CELL, LAST_CELL) - FIRST_CELL;
        }
        let mut cells = [0; BLOCK];
        for (cell, place) in cells.iter_mut().zip(places) {
            *cell = self.0[place as usize % CELLS];
        }
        let mut below = [0; BLOCK];
        for ((below, cell), number) in below.iter_mut().zip(cells).zip(numbers) {
            let is_above = (number.to_bits() & 0xffff) > cell >> 8;
            *below = (cell & 0xff) as i32 + i32::from(is_above);
        }
        below
    }
}

impl Table {
    fn new(signed: bool) -> Self {
        let mut positive = vec![0.0, 1.0];
        for decade in 0..DECADES {
            let bins = 1 << if signed { decade } else { decade + 1 };
            let magnitude = 10f64.powi(decade as i32 + 1 - DECADES as i32);
            let boundary = |place: usize| 0.1 + 0.9 * place as f64 / bins as f64;
            positive.extend((0..bins).map(|bin| {
                let mean = (boundary(bin) + boundary(bin + 1)) / 2.0;
                (magnitude * mean) as f32
            }));
        }
        positive.sort_by(f32::total_cmp);
        let negative = positive.iter().skip(1).take(127).rev().map(|entry| -entry);
        let mut entries: Vec<f32> = if signed {
            negative.collect()
        } else {
            Vec::new()
        };
        let zero = entries.len() as u8;
        entries.extend(&positive);

        let middles = positive.windows(2).map(|pair| (pair[0] + pair[1]) / 2.0);
        let middles: Vec<u32> = middles.map(f32::to_bits).collect();
        // A number that is not below an entry is above the previous float.
        let above_zero: Vec<u32> = positive[1..]
            .iter()
            .map(|entry| entry.to_bits() - 1)
            .collect();
        let entries: [f32; 256] = entries
            .try_into()
            .expect("the decades add up to 256 entries");
        let mut steps = entries.map(|entry| [entry, 0.0]);
        for (step, pair) in steps.iter_mut().zip(entries.windows(2)) {
            step[1] = pair[1] - pair[0];
        }
        Self {
            entries,
            steps,
            zero,
            middles: Cells::new(&middles),
            above_zero: Cells::new(&above_zero),
        }
    }

    /// The codes of the entries that are nearest to the quotients of numbers, which are at most
    /// one. The code of a positive number is not that of zero.
    #[inline(always)]
    fn nearest(&self, numbers: &[f32; BLOCK], quotients: &[f32; BLOCK]) -> [u8; BLOCK] {
        let places = self.middles.below(quotients);
        let mut codes = [0; BLOCK];
        let zero = i32::from(self.zero);
        for ((code, place), number) in codes.iter_mut().zip(places).zip(numbers) {
            // No branch, because signs are as good as random: minus one for a negative number, and
            // zero.
            let sign = number.to_bits().cast_signed() >> 31;
            // The quotient of a positive number may be zero. There is no -1: the last entry below
            // zero is nearest.
            let least = i32::from(number.to_bits().cast_signed() > 0);
            *code = (zero + (place ^ sign) - sign).max(least) as u8;
        }
        codes
    }

    /// For a map that begins with zero: the codes of one of the two entries beside each quotient,
    /// the nearer one with the larger probability. The code of a positive number is not that of
    /// zero. No number is negative.
    #[inline(always)]
    fn beside(
        &self,
        numbers: &[f32; BLOCK],
        quotients: &[f32; BLOCK],
        noise: Noise,
        first: u32,
    ) -> [u8; BLOCK] {
        let below = self.above_zero.below(quotients);
        let (mut entries, mut gaps) = ([0.0; BLOCK], [0.0; BLOCK]);
        for place in 0..BLOCK {
            [entries[place], gaps[place]] = self.steps[below[place] as usize % 256];
        }
        let mut codes = [0; BLOCK];
        for place in 0..BLOCK {
            let threshold = noise.fraction(first.wrapping_add(place as u32));
            let is_up = quotients[place] - entries[place] > threshold * gaps[place];
            let least = i32::from(numbers[place] > 0.0);
            codes[place] = (below[place] + i32::from(is_up)).max(least) as u8;
        }
        codes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nearest_by_search(map: DynamicMap, number: f32) -> f32 {
        let distance = |entry: &f32| (f64::from(*entry) - f64::from(number)).abs();
        let is_allowed = |entry: &&f32| map == DynamicMap::Signed || **entry > 0.0 || number == 0.0;
        *map.entries()
            .iter()
            .filter(is_allowed)
            .min_by(|one, other| distance(one).total_cmp(&distance(other)))
            .unwrap()
    }

    #[test]
    fn entries_ascend_and_hold_zero_and_one() {
        for map in [DynamicMap::Signed, DynamicMap::Unsigned] {
            let entries = map.entries();
            assert!(entries.windows(2).all(|pair| pair[0] < pair[1]), "{map:?}");
            assert!(entries.contains(&0.0) && entries[255] == 1.0);
        }
        assert_eq!(DynamicMap::Signed.entries()[0], -0.992_968_75);
        assert_eq!(DynamicMap::Unsigned.entries()[0], 0.0);
    }

    #[test]
    fn every_number_gets_the_nearest_entry() {
        for map in [DynamicMap::Signed, DynamicMap::Unsigned] {
            let mut bits = 0u32;
            while bits <= 1f32.to_bits() {
                let magnitude = f32::from_bits(bits);
                let signs: &[f32] = if map == DynamicMap::Signed {
                    &[1.0, -1.0]
                } else {
                    &[1.0]
                };
                for sign in signs {
                    let number = sign * magnitude;
                    let block = [number; BLOCK];
                    let code = map.table().nearest(&block, &block)[0];
                    let (found, wanted) = (
                        map.entries()[usize::from(code)],
                        nearest_by_search(map, number),
                    );
                    let off = (found - number).abs() - (wanted - number).abs();
                    // In the middle of two entries either is right, as far as an f32 knows the
                    // middle.
                    assert!(
                        off <= f32::EPSILON * magnitude,
                        "{map:?}: {number} became {found}, not {wanted}"
                    );
                }
                bits += 9973;
            }
        }
    }

    #[test]
    fn entries_survive_and_a_block_of_zeros_stays_one() {
        for map in [DynamicMap::Signed, DynamicMap::Unsigned] {
            let numbers = map.entries().map(|entry| entry * 3.0);
            let (mut codes, mut back) = ([0; BLOCK], [0.0; BLOCK]);
            let scale = map.quantize(&numbers, &mut codes, None, 0);
            assert_eq!(scale, 3.0);
            map.dequantize(&codes, scale, &mut back);
            assert_eq!(numbers, back);

            let scale = map.quantize(&[0.0; 3], &mut codes[..3], None, 0);
            map.dequantize(&codes[..3], scale, &mut back[..3]);
            assert_eq!(back[..3], [0.0; 3]);
        }
    }

    #[test]
    fn a_positive_number_never_becomes_zero_without_a_sign() {
        let numbers = [1e30, 1e20, 1.0, 1e-20, 1e-45, 0.0];
        let (mut codes, mut back) = ([0; 6], [0.0; 6]);
        let scale = DynamicMap::Unsigned.quantize(&numbers, &mut codes, None, 0);
        DynamicMap::Unsigned.dequantize(&codes, scale, &mut back);
        assert!(back[..5].iter().all(|number| *number > 0.0), "{back:?}");
        assert_eq!(back[5], 0.0);
    }

    #[test]
    fn what_is_not_finite_is_zero_and_leaves_its_block_as_it_is() {
        for map in [DynamicMap::Signed, DynamicMap::Unsigned] {
            for bad in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let numbers = [1.0, bad, 2.0, 0.5];
                let found = map.encode(&numbers, None);
                assert_eq!(found, map.encode(&[1.0, 0.0, 2.0, 0.5], None), "{bad}");
                assert_eq!(found.decode(map)[1], 0.0);
                assert_eq!(map.encode(&[bad; 2], None).decode(map), [0.0; 2], "{bad}");
            }
        }
    }

    /// Numbers below the smallest normal one are divided by that, and have to be multiplied by it.
    #[test]
    fn blocks_of_denormal_numbers_keep_them() {
        let numbers = [1e-39, 5e-40, 2e-42, 0.0];
        for map in [DynamicMap::Signed, DynamicMap::Unsigned] {
            for (found, number) in map.encode(&numbers, None).decode(map).iter().zip(numbers) {
                let error = (found - number).abs();
                assert!(error < 0.004 * f32::MIN_POSITIVE, "{number} became {found}");
            }
            assert!(map.encode(&numbers, None).decode(map)[0] > 0.9e-39);
        }
    }

    /// Of any number between two entries, and over the steps at one place.
    #[test]
    fn numbers_rounded_by_chance_are_right_on_average() {
        let map = DynamicMap::Unsigned;
        let steps = 4000;
        for number in [0.9, 0.5004, 0.1, 0.09, 0.012, 3e-3, 5e-5, 1e-6] {
            let mut numbers = [number; BLOCK];
            numbers[0] = 1.0;
            let nearest = map.encode(&numbers, None).codes[7];
            let (mut sum, mut seen) = (0.0, std::collections::BTreeSet::new());
            for time in 1..=steps {
                let rounded = map.encode(&numbers, Some(Noise::of_step(0, time)));
                assert_eq!(rounded.codes[0], 255);
                sum += f64::from(rounded.decode(map)[7]);
                seen.insert(rounded.codes[7]);
            }
            assert_eq!(seen.len(), 2, "{number}: {seen:?}");
            assert!(seen.contains(&nearest) && seen.last().unwrap() - seen.first().unwrap() == 1);
            let entries = map.entries();
            let gap = entries[usize::from(*seen.last().unwrap())]
                - entries[usize::from(*seen.first().unwrap())];
            // At most half a gap over the root of the steps.
            let error = (sum / steps as f64 - f64::from(number)).abs();
            let limit = 4.0 * f64::from(gap) / 2.0 / (steps as f64).sqrt();
            assert!(error < limit, "{number}: {error} of {gap}");
        }
    }

    /// Entries are themselves, whatever the noise; the signed map has none.
    #[test]
    fn entries_and_signed_numbers_are_not_rounded_by_chance() {
        let noise = Some(Noise::new(7));
        let unsigned = DynamicMap::Unsigned;
        assert_eq!(
            unsigned.encode(unsigned.entries(), noise).codes,
            Vec::from_iter(0..=255)
        );
        let numbers: Vec<f32> = (0..600).map(|place| (place as f32).sin()).collect();
        let signed = DynamicMap::Signed;
        assert_eq!(
            signed.encode(&numbers, noise),
            signed.encode(&numbers, None)
        );
        assert_eq!(
            unsigned.encode(&[0.0, 1e-30, 1.0], noise).codes[..2],
            [0, 1]
        );
    }
}
