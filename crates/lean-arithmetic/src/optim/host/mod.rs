//! One pass over memory on the processor.

mod buffer;
mod vector;

use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;

use super::powers::noise_of_block;
use super::{BLOCK, Clip, Measure, Noise, Rule, Split};

use buffer::take;
pub use buffer::{Buffer, Source};

/// Elements that a thread takes at once: enough to be worth its waking up, few enough to share
/// evenly.
const CHUNK: usize = 128 * BLOCK;

/// Steps the elements of slices of the same length, in their place. In the first step (`fresh`)
/// the states are only written. States in 8 bits are rounded with this noise, or with that of their
/// scales.
///
/// A state that is not finite becomes its weight, if it is kept in 8 bits, which cannot hold it.
pub fn step<R: Rule<N>, const N: usize>(
    rule: &R,
    clip: Clip,
    fresh: bool,
    noise: Option<Noise>,
    weight: &mut [f32],
    grad: &[f32],
    states: [Buffer<'_>; N],
) {
    let lanes = Lanes {
        first: 0,
        weight,
        grad,
        states,
    };
    let pass = Pass {
        rule: *rule,
        clip,
        fresh,
        noise,
    };
    let step = |lanes: Lanes<'_, N>| Arch::new().dispatch(Step { pass, lanes });
    let chunks = lanes.chunks();
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
    let sum_of = |(chunk, grad)| {
        Arch::new().dispatch(Sum {
            measure: *measure,
            clip,
            start: chunk * CHUNK,
            grad,
            states: states.as_ref(),
        })
    };
    // The sums of the chunks add up in their order, on however many threads they were made.
    let sums: Vec<f64> = grad.par_chunks(CHUNK).enumerate().map(sum_of).collect();
    (sums.iter().sum::<f64>() / grad.len() as f64) as f32
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

/// Splits numbers: rounds them in their place, and writes the words of their lower bits.
pub fn split(split: Split, numbers: &mut [f32], low: &mut [i32], noise: Option<Noise>) {
    let low = low.par_chunks_mut(CHUNK / split.in_word());
    let chunks = numbers.par_chunks_mut(CHUNK).zip(low).enumerate();
    chunks.for_each(|(chunk, (numbers, low))| {
        let first = (chunk * CHUNK) as u32;
        let noise = |place| noise.map_or(0, |noise| noise.at(first.wrapping_add(place)));
        low.copy_from_slice(&split.split_all(numbers, noise));
    });
}

/// Joins numbers that were [split](split()), in their place.
pub fn rejoin(split: Split, numbers: &mut [f32], low: &[i32]) {
    let low = low.par_chunks(CHUNK / split.in_word());
    let chunks = numbers.par_chunks_mut(CHUNK).zip(low);
    chunks.for_each(|(numbers, low)| split.join_all(numbers, low));
}

/// The same range of elements of all operands.
struct Lanes<'a, const N: usize> {
    /// The place of the first of these elements among all.
    first: usize,
    weight: &'a mut [f32],
    grad: &'a [f32],
    states: [Buffer<'a>; N],
}

impl<const N: usize> Lanes<'_, N> {
    /// One, if there are no elements.
    fn chunks(mut self) -> Vec<Self> {
        let mut chunks = Vec::with_capacity(self.weight.len().div_ceil(CHUNK));
        loop {
            let count = self.weight.len().min(CHUNK);
            let (grad, after) = self.grad.split_at(count);
            chunks.push(Self {
                first: self.first,
                weight: take(&mut self.weight, count),
                grad,
                states: self.states.each_mut().map(|state| state.take(count)),
            });
            (self.first, self.grad) = (self.first + count, after);
            if self.weight.is_empty() {
                return chunks;
            }
        }
    }
}

/// The operation on all elements of a parameter.
#[derive(Clone, Copy)]
struct Pass<R> {
    rule: R,
    clip: Clip,
    /// Whether there are no states yet.
    fresh: bool,
    noise: Option<Noise>,
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

/// The sum of a measure over a part of the elements.
struct Sum<'a, M, const N: usize> {
    measure: M,
    clip: Clip,
    /// Index of the first of these elements among all.
    start: usize,
    grad: &'a [f32],
    states: Option<&'a [Source<'a>; N]>,
}

