//! Weights in four bits: the NormalFloat with double quantization of [QLoRA: Efficient Finetuning of
//! Quantized LLMs](https://arxiv.org/abs/2305.14314), bit for bit as in
//! [bitsandbytes](https://github.com/bitsandbytes-foundation/bitsandbytes).
//!
//! Each block of 64 numbers has a scale, the largest absolute value. Of the scales the mean is taken off,
//! and the rest is stored in 8 bits, with a scale for each 256: 4.127 bits a number in all.

#[cfg(all(feature = "host", target_arch = "x86_64"))]
mod x86;

use std::ops::Range;
use std::sync::LazyLock;

/// Numbers that share a scale.
pub const BLOCK: usize = 64;

/// Scales that share one.
pub const SCALES: usize = 256;

/// The quantiles of a normal distribution that four bits stand for.
pub const QUANTILES: [f32; 16] = [
    -1.0,
    -0.696_192_8,
    -0.525_073_05,
    -0.394_917_5,
    -0.284_441_38,
    -0.184_773_43,
    -0.091_050_036,
    0.0,
    0.079_580_3,
    0.160_930_2,
    0.246_112_3,
    0.337_915_24,
    0.440_709_83,
    0.562_617,
    0.722_956_84,
    1.0,
];

/// The numbers that eight bits stand for: the dynamic type of [8-Bit Approximations for Parallelism in Deep
/// Learning](https://arxiv.org/abs/1511.04561).
pub static DYNAMIC: LazyLock<[f32; 256]> = LazyLock::new(|| {
    let mut numbers = vec![0.0, 1.0];
    for (exponent, size) in [1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0]
        .into_iter()
        .enumerate()
    {
        let parts = 1_usize << exponent;
        // As PyTorch's `linspace` of 0.1 to 1: from both ends.
        let step = (1.0 - 0.1_f32) / parts as f32;
        let boundary = |at: usize| match at < parts.div_ceil(2) {
            true => step.mul_add(at as f32, 0.1),
            false => (-step).mul_add((parts - at) as f32, 1.0),
        };
        for at in 0..parts {
            let mean: f32 = (boundary(at) + boundary(at + 1)) / 2.0;
            numbers.extend([mean * size, -mean * size]);
        }
    }
    numbers.sort_by(f32::total_cmp);
    numbers.try_into().expect("there are 256")
});

/// Packed numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct Packed {
    /// Two numbers in a byte, the first one in the high half.
    pub numbers: Vec<u8>,
    /// The scale of each block, without the mean.
    pub scales: Vec<u8>,
    /// The scale of each 256 scales.
    pub scales_of_scales: Vec<f32>,
    /// The mean of the scales.
    pub mean: f32,
}

/// Packs numbers.
///
/// The mean is rounded once, which that of bitsandbytes need not be: then last bits of scales differ.
pub fn pack(numbers: &[f32]) -> Packed {
    let mut packer = Packer::default();
    packer.add(numbers);
    packer.finish()
}

/// Packs numbers that are not all there at once.
#[derive(Debug, Default)]
pub struct Packer {
    numbers: Vec<u8>,
    scales: Vec<f32>,
    /// Whether the last block was short, as the last one of all may be.
    is_over: bool,
}

impl Packer {
    /// Packs the next numbers.
    ///
    /// # Panics
    ///
    /// If those before were not whole [blocks](BLOCK).
    pub fn add(&mut self, numbers: &[f32]) {
        assert!(!self.is_over, "only the last block may be short");
        self.is_over = !numbers.len().is_multiple_of(BLOCK);
        let (codes, scales) = quantize(numbers, BLOCK, &QUANTILES);
        let zero = nearest(&midpoints(&QUANTILES), 0.0);
        let byte = |pair: &[u8]| (pair[0] << 4) | pair.get(1).copied().unwrap_or(zero);
        self.numbers.extend(codes.chunks(2).map(byte));
        self.scales.extend(scales);
    }

    /// All numbers, with their scales packed.
    pub fn finish(self) -> Packed {
        let scales = self.scales;
        let sum: f64 = scales.iter().copied().map(f64::from).sum();
        let mean = (sum / scales.len().max(1) as f64) as f32;
        let differences: Vec<f32> = scales.iter().map(|scale| scale - mean).collect();
        let (scales, scales_of_scales) = quantize(&differences, SCALES, DYNAMIC.as_slice());
        Packed {
            numbers: self.numbers,
            scales,
            scales_of_scales,
            mean,
        }
    }
}

