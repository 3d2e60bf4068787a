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

    #[inline(always)]
    pub(super) fn len(&self) -> usize {
        match self {
            Self::F32(floats) => floats.len(),
            Self::Bf16(floats) => floats.len(),
            Self::EightBit { codes, .. } => codes.len(),
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
        let end = start + numbers.len();
        match self {
            Self::F32(floats) => numbers.copy_from_slice(&floats[start..end]),
            Self::Bf16(floats) => widen(&floats[start..end], numbers),
            Self::EightBit { codes, scales, map } => {
                map.dequantize(&codes[start..end], scales[start / BLOCK], numbers)
            }
        }
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

    /// Adds bf16 elements to numbers.
    #[inline(always)]
    pub(super) fn add_to(&self, start: usize, numbers: &mut [f32]) {
        let Self::Bf16(floats) = self else {
            unreachable!("what Kahan's summation carries is in bf16");
        };
        for (number, float) in numbers.iter_mut().zip(&floats[start..]) {
            *number += float.to_f32();
        }
    }

    /// Rounds to bf16 by chance; `first` is the place of the first number in the parameter.
    #[inline(always)]
    pub(super) fn store_stochastically(
        &mut self,
        start: usize,
        numbers: &[f32],
        key: u64,
        first: u64,
    ) {
        let Self::Bf16(floats) = self else {
            unreachable!("only weights in bf16 are rounded");
        };
        let floats = &mut floats[start..start + numbers.len()];
        for ((place, number), float) in (first..).zip(numbers).zip(floats) {
            *float = round_stochastically(*number, splitmix(key ^ splitmix(place)));
        }
    }
}

/// Rounds away from zero with the probability of the part that bf16 has no bits for.
#[inline(always)]
fn round_stochastically(number: f32, random: u64) -> bf16 {
    if !number.is_finite() {
        return bf16::from_f32(number);
    }
    let noise = (random >> 48) as u32;
    // Beyond the largest number the bits are those of infinity, as with rounding to the nearest.
    bf16::from_bits((number.to_bits().saturating_add(noise) >> 16) as u16)
}

/// SplitMix64 (Steele et al., 2014): a counter in, a random number out.
#[inline(always)]
fn splitmix(counter: u64) -> u64 {
    let mut bits = counter.wrapping_add(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[inline(always)]
fn widen(floats: &[bf16], numbers: &mut [f32]) {
    for (number, float) in numbers.iter_mut().zip(floats) {
        *number = float.to_f32();
    }
}

/// Elements that are only read.
#[derive(Clone, Copy)]
pub(super) enum Source<'a> {
    F32(&'a [f32]),
    Bf16(&'a [bf16]),
}

impl<'a> Source<'a> {
    pub(super) fn of(tensor: &'a FlexTensor) -> Self {
        match tensor.dtype() {
            DType::F32 => Self::F32(tensor.storage()),
            DType::BF16 => Self::Bf16(tensor.storage()),
            dtype => unreachable!("{dtype:?} was declined"),
        }
    }

    pub(super) fn split_at(self, place: usize) -> (Self, Self) {
        match self {
            Self::F32(floats) => {
                let (before, after) = floats.split_at(place);
                (Self::F32(before), Self::F32(after))
            }
            Self::Bf16(floats) => {
                let (before, after) = floats.split_at(place);
                (Self::Bf16(before), Self::Bf16(after))
            }
        }
    }

    #[inline(always)]
    pub(super) fn load(&self, start: usize, numbers: &mut [f32]) {
        let end = start + numbers.len();
        match self {
            Self::F32(floats) => numbers.copy_from_slice(&floats[start..end]),
            Self::Bf16(floats) => widen(&floats[start..end], numbers),
        }
    }
}

/// Reads a part of a state, starting at a multiple of [`BLOCK`].
pub(super) fn load_state(state: &Moment<Flex>, start: usize, numbers: &mut [f32]) {
    match state {
        Moment::Float(floats) => Source::of(floats).load(start, numbers),
        Moment::EightBit(blocks) => {
            let codes: &[u8] = bytemuck::cast_slice(blocks.codes.storage::<i32>());
            let codes = &codes[start..start + numbers.len()];
            let scale = blocks.scales.storage::<f32>()[start / BLOCK];
            blocks.map.dequantize(codes, scale, numbers);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_by_chance_is_right_on_average_and_exact_where_bf16_is() {
        let number = 1.0 + 3.0 / 512.0;
        let count = 100_000;
        let mean = (0..count)
            .map(|place| f64::from(round_stochastically(number, splitmix(place)).to_f32()))
            .sum::<f64>()
            / count as f64;
        // Steps of 2^-7 with probability 3/4: a deviation of 3.4e-3 an element, 1.1e-5 of the mean.
        assert!((mean - f64::from(number)).abs() < 5e-5, "{mean}");
        for exact in [0.0, -1.5, 2.0f32.powi(100)] {
            assert_eq!(round_stochastically(exact, u64::MAX).to_f32(), exact);
        }
        assert!(round_stochastically(f32::NAN, u64::MAX).is_nan());
        assert!(round_stochastically(-f32::INFINITY, u64::MAX).is_infinite());
        assert!(round_stochastically(f32::MAX, u64::MAX).is_infinite());
    }
}
