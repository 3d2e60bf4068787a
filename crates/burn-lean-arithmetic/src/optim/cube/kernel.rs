//! The kernels: what a program computes of each element.

use super::cubecl;
use cubecl::prelude::*;

use super::eight_bit::{Blocks, decode};
use super::{Buffer, View, ViewMut, extract, greater_equal, less_than};
use crate::optim::program::{Operation, Program};

/// Writes weight and states in their place. In the first step the states are only written.
#[cube(launch, address_type = "dynamic")]
pub(super) fn step<N: Size>(
    weight: &mut ViewMut<Vector<f32, N>>,
    grad: &View<Vector<f32, N>>,
    factor: &Sequence<Buffer<f32>>,
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
    #[unroll]
    for place in 0..factor.len() {
        values.push(Vector::new(factor.index(place)[0]));
    }
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
    factor: &Sequence<Buffer<f32>>,
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
        for place in 0..factor.len() {
            values.push(Vector::new(factor.index(place)[0]));
        }
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

/// Puts what each operation makes behind the values.
#[cube]
pub(super) fn run<N: Size>(
    values: &mut Sequence<Vector<f32, N>>,
    scalars: &Sequence<f32>,
    #[comptime] program: Program,
) {
    #[unroll]
    for place in 0..program.operations.len() {
        let value = apply::<N>(&*values, scalars, comptime!(program.operations[place]));
        values.push(value);
    }
}

#[cube]
fn apply<N: Size>(
    values: &Sequence<Vector<f32, N>>,
    scalars: &Sequence<f32>,
    #[comptime] operation: Operation,
) -> Vector<f32, N> {
    match operation {
        Operation::Scalar(place) => Vector::new(*scalars.index(place)),
        Operation::Zero => Vector::new(0.0),
        Operation::Add(one, other) => *values.index(one) + *values.index(other),
        Operation::Sub(one, other) => *values.index(one) - *values.index(other),
        Operation::Mul(one, other) => *values.index(one) * *values.index(other),
        Operation::Div(one, other) => *values.index(one) / *values.index(other),
        Operation::Sqrt(one) => Vector::sqrt(*values.index(one)),
        Operation::Sign(one) => sign(*values.index(one)),
        Operation::Max(one, other) => max_pair(*values.index(one), *values.index(other)),
        Operation::Clip(one, other) => clip(*values.index(one), *values.index(other)),
        Operation::ZeroWhereSignsDiffer(value, one, other) => zero_where_signs_differ(
            *values.index(value),
            *values.index(one),
            *values.index(other),
        ),
    }
}

#[cube]
fn sign<N: Size>(value: Vector<f32, N>) -> Vector<f32, N> {
    let zero = Vector::new(0.0);
    let sign = select_many(less_than(value, zero), Vector::new(-1.0), zero);
    select_many(less_than(zero, value), Vector::new(1.0), sign)
}

#[cube]
fn max_pair<N: Size>(one: Vector<f32, N>, other: Vector<f32, N>) -> Vector<f32, N> {
    select_many(less_than(one, other), other, one)
}

#[cube]
fn clip<N: Size>(value: Vector<f32, N>, threshold: Vector<f32, N>) -> Vector<f32, N> {
    let least = Vector::new(0.0) - threshold;
    let clipped = select_many(less_than(threshold, value), threshold, value);
    select_many(less_than(value, least), least, clipped)
}

#[cube]
fn zero_where_signs_differ<N: Size>(
    value: Vector<f32, N>,
    one: Vector<f32, N>,
    other: Vector<f32, N>,
) -> Vector<f32, N> {
    let zero = Vector::new(0.0);
    let if_positive = select_many(greater_equal(other, zero), value, zero);
    let if_negative = select_many(greater_equal(other, zero), zero, value);
    select_many(greater_equal(one, zero), if_positive, if_negative)
}
