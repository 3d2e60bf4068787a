//! Runs a program, one operation after the other.

use super::cubecl;
use cubecl::prelude::*;

use super::{greater_equal, less_than};
use crate::optim::program::{Operation, Program};

/// Appends the result of each operation to the values.
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
