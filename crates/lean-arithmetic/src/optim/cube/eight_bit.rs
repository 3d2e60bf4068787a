//! Moments in 8 bits: a cube of units for each block, and a word of four codes for each unit.

use super::cubecl;
use cubecl::prelude::*;

use super::interpreter::run;
use super::rounding::mixed;
use super::{Buffer, View, ViewMut, extract, insert, shared_words};
use crate::optim::program::Program;
use crate::optim::{BLOCK, DynamicMap, FRACTIONS};

/// Codes in a word.
pub(super) const WORD: usize = 4;
pub(super) const UNITS: usize = BLOCK / WORD;

/// Numbers in 8 bits, with the table of their codes.
#[derive(CubeType, CubeLaunch)]
pub(super) struct Blocks {
    codes: Buffer<i32>,
    scales: Buffer<f32>,
    /// The entries, and the middles between them from zero on.
    table: Buffer<f32>,
    /// Index of the entry zero.
    #[cube(comptime)]
    zero: i32,
}

/// The numbers that the codes of a map stand for, and the index of zero.
pub(super) fn table(map: DynamicMap) -> (Vec<f32>, i32) {
    let entries = map.entries();
    let zero = entries.iter().position(|entry| *entry == 0.0);
    let zero = zero.expect("zero is an entry of every map");
    let middles = entries[zero..].windows(2);
    let middles = middles.map(|pair| (pair[0] + pair[1]) / 2.0);
    let mut table: Vec<f32> = entries.iter().copied().chain(middles).collect();
    // No number lies above the entry after the last middle.
    table.resize(2 * BLOCK, f32::INFINITY);
    (table, zero as i32)
}

/// Overwrites weight and states. In the first step, states are not read. A state that is not
/// finite, which 8 bits cannot hold, becomes its weight.
#[cube(launch, address_type = "dynamic")]
#[expect(
    clippy::too_many_arguments,
    reason = "what a kernel takes is an argument each"
)]
pub(super) fn step<N: Size>(
    weight: &mut ViewMut<Vector<f32, N>>,
    grad: &View<Vector<f32, N>>,
    factor: &Sequence<Buffer<f32>>,
    states: &mut Sequence<Blocks>,
    scalars: &Sequence<f32>,
    low: u32,
    high: u32,
    #[comptime] by_chance: bool,
    #[comptime] first: bool,
    #[comptime] program: Program,
) {
    let unit = CUBE_POS * UNITS + UNIT_POS as usize;
    let lanes = N::value();
    let parts = comptime!(WORD / lanes);
    let mut stepped = Sequence::<Vector<f32, N>>::new();
    #[unroll]
    for part in 0..parts {
        let place = unit * parts + part;
        let is_inside = weight.is_in_bounds(place);
        // A unit beyond the end computes the first number again, and drops it: all units meet
        // below.
        let read = select(is_inside, place, 0);
        let mut values = Sequence::<Vector<f32, N>>::new();
        values.push(weight.read(read));
        values.push(grad.read(read));
        #[unroll]
        for place in 0..factor.len() {
            values.push(Vector::new(factor.index(place)[0]));
        }
        if comptime!(!first) {
            #[unroll]
            for state in 0..states.len() {
                values.push(decode::<N>(states.index(state), read));
            }
        }
        run(&mut values, scalars, comptime!(program.clone()));
        let mut shown = *values.index(comptime!(program.results[0]));
        #[unroll]
        for state in 0..states.len() {
            let value = *values.index(comptime!(program.results[state + 1]));
            shown = show_what_is_not_finite::<N>(shown, value);
            stepped.push(select(is_inside, value, Vector::new(0.0)));
        }
        if is_inside {
            weight.write(place, shown);
        }
    }
    #[unroll]
    for state in 0..states.len() {
        let mut numbers = Sequence::<Vector<f32, N>>::new();
        #[unroll]
        for part in 0..parts {
            numbers.push(*stepped.index(comptime!(part * states.len() + state)));
        }
        encode::<N>(
            states.index_mut(state),
            &numbers,
            unit,
            low,
            high,
            by_chance,
        );
    }
}

/// The numbers of a vector.
#[cube]
pub(super) fn decode<N: Size>(blocks: &Blocks, place: usize) -> Vector<f32, N> {
    let mut numbers = Vector::<f32, N>::empty();
    #[unroll]
    for lane in 0..N::value() {
        let number = place * N::value() + lane;
        let word = u32::reinterpret(blocks.codes[number / WORD]);
        let code = (word >> (8 * (number % WORD) as u32)) & 0xff;
        let number = blocks.table[code as usize] * blocks.scales[number / BLOCK];
        insert::<N>(&mut numbers, lane, number);
    }
    numbers
}

