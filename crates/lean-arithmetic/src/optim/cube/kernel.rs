//! The kernels for states in floats, and for sums.

use super::cubecl;
use cubecl::prelude::*;

use super::eight_bit::{Blocks, decode};
use super::interpreter::run;
use super::{Buffer, View, ViewMut, extract};
use crate::optim::program::Program;

/// Overwrites weight and states. In the first step, states are not read.
#[cube(launch, address_type = "dynamic")]
pub(super) fn step<N: Size>(
    weight: &mut ViewMut<Vector<f32, N>>,
    grad: &View<Vector<f32, N>>,
    states: &mut Sequence<ViewMut<Vector<f32, N>>>,
    scalars: &Sequence<f32>,
    #[comptime] first: bool,
    #[comptime] program: Program,
) {
    if !weight.is_in_bounds(ABSOLUTE_POS) {
        terminate!();
    }
    let mut values = Sequence::<Vector<f32, N>>::new();
    values.push(weight.read(ABSOLUTE_POS));
    values.push(grad.read(ABSOLUTE_POS));
    if comptime!(!first) {
        #[unroll]
        for place in 0..states.len() {
            values.push(states.index(place).read(ABSOLUTE_POS));
        }
    }
    run(&mut values, scalars, comptime!(program.clone()));
    weight.write(ABSOLUTE_POS, *values.index(comptime!(program.results[0])));
    #[unroll]
    for place in 0..states.len() {
        let result = comptime!(program.results[place + 1]);
        states
            .index_mut(place)
            .write(ABSOLUTE_POS, *values.index(result));
    }
}

/// Adds up the program's result over all elements, with states that are floats or in 8 bits, in as
/// many parts as there are `sums`.
#[cube(launch, address_type = "dynamic")]
pub(super) fn sum<N: Size>(
    grad: &View<Vector<f32, N>>,
    states: &Sequence<View<Vector<f32, N>>>,
    blocks: &Sequence<Blocks>,
    sums: &mut Buffer<f32>,
    scalars: &Sequence<f32>,
    #[comptime] program: Program,
) {
    if ABSOLUTE_POS >= sums.len() {
        terminate!();
    }
    let mut total = Vector::<f32, N>::new(0.0);
    for element in range_stepped(ABSOLUTE_POS, grad.shape(), sums.len()) {
        let mut values = Sequence::<Vector<f32, N>>::new();
        values.push(grad.read(element));
        #[unroll]
        for place in 0..states.len() {
            values.push(states.index(place).read(element));
        }
        #[unroll]
        for place in 0..blocks.len() {
            values.push(decode::<N>(blocks.index(place), element));
        }
        run(&mut values, scalars, comptime!(program.clone()));
        total += *values.index(comptime!(program.results[0]));
    }
    let mut sum = 0.0;
    #[unroll]
    for lane in 0..N::value() {
        sum += extract::<N>(total, lane);
    }
    sums[ABSOLUTE_POS] = sum;
}
