//! Elements in memory, as a pass reads and writes them.

use half::bf16;

use super::super::{BLOCK, DynamicMap, Noise};

/// Elements that are read and written.
#[derive(Debug)]
pub enum Buffer<'a> {
    /// In f32.
    F32(&'a mut [f32]),
    /// In bf16.
    Bf16(&'a mut [bf16]),
    /// In 8 bits.
    EightBit {
        /// A code for each element.
        codes: &'a mut [u8],
        /// A scale for each block.
        scales: &'a mut [f32],
        /// The numbers that the codes stand for.
        map: DynamicMap,
    },
}

impl<'a> Buffer<'a> {
    /// A buffer of `numbers` numbers in 8 bits, with four codes in a word.
    pub fn of_words(
        words: &'a mut [i32],
        scales: &'a mut [f32],
        map: DynamicMap,
        numbers: usize,
    ) -> Self {
        let codes = &mut bytemuck::cast_slice_mut(words)[..numbers];
        Self::EightBit { codes, scales, map }
    }

    /// Two parts; `place` is a multiple of [`BLOCK`].
    pub(super) fn split_at(self, place: usize) -> (Self, Self) {
        match self {
            Self::F32(floats) => {
                let (before, after) = floats.split_at_mut(place);
                (Self::F32(before), Self::F32(after))
            }
            Self::Bf16(floats) => {
                let (before, after) = floats.split_at_mut(place);
                (Self::Bf16(before), Self::Bf16(after))
            }
            Self::EightBit { codes, scales, map } => {
                let (before, after) = codes.split_at_mut(place);
                let (scales_before, scales_after) = scales.split_at_mut(place / BLOCK);
                let part = |codes, scales| Self::EightBit { codes, scales, map };
                (part(before, scales_before), part(after, scales_after))
            }
        }
    }

    #[inline(always)]
    pub(super) fn load(&self, start: usize, numbers: &mut [f32]) {
        let source = match self {
            Self::F32(floats) => Source::F32(floats),
            Self::Bf16(floats) => Source::Bf16(floats),
            Self::EightBit { codes, scales, map } => Source::EightBit {
                codes,
                scales,
                map: *map,
            },
        };
        source.load(start, numbers);
    }

    /// Writes numbers, rounded to those that are kept. `first` is the place of the first of them
    /// among all of their tensor, for rounding by chance.
    #[inline(always)]
    pub(super) fn store(
        &mut self,
        start: usize,
        numbers: &[f32],
        noise: Option<Noise>,
        first: usize,
    ) {
        let end = start + numbers.len();
        match self {
            Self::F32(floats) => floats[start..end].copy_from_slice(numbers),
            Self::Bf16(floats) => {
                for (float, number) in floats[start..end].iter_mut().zip(numbers) {
                    *float = bf16::from_f32(*number);
                }
            }
            Self::EightBit { codes, scales, map } => {
                scales[start / BLOCK] =
                    map.quantize(numbers, &mut codes[start..end], noise, first as u32);
            }
        }
    }
}

/// Elements that are only read.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    /// In f32.
    F32(&'a [f32]),
    /// In bf16.
    Bf16(&'a [bf16]),
    /// In 8 bits.
    EightBit {
        /// A code for each element.
        codes: &'a [u8],
        /// A scale for each block.
        scales: &'a [f32],
        /// The numbers that the codes stand for.
        map: DynamicMap,
    },
}

impl<'a> Source<'a> {
    /// Numbers in 8 bits, with four codes to a word.
    pub fn of_words(words: &'a [i32], scales: &'a [f32], map: DynamicMap) -> Self {
        let codes = bytemuck::cast_slice(words);
        Self::EightBit { codes, scales, map }
    }

    #[inline(always)]
    pub(super) fn load(&self, start: usize, numbers: &mut [f32]) {
        let end = start + numbers.len();
        match self {
            Self::F32(floats) => numbers.copy_from_slice(&floats[start..end]),
            Self::Bf16(floats) => {
                for (number, float) in numbers.iter_mut().zip(&floats[start..end]) {
                    *number = float.to_f32();
                }
            }
            Self::EightBit { codes, scales, map } => {
                map.dequantize(&codes[start..end], scales[start / BLOCK], numbers);
            }
        }
    }
}