/// The weights, or numbers that are not finite in their place.
#[cube]
fn show_what_is_not_finite<N: Size>(
    weights: Vector<f32, N>,
    numbers: Vector<f32, N>,
) -> Vector<f32, N> {
    let mut shown = Vector::<f32, N>::empty();
    #[unroll]
    for lane in 0..N::value() {
        let number = extract::<N>(numbers, lane);
        let weight = extract::<N>(weights, lane);
        insert::<N>(&mut shown, lane, select(is_finite(number), weight, number));
    }
    shown
}

/// By its bits: a compiler may take it for granted that there are no others.
#[cube]
fn is_finite(number: f32) -> bool {
    (u32::reinterpret(number) & 0x7f80_0000u32) != 0x7f80_0000u32
}

/// Writes the numbers of a unit, together with the others of its block.
#[cube]
fn encode<N: Size>(
    blocks: &mut Blocks,
    numbers: &Sequence<Vector<f32, N>>,
    unit: usize,
    low: u32,
    high: u32,
    #[comptime] by_chance: bool,
) {
    // As integers, since positive floats are in the order of their bits.
    let mut most = 0u32;
    #[unroll]
    for part in 0..numbers.len() {
        #[unroll]
        for lane in 0..N::value() {
            let number = extract::<N>(*numbers.index(part), lane);
            let magnitude = u32::reinterpret(f32::abs(number));
            most = max(most, select(is_finite(number), magnitude, 0u32));
        }
    }
    let scale = max(f32::reinterpret(most_of_block(most)), f32::MIN_POSITIVE);
    // There may be more cubes than blocks.
    if UNIT_POS == 0 && CUBE_POS < blocks.scales.len() {
        blocks.scales[CUBE_POS] = scale;
    }
    let lanes = N::value();
    let by_chance = comptime!(by_chance && blocks.zero == 0);
    let mut word = 0u32;
    #[unroll]
    for part in 0..numbers.len() {
        #[unroll]
        for lane in 0..N::value() {
            let number = extract::<N>(*numbers.index(part), lane);
            let number = select(is_finite(number), number, 0.0);
            let in_word = comptime!((part * lanes + lane) as u32);
            // A positive number is never zero without a sign, as on the processor.
            let least = select(number > 0.0, 1u32, 0u32);
            let code = if comptime!(by_chance) {
                let random = mixed(mixed(((unit * WORD) as u32 + in_word) ^ low) ^ high);
                beside(&*blocks, number / scale, random)
            } else {
                nearest(&*blocks, number / scale)
            };
            word |= max(code, least) << comptime!(8 * in_word);
        }
    }
    if unit < blocks.codes.len() {
        blocks.codes[unit] = i32::reinterpret(word);
    }
}

/// The largest of the numbers that the units of a cube have.
#[cube]
fn most_of_block(own: u32) -> u32 {
    let mut shared = shared_words(UNITS);
    let unit = UNIT_POS as usize;
    shared[unit] = own;
    sync_cube();
    #[unroll]
    for halving in 1..=UNITS.ilog2() {
        let others = comptime!(UNITS >> halving);
        if unit < others {
            shared[unit] = max(shared[unit], shared[unit + others]);
        }
        sync_cube();
    }
    let most = shared[0];
    // The next state uses the same memory.
    sync_cube();
    most
}

/// The code of the entry that is nearest to a number of at most one.
#[cube]
fn nearest(blocks: &Blocks, number: f32) -> u32 {
    let magnitude = f32::abs(number);
    // Binary search: the number of middles below it.
    let mut below = 0usize;
    #[unroll]
    for halving in 1..=BLOCK.ilog2() {
        let half = comptime!(BLOCK >> halving);
        let is_above = magnitude > blocks.table[BLOCK - 1 + half + below];
        below += select(is_above, half, 0usize);
    }
    let below = below as i32;
    let signed = select(number < 0.0, -below, below);
    // There is no -1: the last entry below zero is nearest.
    u32::cast_from(max(blocks.zero + signed, 0))
}

/// The code of one of the two entries beside a number from zero to one, where zero has the first
/// code: the nearer one with the larger probability. As on the processor.
#[cube]
fn beside(blocks: &Blocks, number: f32, random: u32) -> u32 {
    // The last entry that is not above it, by halves.
    let mut below = 0usize;
    #[unroll]
    for halving in 1..=BLOCK.ilog2() {
        let half = comptime!(BLOCK >> halving);
        let is_above = number >= blocks.table[half + below];
        below += select(is_above, half, 0usize);
    }
    let entry = blocks.table[below];
    let above = blocks.table[min(below + 1, BLOCK - 1)];
    let threshold = f32::cast_from(random >> 8) / comptime!(FRACTIONS);
    let is_up = number - entry > threshold * (above - entry);
    u32::cast_from(below) + select(is_up, 1u32, 0u32)
}
