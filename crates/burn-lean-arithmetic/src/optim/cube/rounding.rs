//! Rounding to bf16 by chance.

use super::cubecl;
use cubecl::prelude::*;

use super::{ViewMut, extract, insert};
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

/// Away from zero with the probability of the part that bf16 has no bits for.
#[cube]
fn round(number: f32, random: u32) -> f32 {
    let bits = u32::reinterpret(number);
    let is_finite = (bits & 0x7f80_0000u32) != 0x7f80_0000u32;
    let rounded = (bits + (random >> 16)) & 0xffff_0000u32;
    f32::reinterpret(select(is_finite, rounded, bits))
}

/// As on the processor.
#[cube]
fn mixed(bits: u32) -> u32 {
    let bits = (bits ^ (bits >> 16)) * comptime!(MIXING[0]);
    let bits = (bits ^ (bits >> 15)) * comptime!(MIXING[1]);
    bits ^ (bits >> 16)
}