/// The nearest codes of numbers, by blocks, and the scale of each block.
fn quantize(numbers: &[f32], block: usize, codes: &[f32]) -> (Vec<u8>, Vec<f32>) {
    /// A block of zeros, or nearly.
    const SMALLEST: f32 = 1e-38;
    let midpoints = midpoints(codes);
    let mut quantized = Vec::with_capacity(numbers.len());
    let mut scales = Vec::with_capacity(numbers.len().div_ceil(block));
    for numbers in numbers.chunks(block) {
        let scale = numbers.iter().fold(0.0_f32, |max, x| max.max(x.abs()));
        let divisor = scale.max(SMALLEST);
        let is_whole = numbers.len() == block;
        quantized.extend(numbers.iter().map(|number| {
            let scaled = match is_whole {
                true => number * (1.0 / divisor),
                false => number / divisor,
            };
            nearest(&midpoints, scaled)
        }));
        scales.push(if is_whole { scale } else { divisor });
    }
    (quantized, scales)
}

fn midpoints(codes: &[f32]) -> Vec<f32> {
    codes
        .windows(2)
        .map(|pair| (pair[0] + pair[1]) / 2.0)
        .collect()
}

fn nearest(midpoints: &[f32], number: f32) -> u8 {
    // There are at most 256 codes.
    midpoints.partition_point(|midpoint| *midpoint < number) as u8
}

/// The scale of a block.
pub fn scale(code: u8, of_scale: f32, mean: f32) -> f32 {
    DYNAMIC[usize::from(code)] * of_scale + mean
}

/// Unpacks numbers of a range. `words` has the packed bytes, the first one in the lowest bits; `scale` gives
/// that of a block.
pub fn unpack(
    words: &[i32],
    range: Range<usize>,
    scale: impl Fn(usize) -> f32,
    mut into: &mut [f32],
) {
    /// Blocks that are unpacked by one call.
    const BLOCKS: usize = 64;
    let mut at = range.start;
    while at < range.end {
        let block = at / BLOCK;
        let whole = ((range.end - at) / BLOCK).min(BLOCKS);
        let is_whole = at.is_multiple_of(BLOCK) && whole > 0;
        let end = match is_whole {
            true => at + whole * BLOCK,
            false => range.end.min((block + 1) * BLOCK),
        };
        let (numbers, rest) = into.split_at_mut(end - at);
        into = rest;
        if is_whole {
            let mut scales = [0.0; BLOCKS];
            for (of, of_block) in scales[..whole].iter_mut().enumerate() {
                *of_block = scale(block + of);
            }
            unpack_blocks(&words[at / WORD..end / WORD], &scales[..whole], numbers);
        } else {
            let values = values(scale(block));
            for (at, number) in (at..end).zip(numbers) {
                *number = values[code(words[at / WORD], at % WORD)];
            }
        }
        at = end;
    }
}

/// Unpacks rows and columns of a matrix of this width, column after column. As [`unpack`].
pub fn unpack_transposed(
    words: &[i32],
    width: usize,
    [rows, columns]: [Range<usize>; 2],
    scale: impl Fn(usize) -> f32,
    into: &mut [f32],
) {
    /// As many numbers as a line of a cache has: each is written once.
    const ROWS: usize = 16;
    const COLUMNS: usize = 8 * BLOCK;
    /// Longer than a row, as lines at a distance of a power of two push each other out of a cache.
    const STRIDE: usize = COLUMNS + ROWS;
    let mut tile = [0.0; ROWS * STRIDE];
    for first in columns.clone().step_by(COLUMNS) {
        let count = COLUMNS.min(columns.end - first);
        for first_row in rows.clone().step_by(ROWS) {
            let height = ROWS.min(rows.end - first_row);
            for (row, tile) in tile.chunks_mut(STRIDE).take(height).enumerate() {
                let start = (first_row + row) * width + first;
                unpack(words, start..start + count, &scale, &mut tile[..count]);
            }
            let into = into[(first - columns.start) * rows.len()..].chunks_mut(rows.len());
            for (column, into) in into.take(count).enumerate() {
                let into = &mut into[first_row - rows.start..];
                let number = |row: usize| tile[row * STRIDE + column];
                match into.first_chunk_mut::<ROWS>() {
                    Some(line) if height == ROWS => *line = std::array::from_fn(number),
                    _ => {
                        let numbers = into.iter_mut().take(height).enumerate();
                        numbers.for_each(|(row, into)| *into = number(row));
                    }
                }
            }
        }
    }
}

