//! Numbers in 8 bits: the dynamic map of Dettmers et al., "8-bit Optimizers via Block-wise Quantization"
//! (2022), <https://arxiv.org/abs/2110.02861>.
//!
//! A block of numbers is divided by its largest magnitude, and each number becomes the place of the nearest
//! entry of a table. The table covers seven decades, each with twice the entries of the one below.

use std::sync::OnceLock;

/// Numbers in a block, which share a scale.
pub(crate) const BLOCK: usize = 256;

const DECADES: usize = 7;

/// Bits of a float's mantissa that choose a cell of [`Positive::cells`]: so many that no cell holds more than
/// one middle between two entries.
const CELL_BITS: u32 = 7;

/// A cell is the top bits of a float; this is the first one, below half of the smallest entry.
const FIRST_CELL: u32 = cell(1e-7);

const fn cell(magnitude: f32) -> u32 {
    magnitude.to_bits() >> (23 - CELL_BITS)
}

const LAST_CELL: u32 = cell(1.0);

const CELLS: usize = (LAST_CELL - FIRST_CELL + 1) as usize;

/// The map of a state: signed for a first moment, unsigned for a second one, which is never negative.
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
        // As integers, since NaN is the largest of them: it would be lost in a maximum of floats.
        let most = numbers
            .iter()
            .fold(0, |most, number| most.max(number.abs().to_bits()));
        let scale = f32::from_bits(most);
        // The smallest normal number, so that the quotient of a block of zeros is zero.
        let divisor = scale.max(f32::MIN_POSITIVE);
        // In two loops: the first one is vectorized, the second looks up.
        let mut quotients = [0.0; BLOCK];
        for (quotient, number) in quotients.iter_mut().zip(numbers) {
            *quotient = number / divisor;
        }
        let table = self.table();
        for (code, quotient) in codes.iter_mut().zip(quotients) {
            *code = table.nearest(quotient);
        }
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

    fn table(self) -> &'static Table {
        static SIGNED: OnceLock<Table> = OnceLock::new();
        static UNSIGNED: OnceLock<Table> = OnceLock::new();
        match self {
            Self::Signed => SIGNED.get_or_init(|| Table::new(true)),
            Self::Unsigned => UNSIGNED.get_or_init(|| Table::new(false)),
        }
    }
}

struct Table {
    entries: [f32; 256],
    /// The place of zero among the entries.
    zero: u8,
    /// The middle between an entry from zero on and the next one, by the entry's place after zero.
    middles: [f32; 256],
    /// For each cell, how many middles lie below all of its numbers.
    cells: [u8; CELLS],
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

        let mut middles = [f32::INFINITY; 256];
        for (middle, pair) in middles.iter_mut().zip(positive.windows(2)) {
            *middle = (pair[0] + pair[1]) / 2.0;
        }
        let mut cells = [0; CELLS];
        for (cell, below) in (FIRST_CELL..).zip(&mut cells) {
            let start = f32::from_bits(cell << (23 - CELL_BITS));
            *below = middles.iter().take_while(|middle| **middle < start).count() as u8;
        }
        Self {
            entries: entries
                .try_into()
                .expect("the decades add up to 256 entries"),
            zero,
            middles,
            cells,
        }
    }

    #[inline(always)]
    fn nearest(&self, number: f32) -> u8 {
        let magnitude = number.abs();
        let cell = cell(magnitude).clamp(FIRST_CELL, LAST_CELL) - FIRST_CELL;
        let below = self.cells[cell as usize];
        let place = below + u8::from(magnitude > self.middles[usize::from(below)]);
        // Without a branch, since signs are as good as random. There is no -1: the last entry below zero is nearest.
        let sign = 1 - 2 * i16::from(number.is_sign_negative());
        (i16::from(self.zero) + sign * i16::from(place)).max(0) as u8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nearest_by_search(map: DynamicMap, number: f32) -> f32 {
        let distance = |entry: &f32| (f64::from(*entry) - f64::from(number)).abs();
        *map.entries()
            .iter()
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
                    let code = map.table().nearest(number);
                    let (found, wanted) = (
                        map.entries()[usize::from(code)],
                        nearest_by_search(map, number),
                    );
                    let off = (found - number).abs() - (wanted - number).abs();
                    // In the middle of two entries either is right, as far as an f32 knows the middle.
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
    fn what_is_not_finite_stays_so() {
        for bad in [f32::NAN, f32::INFINITY] {
            let (mut codes, mut back) = ([0; 3], [0.0; 3]);
            let scale = DynamicMap::Signed.quantize(&[1.0, bad, 2.0], &mut codes);
            DynamicMap::Signed.dequantize(&codes, scale, &mut back);
            assert!(!back[1].is_finite());
        }
    }
}