impl<M: Measure<N>, const N: usize> WithSimd for Sum<'_, M, N> {
    type Output = f64;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> f64 {
        /// Number of parallel sums. It does not depend on the width of registers, so that all
        /// processors add in the same order.
        const SUMS: usize = 8;

        let mut sums = [0.0; SUMS];
        let mut floats = [[0.0; BLOCK]; N];
        let mut values = [0.0; BLOCK];
        for (block, grad) in self.grad.chunks(BLOCK).enumerate() {
            for (state, floats) in self.states.into_iter().flatten().zip(&mut floats) {
                state.load(self.start / BLOCK + block, floats);
            }
            let (of_block, beyond) = values.split_at_mut(grad.len());
            let states = floats.each_ref().map(|floats| &floats[..grad.len()]);
            let fresh = self.states.is_none();
            vector::measure(simd, self.measure, self.clip, fresh, grad, states, of_block);
            beyond.fill(0.0);
            for values in values.chunks_exact(SUMS) {
                for (sum, value) in sums.iter_mut().zip(values) {
                    *sum += f64::from(*value);
                }
            }
        }
        sums.iter().sum()
    }
}

/// The states themselves if all of them have 32 bits, which need no conversion.
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
        first,
        weight,
        grad,
        mut states,
    } = lanes;
    let mut floats = [[0.0; BLOCK]; N];
    let blocks = weight.chunks_mut(BLOCK).zip(grad.chunks(BLOCK));
    for (block, (weight, grad)) in blocks.enumerate() {
        let length = weight.len();
        if !pass.fresh {
            for (state, floats) in states.iter().zip(&mut floats) {
                state.load(block, floats);
            }
        }
        let values = floats.each_mut().map(|floats| &mut floats[..length]);
        vector::step(simd, pass.rule, pass.clip, pass.fresh, weight, grad, values);
        let mut scales = [None; N];
        for ((state, floats), scale) in states.iter().zip(&mut floats).zip(&mut scales) {
            // Of the last block, what the one before it has left.
            floats[length..].fill(0.0);
            *scale = state.scale(floats);
            if scale.is_some_and(|scale| !scale.are_finite) {
                show_what_is_not_finite(weight, &floats[..length]);
            }
        }
        let first = first + block * BLOCK;
        let noise = pass.noise.filter(|_| scales.iter().any(Option::is_some));
        let fractions = noise.map(|noise| noise_of_block(noise, first as u32));
        for ((state, floats), scale) in states.iter_mut().zip(&floats).zip(scales) {
            state.store(block, floats, scale, fractions.as_ref(), first);
        }
    }
}

/// Puts numbers that 8 bits cannot hold into their weights.
#[inline(always)]
fn show_what_is_not_finite(weight: &mut [f32], numbers: &[f32]) {
    for (weight, number) in weight.iter_mut().zip(numbers) {
        *weight = if number.is_finite() { *weight } else { *number };
    }
}

#[cfg(test)]
mod tests {
    use super::super::rules::StableAdamW;
    use super::*;

    /// Compares sizes that fill no register, no block and no chunk with a plain sum in 64 bits.
    #[test]
    fn a_mean_is_that_of_the_elements() {
        let settings = StableAdamW {
            beta_1: 0.9,
            beta_2: 0.99,
            epsilon: 1e-8,
            weight_decay: 0.0,
        };
        let measure = settings.measure(3);
        let numbers = |count: usize, by: f32| -> Vec<f32> {
            (0..count).map(|place| (place as f32 * by).sin()).collect()
        };
        for count in [1, 7, 8, 255, 257, CHUNK, CHUNK + 5, 3 * CHUNK - 1] {
            let (grad, moment_1) = (numbers(count, 0.7), numbers(count, 1.3));
            let moment_2: Vec<_> = numbers(count, 2.1).iter().map(|n| n * n).collect();
            let clip = Clip::Value(0.8);
            let clipped = |place: usize| clip.clip(grad[place]);
            let next = |place| {
                let states = [moment_1[place], moment_2[place]];
                measure.measure(clipped(place), Some(states))
            };
            let first = |place| measure.measure(clipped(place), None);
            let mean = |of: &dyn Fn(usize) -> f32| {
                (0..count).map(|place| f64::from(of(place))).sum::<f64>() / count as f64
            };
            let states = [Source::F32(&moment_1), Source::F32(&moment_2)];
            for (found, expected) in [
                (
                    super::mean(&measure, clip, &grad, Some(states)),
                    mean(&next),
                ),
                (super::mean(&measure, clip, &grad, None), mean(&first)),
            ] {
                // The order of the sums in 64 bits affects only the last rounding.
                let off = (f64::from(found) - expected).abs();
                assert!(off <= 1e-7 * expected, "{count}: {found}, {expected}");
            }
        }
        // A moment that is NaN counts zero.
        let states = [Source::F32(&[0.0; 8]), Source::F32(&[f32::NAN; 8])];
        let found = mean(&measure, Clip::None, &[1.0; 8], Some(states));
        assert_eq!(found, 0.0);
    }
}
