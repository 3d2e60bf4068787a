//! Rounding to bf16: by chance, or with the lost bits kept beside it.

use super::cubecl;
use cubecl::prelude::*;

use super::{Buffer, ViewMut, extract, insert};
use crate::optim::MIXING;

#[cube(launch, address_type = "dynamic")]
pub(super) fn stochastically<N: Size>(numbers: &mut ViewMut<Vector<f32, N>>, low: u32, high: u32) {
    if !numbers.is_in_bounds(ABSOLUTE_POS) {
        terminate!();
    }
    let exact = numbers.read(ABSOLUTE_POS);
    let mut rounded = Vector::<f32, N>::empty();
    #[unroll]
    for lane in 0..N::value() {
        let place = (ABSOLUTE_POS * N::value() + lane) as u32;
        let random = mixed(mixed(place ^ low) ^ high);
        insert::<N>(&mut rounded, lane, round(extract::<N>(exact, lane), random));
    }
    numbers.write(ABSOLUTE_POS, rounded);
}

/// Rounds away from zero with the probability of the part that bf16 has no bits for.
#[cube]
fn round(number: f32, random: u32) -> f32 {
    let bits = u32::reinterpret(number);
    let is_finite = (bits & 0x7f80_0000u32) != 0x7f80_0000u32;
    let rounded = (bits + (random >> 16)) & 0xffff_0000u32;
    f32::reinterpret(select(is_finite, rounded, bits))
}

/// Splits two numbers to a word, or joins them. The views are of single numbers: a unit has a word
/// of the lower halves to itself.
#[cube(launch, address_type = "dynamic")]
pub(super) fn by_halves(
    numbers: &mut ViewMut<f32>,
    low: &mut Buffer<i32>,
    #[comptime] rejoins: bool,
) {
    if !numbers.is_in_bounds(2 * ABSOLUTE_POS) {
        terminate!();
    }
    let mut word = u32::reinterpret(low[ABSOLUTE_POS]);
    if comptime!(!rejoins) {
        word = 0u32;
    }
    #[unroll]
    for half in 0..2usize {
        let place = 2 * ABSOLUTE_POS + half;
        let shift = comptime!(16 * half as u32);
        if numbers.is_in_bounds(place) {
            let bits = u32::reinterpret(numbers.read(place));
            if comptime!(rejoins) {
                let joined = join(bits, (word >> shift) & 0xffffu32);
                numbers.write(place, f32::reinterpret(joined));
            } else {
                let bits = without_payload(bits);
                let nearest = (bits + 0x8000u32) & 0xffff_0000u32;
                numbers.write(place, f32::reinterpret(nearest));
                word |= (bits & 0xffffu32) << shift;
            }
        }
    }
    if comptime!(!rejoins) {
        low[ABSOLUTE_POS] = i32::reinterpret(word);
    }
}

/// The same function as on the host.
#[cube]
fn without_payload(bits: u32) -> u32 {
    let is_nan = (bits & 0x7fff_ffffu32) > 0x7f80_0000u32;
    select(is_nan, (bits & 0xffff_0000u32) | 0x0040_0000u32, bits)
}

/// The same function as on the host.
#[cube]
fn join(nearest: u32, low: u32) -> u32 {
    let was_rounded_up = low >> 15u32;
    let is_zero = (nearest & 0x7fff_ffffu32) == 0u32;
    let joined = (nearest - (was_rounded_up << 16u32)) | low;
    select(is_zero && was_rounded_up == 1u32, nearest, joined)
}

/// The same function as on the host.
#[cube]
pub(super) fn mixed(bits: u32) -> u32 {
    let bits = (bits ^ (bits >> 16)) * comptime!(MIXING[0]);
    let bits = (bits ^ (bits >> 15)) * comptime!(MIXING[1]);
    bits ^ (bits >> 16)
}
