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

use std::sync::OnceLock;

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

    /// Writes the codes of at most 256 numbers, and returns their scale.
    #[inline(always)]
    pub fn quantize(self, numbers: &[f32], codes: &mut [u8]) -> f32 {
        // Compares as integers, of which NaN is the largest. A maximum of floats would lose it.
        let most = numbers
            .iter()
            .fold(0, |most, number| most.max(number.abs().to_bits()));
        let scale = f32::from_bits(most);
        // The smallest normal number, so that the quotient of a block of zeros is zero.
        let divisor = scale.max(f32::MIN_POSITIVE);
        let mut block = [0.0; BLOCK];
        block[..numbers.len()].copy_from_slice(numbers);
        let nearest = self.table().nearest(&block, divisor);
        codes.copy_from_slice(&nearest[..codes.len()]);
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

    /// Quantizes numbers in blocks.
    pub fn encode(self, numbers: &[f32]) -> EightBitData {
        let mut codes = vec![0; numbers.len()];
        let blocks = numbers.chunks(BLOCK).zip(codes.chunks_mut(BLOCK));
        let scales = blocks
            .map(|(numbers, codes)| self.quantize(numbers, codes))
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
    /// Index of the entry zero.
    zero: u8,
    cells: [Cell; CELLS],
}

/// A cell of the lookup table. Its lowest byte is the number of middles between entries, from zero
/// on, that lie below the cell. The bits above are the lower half of a middle inside the cell, or
/// [`NO_MIDDLE`].
type Cell = u32;

const NO_MIDDLE: u32 = 1 << 16;

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
        let mut cells = [NO_MIDDLE << 8; CELLS];
        for (number, cell) in (FIRST_CELL..=LAST_CELL).zip(&mut cells) {
            let below = middles.iter().filter(|middle| *middle >> 16 < number);
            let mut inside = middles.iter().filter(|middle| *middle >> 16 == number);
            let middle = inside.next().map_or(NO_MIDDLE, |middle| middle & 0xffff);
            debug_assert!(inside.next().is_none(), "a cell holds one middle at most");
            *cell = (middle << 8) | below.count() as u32;
        }
        Self {
            entries: entries
                .try_into()
                .expect("the decades add up to 256 entries"),
            zero,
            cells,
        }
    }

    /// The codes of the entries that are nearest to numbers which this divisor makes at most one;
    /// of a positive number, one that is not zero.
    ///
    /// Runs three loops: the first and the last are vectorized, the second looks up.
    #[inline(always)]
    fn nearest(&self, numbers: &[f32; BLOCK], divisor: f32) -> [u8; BLOCK] {
        let mut quotients = [0.0; BLOCK];
        for (quotient, number) in quotients.iter_mut().zip(numbers) {
            *quotient = number / divisor;
        }
        let mut places = [0; BLOCK];
        for (place, number) in places.iter_mut().zip(&quotients) {
            *place = cell(number.abs()).clamp(FIRST_CELL, LAST_CELL) - FIRST_CELL;
        }
        let mut cells = [0; BLOCK];
        for (cell, place) in cells.iter_mut().zip(places) {
            *cell = self.cells[place as usize % CELLS];
        }
        let mut codes = [0; BLOCK];
        let zero = i32::from(self.zero);
        let numbers = numbers.iter().zip(&quotients);
        for ((code, cell), (number, quotient)) in codes.iter_mut().zip(cells).zip(numbers) {
            let is_above = (quotient.to_bits() & 0xffff) > cell >> 8;
            let place = (cell & 0xff) as i32 + i32::from(is_above);
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
                    let code = map.table().nearest(&[number; BLOCK], 1.0)[0];
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
            let scale = map.quantize(&numbers, &mut codes);
            assert_eq!(scale, 3.0);
            map.dequantize(&codes, scale, &mut back);
            assert_eq!(numbers, back);

            let scale = map.quantize(&[0.0; 3], &mut codes[..3]);
            map.dequantize(&codes[..3], scale, &mut back[..3]);
            assert_eq!(back[..3], [0.0; 3]);
        }
    }

    #[test]
    fn a_positive_number_never_becomes_zero_without_a_sign() {
        let numbers = [1e30, 1e20, 1.0, 1e-20, 1e-45, 0.0];
        let (mut codes, mut back) = ([0; 6], [0.0; 6]);
        let scale = DynamicMap::Unsigned.quantize(&numbers, &mut codes);
        DynamicMap::Unsigned.dequantize(&codes, scale, &mut back);
        assert!(back[..5].iter().all(|number| *number > 0.0), "{back:?}");
        assert_eq!(back[5], 0.0);
    }

    #[test]
    fn what_is_not_finite_stays_so() {
        for bad in [f32::NAN, f32::INFINITY] {
            let (mut codes, mut back) = ([0; 3], [0.0; 3]);
            let scale = DynamicMap::Signed.quantize(&[1.0, bad, 2.0], &mut codes);
            DynamicMap::Signed.dequantize(&codes, scale, &mut back);
            assert!(!back[1].is_finite());
        }
    }
}
