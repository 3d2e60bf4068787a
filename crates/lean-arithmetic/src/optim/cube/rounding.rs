//! Rounding to 16 bits: with noise, or with lost bits kept beside them.

use super::cubecl;
use cubecl::prelude::*;

use super::{Buffer, ViewMut, extract, insert};
use crate::optim::{BEYOND_F16, BIAS_OF_F16, MIXING, NORMAL_IN_F16, Split};

#[cube(launch, address_type = "dynamic")]
pub(super) fn stochastically<N: Size>(numbers: &mut ViewMut<Vector<f32, N>>, hash: u32, turn: u32) {
    if !numbers.is_in_bounds(ABSOLUTE_POS) {
        terminate!();
    }
    let exact = numbers.read(ABSOLUTE_POS);
    let mut rounded = Vector::<f32, N>::empty();
    #[unroll]
    for lane in 0..N::value() {
        let place = (ABSOLUTE_POS * N::value() + lane) as u32;
        let noise = noise_at(place, hash, turn);
        insert::<N>(&mut rounded, lane, round(extract::<N>(exact, lane), noise));
    }
    numbers.write(ABSOLUTE_POS, rounded);
}

/// Rounds away from zero with the probability of the part that bf16 has no bits for.
#[cube]
fn round(number: f32, noise: u32) -> f32 {
    let bits = u32::reinterpret(number);
    let is_finite = (bits & 0x7f80_0000u32) != 0x7f80_0000u32;
    let rounded = (bits + (noise >> 16)) & 0xffff_0000u32;
    f32::reinterpret(select(is_finite, rounded, bits))
}

/// Splits the numbers of a word of lower bits, or joins them. The views are of single numbers: a
/// unit has a word to itself.
#[cube(launch, address_type = "dynamic")]
pub(super) fn by_words(
    numbers: &mut ViewMut<f32>,
    low: &mut Buffer<i32>,
    hash: u32,
    turn: u32,
    #[comptime] split: Split,
    #[comptime] with_noise: bool,
    #[comptime] joins: bool,
) {
    let in_word = comptime!(split.in_word());
    let low_bits = comptime!(split.low_bits());
    let mask = comptime!((1u32 << split.low_bits()) - 1);
    if !numbers.is_in_bounds(in_word * ABSOLUTE_POS) {
        terminate!();
    }
    let mut word = u32::reinterpret(low[ABSOLUTE_POS]);
    if comptime!(!joins) {
        word = 0u32;
    }
    #[unroll]
    for number in 0..in_word {
        let place = in_word * ABSOLUTE_POS + number;
        let shift = comptime!(split.low_bits() * number as u32);
        if numbers.is_in_bounds(place) {
            let exact = u32::reinterpret(numbers.read(place));
            let sign = exact & 0x8000_0000u32;
            if comptime!(joins) {
                let bits = narrow(exact, 0u32, split);
                let own = (word >> shift) & mask;
                let was_rounded_up = own >> comptime!(split.low_bits() - 1);
                let is_kept =
                    bits > comptime!(split.infinite()) || (bits == 0u32 && was_rounded_up == 1u32);
                let joined = (bits - (was_rounded_up << low_bits)) | own;
                let joined = widen(select(is_kept, bits, joined), split);
                numbers.write(place, f32::reinterpret(joined | sign));
            } else {
                let mut noise = 0u32;
                if comptime!(with_noise) {
                    noise = noise_at(place as u32, hash, turn);
                }
                let bits = narrow(exact, noise, split);
                let middle = comptime!(1u32 << (split.low_bits() - 1));
                let nearest = widen(
                    (bits + middle) & comptime!(!((1u32 << split.low_bits()) - 1)),
                    split,
                );
                numbers.write(place, f32::reinterpret(nearest | sign));
                word |= (bits & mask) << shift;
            }
        }
    }
    if comptime!(!joins) {
        low[ABSOLUTE_POS] = i32::reinterpret(word);
    }
}

/// The same function as on the host, of bits.
#[cube]
fn narrow(number: u32, noise: u32, #[comptime] split: Split) -> u32 {
    let bits = number & 0x7fff_ffffu32;
    let infinite = comptime!(split.infinite());
    let narrow = if comptime!(split == Split::Bf16In32) {
        bits
    } else if comptime!(split == Split::Bf16In24) {
        (bits + (noise >> 24u32)) >> 8u32
    } else {
        // Of larger numbers the units are not used.
        let small = min(bits, NORMAL_IN_F16);
        let units = u32::cast_from(f32::reinterpret(small) * comptime!((1u64 << 40) as f32));
        let of_units = (units + (noise >> 24u32)) >> 8u32;
        let large = max(min(bits, BEYOND_F16), NORMAL_IN_F16);
        let of_bits = (large - BIAS_OF_F16 + (noise >> 27u32)) >> 5u32;
        select(bits < NORMAL_IN_F16, of_units, of_bits)
    };
    let is_nan = bits > 0x7f80_0000u32;
    select(
        is_nan,
        comptime!(split.infinite() | split.infinite() >> 1),
        min(narrow, infinite),
    )
}

/// The same function as on the host, of bits.
#[cube]
fn widen(bits: u32, #[comptime] split: Split) -> u32 {
    if comptime!(split == Split::Bf16In32) {
        bits
    } else if comptime!(split == Split::Bf16In24) {
        bits << 8u32
    } else {
        let infinite = comptime!(split.infinite());
        let small = f32::cast_from(bits) / comptime!((1u64 << 32) as f32);
        let finite = select(
            bits < comptime!(1u32 << 18),
            u32::reinterpret(small),
            (bits << 5u32) + BIAS_OF_F16,
        );
        let beyond = 0x7f80_0000u32 | ((max(bits, infinite) - infinite) << 5u32);
        select(bits >= infinite, beyond, finite)
    }
}

/// The same function as on the host.
#[cube]
pub(super) fn noise_at(place: u32, hash: u32, turn: u32) -> u32 {
    mixed(place ^ hash) + turn
}

/// The same function as on the host.
#[cube]
fn mixed(bits: u32) -> u32 {
    let bits = (bits ^ (bits >> 16)) * comptime!(MIXING[0]);
    let bits = (bits ^ (bits >> 15)) * comptime!(MIXING[1]);
    bits ^ (bits >> 16)
}
