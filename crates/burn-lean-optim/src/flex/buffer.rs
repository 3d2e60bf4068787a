//! Elements in memory, as a pass reads and writes them.

use burn::tensor::{DType, bf16};
use burn_flex::{Flex, FlexTensor};

use crate::{
    dynamic_map::{BLOCK, DynamicMap},
    moment::{EightBit, Moment},
};

/// Elements that are read and written.
pub(super) enum Buffer<'a> {
    F32(&'a mut [f32]),
    Bf16(&'a mut [bf16]),
    EightBit {
        codes: &'a mut [u8],
        scales: &'a mut [f32],
        map: DynamicMap,
    },
}

impl<'a> Buffer<'a> {
    /// The elements of a contiguous tensor, which is copied if it is shared.
    pub(super) fn of(tensor: &'a mut FlexTensor) -> Self {
        match tensor.dtype() {
            DType::F32 => Self::F32(tensor.storage_mut()),
            DType::BF16 => Self::Bf16(tensor.storage_mut()),
            dtype => unreachable!("{dtype:?} was declined"),
        }
    }

    pub(super) fn of_blocks(blocks: &'a mut EightBit<Flex>) -> Self {
        let codes = bytemuck::cast_slice_mut(blocks.codes.storage_mut::<i32>());
        Self::EightBit {
            codes: &mut codes[..blocks.shape.num_elements()],
            scales: blocks.scales.storage_mut(),
            map: blocks.map,
        }
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

    #[inline(always)]
    pub(super) fn store(&mut self, start: usize, numbers: &[f32]) {
        let end = start + numbers.len();
        match self {
            Self::F32(floats) => floats[start..end].copy_from_slice(numbers),
            Self::Bf16(floats) => {
                for (float, number) in floats[start..end].iter_mut().zip(numbers) {
                    *float = bf16::from_f32(*number);
                }
            }
            Self::EightBit { codes, scales, map } => {
                scales[start / BLOCK] = map.quantize(numbers, &mut codes[start..end]);
            }
        }
    }
}

/// Elements that are only read.
#[derive(Clone, Copy)]
pub(super) enum Source<'a> {
    F32(&'a [f32]),
    Bf16(&'a [bf16]),
    EightBit {
        codes: &'a [u8],
        scales: &'a [f32],
        map: DynamicMap,
    },
}

impl<'a> Source<'a> {
    pub(super) fn of(tensor: &'a FlexTensor) -> Self {
        match tensor.dtype() {
            DType::F32 => Self::F32(tensor.storage()),
            DType::BF16 => Self::Bf16(tensor.storage()),
            dtype => unreachable!("{dtype:?} was declined"),
        }
    }

    /// The elements of a contiguous state.
    pub(super) fn of_state(state: &'a Moment<Flex>) -> Self {
        match state {
            Moment::Float(floats) => Self::of(floats),
            Moment::EightBit(blocks) => Self::EightBit {
                codes: bytemuck::cast_slice(blocks.codes.storage::<i32>()),
                scales: blocks.scales.storage(),
                map: blocks.map,
            },
        }
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
