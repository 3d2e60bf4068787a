//! Elements in memory, as a pass reads and writes them.

use std::mem;

use half::bf16;

use super::super::powers::{BYTES, Scale};
use super::super::{BLOCK, Kind};

/// Elements that are read and written.
#[derive(Debug)]
pub enum Buffer<'a> {
    /// In f32.
    F32(&'a mut [f32]),
    /// In bf16.
    Bf16(&'a mut [bf16]),
    /// In 8 bits.
    EightBit {
        /// The words of the blocks, as bytes.
        blocks: &'a mut [u8],
        /// The kind of the numbers.
        kind: Kind,
    },
}

impl<'a> Buffer<'a> {
    /// Numbers in 8 bits.
    pub fn of_words(words: &'a mut [i32], kind: Kind) -> Self {
        let blocks = bytemuck::cast_slice_mut(words);
        Self::EightBit { blocks, kind }
    }

    /// Takes off the first elements: a multiple of [`BLOCK`], or all.
    pub(super) fn take(&mut self, count: usize) -> Self {
        match self {
            Self::F32(floats) => Self::F32(take(floats, count)),
            Self::Bf16(floats) => Self::Bf16(take(floats, count)),
            Self::EightBit { blocks, kind } => Self::EightBit {
                blocks: take(blocks, count.div_ceil(BLOCK) * BYTES),
                kind: *kind,
            },
        }
    }

    #[inline(always)]
    pub(super) fn load(&self, block: usize, numbers: &mut [f32; BLOCK]) {
        let source = match self {
            Self::F32(floats) => Source::F32(floats),
            Self::Bf16(floats) => Source::Bf16(floats),
            Self::EightBit { blocks, kind } => Source::EightBit {
                blocks,
                kind: *kind,
            },
        };
        source.load(block, numbers);
    }

    /// The scale of a block, if it has one.
    #[inline(always)]
    pub(super) fn scale(&self, numbers: &[f32; BLOCK]) -> Option<Scale> {
        match self {
            Self::EightBit { kind, .. } => Some(kind.scale(numbers)),
            Self::F32(_) | Self::Bf16(_) => None,
        }
    }

    /// Writes the numbers of a block, rounded to those that are kept. The last one may hold more
    /// than there are, which are zero. `scale` is that of the block, `fractions` its noise, and `first`
    /// the place of the first number in its tensor.
    #[inline(always)]
    pub(super) fn store(
        &mut self,
        block: usize,
        numbers: &[f32; BLOCK],
        scale: Option<Scale>,
        fractions: Option<&[f32; BLOCK]>,
        first: usize,
    ) {
        let start = block * BLOCK;
        match self {
            Self::F32(floats) => {
                let end = floats.len().min(start + BLOCK);
                floats[start..end].copy_from_slice(&numbers[..end - start]);
            }
            Self::Bf16(floats) => {
                for (float, number) in floats[start..].iter_mut().zip(numbers) {
                    *float = bf16::from_f32(*number);
                }
            }
            Self::EightBit { blocks, kind } => {
                let bytes = &mut blocks.as_chunks_mut().0[block];
                let scale = scale.unwrap_or_else(|| kind.scale(numbers));
                kind.write(numbers, scale, bytes, fractions, first as u32);
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
        /// The words of the blocks, as bytes.
        blocks: &'a [u8],
        /// The kind of the numbers.
        kind: Kind,
    },
}

impl<'a> Source<'a> {
    /// Numbers in 8 bits.
    pub fn of_words(words: &'a [i32], kind: Kind) -> Self {
        let blocks = bytemuck::cast_slice(words);
        Self::EightBit { blocks, kind }
    }

    /// Reads the numbers of a block, as many as there are.
    #[inline(always)]
    pub(super) fn load(&self, block: usize, numbers: &mut [f32; BLOCK]) {
        let start = block * BLOCK;
        match self {
            Self::F32(floats) => {
                let end = floats.len().min(start + BLOCK);
                numbers[..end - start].copy_from_slice(&floats[start..end]);
            }
            Self::Bf16(floats) => {
                for (number, float) in numbers.iter_mut().zip(&floats[start..]) {
                    *number = float.to_f32();
                }
            }
            Self::EightBit { blocks, kind } => {
                kind.read(&blocks.as_chunks().0[block], numbers);
            }
        }
    }
}

/// Takes off the first elements of a slice.
pub(super) fn take<'a, T>(slice: &mut &'a mut [T], count: usize) -> &'a mut [T] {
    let (taken, rest) = mem::take(slice).split_at_mut(count);
    *slice = rest;
    taken
}
