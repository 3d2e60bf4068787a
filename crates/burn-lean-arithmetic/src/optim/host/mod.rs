//! One pass over memory on the processor.

mod buffer;
mod vector;

use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;

use super::{BLOCK, Clip, Measure, Noise, Rule};

pub use buffer::{Buffer, Source};

/// Elements that a thread takes at once: enough to be worth its waking up, few enough to share
/// evenly.
const CHUNK: usize = 64 * BLOCK;

/// Steps the elements of slices of the same length, in their place. In the first step (`fresh`)
/// the states are only written.
pub fn step<R: Rule<N>, const N: usize>(
    rule: &R,
    clip: Clip,
    fresh: bool,
    weight: &mut [f32],
    grad: &[f32],
    states: [Buffer<'_>; N],
) {
    let count = weight.len();
    let lanes = Lanes {
        weight,
        grad,
        states,
    };
    let pass = Pass {
        rule: *rule,
        clip,
        fresh,
    };
    let step = |lanes: Lanes<'_, N>| Arch::new().dispatch(Step { pass, lanes });
    let chunks = lanes.chunks(count);
    if chunks.len() == 1 {
        chunks.into_iter().for_each(step);
    } else {
        chunks.into_par_iter().for_each(step);
    }
}

/// The mean of a measure over all elements; without states in the first step.
pub fn mean<M: Measure<N>, const N: usize>(
    measure: &M,
    clip: Clip,
    grad: &[f32],
    states: Option<[Source<'_>; N]>,
) -> f32 {
    let count = grad.len();
    let starts: Vec<usize> = (0..count).step_by(BLOCK).collect();
    let sum_of = |start: &usize| -> f64 {
        let length = BLOCK.min(count - start);
        let mut grads = [0.0; BLOCK];
        grads[..length].copy_from_slice(&grad[*start..start + length]);
        let grads = grads.map(|grad| clip.clip(grad));
        let mut values = [[0.0; BLOCK]; N];
        for (state, values) in states.iter().flatten().zip(&mut values) {
            state.load(*start, &mut values[..length]);
        }
        let measured = (0..length).map(|place| match states {
            Some(_) => measure.next(grads[place], values.each_ref().map(|values| values[place])),
            None => measure.first(grads[place]),
        });
        measured.map(f64::from).sum()
    };
    // The sums of the blocks add up in their order, on however many threads they were made.
    let sums: Vec<f64> = starts
        .par_iter()
        .with_min_len(CHUNK / BLOCK)
        .map(sum_of)
        .collect();
    (sums.iter().sum::<f64>() / count as f64) as f32
}

/// Rounds numbers to one of their two neighbours in bf16, the nearer one with the larger
/// probability.
pub fn round_stochastically(numbers: &[f32], rounded: &mut [half::bf16], noise: Noise) {
    let chunks = rounded.par_chunks_mut(CHUNK).zip(numbers.par_chunks(CHUNK));
    chunks.enumerate().for_each(|(chunk, (rounded, numbers))| {
        let first = (chunk * CHUNK) as u32;
        for ((place, number), rounded) in (0u32..).zip(numbers).zip(rounded) {
            let bits = noise.round_to_bf16(*number, first.wrapping_add(place));
            *rounded = half::bf16::from_bits(bits);
        }
    });
}

/// The same elements of everything that a step reads and writes.
struct Lanes<'a, const N: usize> {
    weight: &'a mut [f32],
    grad: &'a [f32],
    states: [Buffer<'a>; N],
}

impl<'a, const N: usize> Lanes<'a, N> {
    fn chunks(self, count: usize) -> Vec<Self> {
        let mut chunks = Vec::with_capacity(count.div_ceil(CHUNK));
        let (mut rest, mut left) = (self, count);
        while left > CHUNK {
            let (chunk, after) = rest.split_at(CHUNK);
            chunks.push(chunk);
            (rest, left) = (after, left - CHUNK);
        }
        chunks.push(rest);
        chunks
    }

    fn split_at(self, place: usize) -> (Self, Self) {
        let (weight, weight_after) = self.weight.split_at_mut(place);
        let (grad, grad_after) = self.grad.split_at(place);
        let mut after = Vec::with_capacity(N);
        let states = self.states.map(|state| {
            let (before, rest) = state.split_at(place);
            after.push(rest);
            before
        });
        let states_after = after
            .try_into()
            .unwrap_or_else(|_| unreachable!("as many as states"));
        let before = Self {
            weight,
            grad,
            states,
        };
        let after = Self {
            weight: weight_after,
            grad: grad_after,
            states: states_after,
        };
        (before, after)
    }
}

/// What is done to all elements of a parameter.
#[derive(Clone, Copy)]
struct Pass<R> {
    rule: R,
    clip: Clip,
    /// Whether it is the first step.
    fresh: bool,
}

struct Step<'a, R, const N: usize> {
    pass: Pass<R>,
    lanes: Lanes<'a, N>,
}

impl<R: Rule<N>, const N: usize> WithSimd for Step<'_, R, N> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { pass, mut lanes } = self;
        match floats(&mut lanes.states) {
            Some(states) => {
                let Lanes { weight, grad, .. } = lanes;
                vector::step(simd, pass.rule, pass.clip, pass.fresh, weight, grad, states);
            }
            None => step_by_blocks(simd, pass, lanes),
        }
    }
}

/// The states themselves, if all of them have 32 bits and need not be copied to be computed with.
fn floats<'a, const N: usize>(states: &'a mut [Buffer<'_>; N]) -> Option<[&'a mut [f32]; N]> {
    let mut floats = states.each_mut().map(|state| match state {
        Buffer::F32(state) => Some(&mut **state),
        _ => None,
    });
    let all = floats.iter().all(Option::is_some);
    all.then(|| {
        floats
            .each_mut()
            .map(|state| state.take().expect("all are there"))
    })
}

#[inline(always)]
fn step_by_blocks<S: Simd, R: Rule<N>, const N: usize>(
    simd: S,
    pass: Pass<R>,
    lanes: Lanes<'_, N>,
) {
    let Lanes {
        weight,
        grad,
        mut states,
    } = lanes;
    let mut floats = [[0.0; BLOCK]; N];
    let blocks = weight.chunks_mut(BLOCK).zip(grad.chunks(BLOCK));
    for (block, (weight, grad)) in blocks.enumerate() {
        let (start, length) = (block * BLOCK, weight.len());
        if !pass.fresh {
            for (state, floats) in states.iter().zip(&mut floats) {
                state.load(start, &mut floats[..length]);
            }
        }
        let values = floats.each_mut().map(|floats| &mut floats[..length]);
        vector::step(simd, pass.rule, pass.clip, pass.fresh, weight, grad, values);
        for (state, floats) in states.iter_mut().zip(&floats) {
            state.store(start, &floats[..length]);
        }
    }
}
