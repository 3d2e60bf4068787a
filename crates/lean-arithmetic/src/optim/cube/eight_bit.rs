//! Moments in 8 bits: a unit for each word of four codes, and as many blocks as fit to a cube.

use super::cubecl;
use cubecl::prelude::*;

use super::interpreter::run;
use super::rounding::noise_at;
use super::{Buffer, View, ViewMut, extract, insert, shared_words};
use crate::optim::program::Program;
use crate::optim::{BLOCK, FRACTIONS, GOLDEN_RATIO, Kind, LEAST_SCALE, WORDS};

/// Codes in a word.
pub(super) const WORD: usize = 4;
/// Units of a block.
const UNITS: usize = BLOCK / WORD;
/// Units of a cube, of four blocks.
pub(super) const CUBE: usize = 4 * UNITS;

/// Numbers in 8 bits.
#[derive(CubeType, CubeLaunch)]
pub(super) struct Blocks {
    words: Buffer<i32>,
    #[cube(comptime)]
    kind: Kind,
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
    states: &mut Sequence<Blocks>,
    scalars: &Sequence<f32>,
    hash: u32,
    turn: u32,
    #[comptime] counts_steps: bool,
    #[comptime] first: bool,
    #[comptime] program: Program,
) {
    let unit = CUBE_POS * CUBE + UNIT_POS as usize;
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
            hash,
            turn,
            counts_steps,
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
        let block = number / BLOCK * WORDS;
        let word = u32::reinterpret(blocks.words[block + number % BLOCK / WORD]);
        let scale = f32::reinterpret(blocks.words[block + UNITS]);
        let code = (word >> (8 * (number % WORD) as u32)) & 0xff;
        let root_of_code = scale / comptime!(blocks.kind.most());
        let number = if comptime!(blocks.kind == Kind::Signed) {
            let code = f32::cast_from(code) - select(code > 127, 256.0, 0.0);
            let root = code * root_of_code;
            root * f32::abs(root)
        } else {
            power(f32::cast_from(code) * root_of_code, comptime!(blocks.kind))
        };
        insert::<N>(&mut numbers, lane, number);
    }
    numbers
}

/// As on the processor.
#[cube]
fn power(root: f32, #[comptime] kind: Kind) -> f32 {
    let square = root * root;
    if comptime!(kind == Kind::Signed) {
        square
    } else {
        square * square
    }
}

/// As on the processor.
#[cube]
fn root(magnitude: f32, #[comptime] kind: Kind) -> f32 {
    let root = f32::sqrt(magnitude);
    if comptime!(kind == Kind::Signed) {
        root
    } else {
        f32::sqrt(root)
    }
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
    hash: u32,
    turn: u32,
    #[comptime] counts_steps: bool,
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
    let kind = comptime!(blocks.kind);
    let scale = root(f32::reinterpret(most_of_block(most)), kind);
    let scale = min(max(scale, LEAST_SCALE), comptime!(kind.largest_scale()));
    let code_of_root = comptime!(kind.most()) / scale;
    let root_of_code = scale / comptime!(kind.most());
    let hash = if comptime!(counts_steps) {
        hash
    } else {
        u32::reinterpret(scale) * comptime!(GOLDEN_RATIO)
    };
    let lanes = N::value();
    let mut word = 0u32;
    #[unroll]
    for part in 0..numbers.len() {
        #[unroll]
        for lane in 0..N::value() {
            let number = extract::<N>(*numbers.index(part), lane);
            let number = select(is_finite(number), number, 0.0);
            let in_word = comptime!((part * lanes + lane) as u32);
            let magnitude = f32::abs(number);
            let of_number = root(magnitude, kind) * code_of_root;
            let noise = noise_at((unit * WORD) as u32 + in_word, hash, turn);
            let threshold = f32::cast_from(noise >> 8) / comptime!(FRACTIONS);
            let below = f32::floor(of_number);
            let least = power(below * root_of_code, kind);
            let gap = power((below + 1.0) * root_of_code, kind) - least;
            let is_up = magnitude - least > threshold * gap;
            let code = below + select(is_up, 1.0, 0.0);
            let code = u32::cast_from(min(code, comptime!(kind.most())));
            let code = if comptime!(kind == Kind::Signed) {
                select(number < 0.0, (256 - code) & 0xff, code)
            } else {
                // A positive number is never zero without a sign, as on the processor.
                max(code, select(number > 0.0, 1u32, 0u32))
            };
            word |= code << comptime!(8 * in_word);
        }
    }
    let block = unit / UNITS * WORDS;
    // There may be more cubes than blocks.
    if block < blocks.words.len() {
        let in_block = unit % UNITS;
        blocks.words[block + in_block] = i32::reinterpret(word);
        if in_block == 0 {
            blocks.words[block + UNITS] = i32::reinterpret(scale);
        }
    }
}

/// The largest of the numbers that the units of a block have.
#[cube]
fn most_of_block(own: u32) -> u32 {
    let mut shared = shared_words(CUBE);
    let unit = UNIT_POS as usize;
    shared[unit] = own;
    sync_cube();
    #[unroll]
    for halving in 1..=UNITS.ilog2() {
        let others = comptime!(UNITS >> halving);
        if unit % UNITS < others {
            shared[unit] = max(shared[unit], shared[unit + others]);
        }
        sync_cube();
    }
    let most = shared[unit / UNITS * UNITS];
    // The next state uses the same memory.
    sync_cube();
    most
}