/// The numbers that codes stand for in a block of this scale.
fn values(scale: f32) -> [f32; 16] {
    QUANTILES.map(|quantile| quantile * scale)
}

/// Whole blocks of these scales.
fn unpack_blocks(words: &[i32], scales: &[f32], into: &mut [f32]) {
    const WORDS: usize = BLOCK / WORD;
    let (words, _) = words.as_chunks::<WORDS>();
    let (numbers, _) = into.as_chunks_mut::<WORD>();
    let (blocks, _) = numbers.as_chunks_mut::<WORDS>();
    #[cfg(all(feature = "host", target_arch = "x86_64"))]
    if let Some(simd) = pulp::x86::V3::try_new() {
        return x86::unpack_blocks(simd, QUANTILES, words, scales, blocks);
    }
    for (scale, (words, block)) in scales.iter().zip(words.iter().zip(blocks)) {
        let values = values(*scale);
        for (word, numbers) in words.iter().zip(block) {
            for (place, number) in numbers.iter_mut().enumerate() {
                *number = values[code(*word, place)];
            }
        }
    }
}

/// Numbers in a word.
const WORD: usize = 8;

fn code(word: i32, place: usize) -> usize {
    // The first number of a byte is in its high half.
    ((word >> ((4 * place) ^ 4)) & 15) as usize
}

/// Four bytes in a word, the first one in the lowest bits.
pub fn words(bytes: &[u8]) -> Vec<i32> {
    let word = |bytes: &[u8]| {
        let mut word = [0; 4];
        word[..bytes.len()].copy_from_slice(bytes);
        i32::from_le_bytes(word)
    };
    bytes.chunks(4).map(word).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_unpacked_is_near() {
        let numbers: Vec<f32> = (0..1003).map(|at| (at as f32 * 0.37).sin()).collect();
        let packed = pack(&numbers);
        let mut packer = Packer::default();
        numbers.chunks(2 * BLOCK).for_each(|some| packer.add(some));
        let by_parts = packer.finish();
        assert!(by_parts.numbers == packed.numbers && by_parts.scales == packed.scales);
        assert_eq!(packed.numbers.len(), 502);
        assert_eq!(
            [packed.scales.len(), packed.scales_of_scales.len()],
            [16, 1]
        );
        let scale_of = |block: usize| {
            scale(
                packed.scales[block],
                packed.scales_of_scales[0],
                packed.mean,
            )
        };
        let mut found = vec![0.0; 500];
        unpack(&words(&packed.numbers), 501..1001, scale_of, &mut found);
        for (found, expected) in found.iter().zip(&numbers[501..]) {
            // Half of the widest step between two codes, and the rounding of the scale.
            assert!((found - expected).abs() < 0.16, "{found} {expected}");
        }
    }

    #[test]
    fn columns_are_those_of_the_rows() {
        // Rows that begin within a block, and more of them than are unpacked at once.
        for (rows, columns, width) in [
            (3..40, 0..64, 64),
            (1..19, 5..90, 100),
            (0..2, 64..700, 700),
        ] {
            let count = 40 * width;
            let packed = pack(&Vec::from_iter(
                (0..count).map(|at| (at as f32 * 0.37).sin()),
            ));
            let words = words(&packed.numbers);
            let scale = |block: usize| 1.0 + block as f32;
            let mut transposed = vec![f32::NAN; rows.len() * columns.len()];
            let part = [rows.clone(), columns.clone()];
            unpack_transposed(&words, width, part, scale, &mut transposed);
            let mut row = vec![0.0; columns.len()];
            for (at, first) in rows.clone().map(|row| row * width).enumerate() {
                unpack(
                    &words,
                    first + columns.start..first + columns.end,
                    scale,
                    &mut row,
                );
                let found = transposed.iter().skip(at).step_by(rows.len());
                assert!(found.eq(&row), "row {at} of {rows:?}");
            }
        }
    }
}
