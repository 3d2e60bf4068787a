//! Moments in 8 bits: a cube of units for each block, and a word of four codes for each unit.

use super::cubecl;
use cubecl::prelude::*;

use super::interpreter::run;
use super::{Buffer, View, ViewMut, extract, insert, shared_words};
use crate::optim::program::Program;
use crate::optim::{BLOCK, DynamicMap};

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

/// Overwrites weight and states. In the first step, states are not read.
#[cube(launch, address_type = "dynamic")]
pub(super) fn step<N: Size>(
    weight: &mut ViewMut<Vector<f32, N>>,
    grad: &View<Vector<f32, N>>,
    factor: &Sequence<Buffer<f32>>,
    states: &mut Sequence<Blocks>,
    scalars: &Sequence<f32>,
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
        if is_inside {
            weight.write(place, *values.index(comptime!(program.results[0])));
        }
        #[unroll]
        for state in 0..states.len() {
            let value = *values.index(comptime!(program.results[state + 1]));
            stepped.push(select(is_inside, value, Vector::new(0.0)));
        }
    }
    #[unroll]
    for state in 0..states.len() {
        let mut numbers = Sequence::<Vector<f32, N>>::new();
        #[unroll]
        for part in 0..parts {
            numbers.push(*stepped.index(comptime!(part * states.len() + state)));
        }
        encode::<N>(states.index_mut(state), &numbers, unit);
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

/// Writes the numbers of a unit, together with the others of its block.
#[cube]
fn encode<N: Size>(blocks: &mut Blocks, numbers: &Sequence<Vector<f32, N>>, unit: usize) {
    // Compares as integers, of which NaN is the largest. A maximum of floats would lose it.
    let mut most = 0u32;
    #[unroll]
    for part in 0..numbers.len() {
        #[unroll]
        for lane in 0..N::value() {
            let magnitude = u32::reinterpret(f32::abs(extract::<N>(*numbers.index(part), lane)));
            most = max(most, magnitude);
        }
    }
    let scale = f32::reinterpret(most_of_block(most));
    // There may be more cubes than blocks.
    if UNIT_POS == 0 && CUBE_POS < blocks.scales.len() {
        blocks.scales[CUBE_POS] = scale;
    }
    let divisor = max(scale, f32::MIN_POSITIVE);
    let lanes = N::value();
    let mut word = 0u32;
    #[unroll]
    for part in 0..numbers.len() {
        #[unroll]
        for lane in 0..N::value() {
            let number = extract::<N>(*numbers.index(part), lane);
            // A positive number is never zero without a sign, as on the processor.
            let least = select(number > 0.0, 1u32, 0u32);
            let code = max(nearest(&*blocks, number / divisor), least);
            word |= code << comptime!(8 * (part * lanes + lane) as u32);
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
