//! Masks of dropout, of which a number holds 24 bits.
//!
//! A row of zeros and ones is cut into pieces of a twenty-fourth of its length. A number holds one
//! bit of each piece, that of the first piece in its highest bit.

use super::vectorized::vectorized;

/// Bits in a number: `f32` holds integers of this many bits exactly.
const WORD: usize = 24;

/// Zeroes the numbers of a row that its mask drops, and multiplies the others by `scale`.
pub fn drop_row(words: &[f32], row: &mut [f32], scale: f32) {
    drop_part(words, 0, row, scale);
}

/// Writes the ones and zeros of a mask.
pub fn unpack_row(words: &[f32], row: &mut [f32]) {
    row.fill(1.0);
    drop_row(words, row, 1.0);
}

vectorized! {
    /// [`drop_row`] for the numbers of a row from `first` on.
    pub fn drop_part<S>(words: &[f32], first: usize, part: &mut [f32], scale: f32) {
        let width = words.len().max(1);
        let (first, start) = (first / width, first % width);
        let (head, rest) = part.split_at_mut(part.len().min(width - start));
        let rest = rest.chunks_mut(width).map(|part| (part, words));
        let pieces = std::iter::once((head, &words[start..])).chain(rest);
        for (plane, (part, words)) in (first..).zip(pieces) {
            for (number, word) in part.iter_mut().zip(words) {
                let is_kept = (*word as i32 >> (WORD - 1 - plane)) & 1;
                // Not a choice: what is not a number stays so where it is dropped, too.
                *number = *number * is_kept as f32 * scale;
            }
        }
    }

    /// Writes the numbers of a mask of ones and zeros.
    pub fn pack_row<S>(row: &[f32], words: &mut [f32]) {
        words.fill(0.0);
        for (plane, row) in row.chunks(words.len().max(1)).enumerate() {
            let bit = (1_u32 << (WORD - 1 - plane)) as f32;
            for (number, word) in row.iter().zip(&mut *words) {
                *word += number * bit;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mask_is_what_was_packed() {
        for width in [1, 5, 23, 24, 25, 48, 100, 197, 1000] {
            let keep = |at: usize| f32::from(u8::from(at * 7919 % 13 > 3));
            let mask: Vec<f32> = (0..width).map(keep).collect();
            let mut words = vec![f32::NAN; width.div_ceil(WORD)];
            pack_row(&mask, &mut words);
            let mut found = vec![f32::NAN; width];
            unpack_row(&words, &mut found);
            assert_eq!(found, mask);
            // The first columns alone, as of keys that are not masked.
            let mut row = vec![3.0; width / 2];
            drop_row(&words, &mut row, 2.0);
            assert!(
                row.iter()
                    .zip(&mask)
                    .all(|(number, keep)| *number == keep * 6.0)
            );
            // And the others.
            let mut rest = vec![3.0; width - width / 2];
            drop_part(&words, width / 2, &mut rest, 2.0);
            let kept = mask[width / 2..].iter().map(|keep| keep * 6.0);
            assert_eq!(rest, kept.collect::<Vec<f32>>());
        }
    }
}
