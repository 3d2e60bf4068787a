//! One pass over memory on the processor.

mod buffer;
mod rounding;
mod vector;

use burn::tensor::{DType, Shape, TensorData, bf16};
use burn_flex::{Flex, FlexTensor};
use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;

use crate::{
    LeanBackend, Noise, Number, RoundStochastically, Rule,
    backend::{Clip, Measure, Operands, States, Stepped, Types},
    dynamic_map::BLOCK,
    moment::{EightBit, Format, Moment, blocks, words},
};
use buffer::{Buffer, Source};

/// Elements that a thread takes at once: enough to be worth its waking up, few enough to share evenly.
const CHUNK: usize = 64 * BLOCK;

impl LeanBackend for Flex {
    /// Weights in 32 bits, and states in 32 bits, bf16 or 8 bits. Weights of other types are stepped as Burn does, which
    /// rounds after each operation.
    fn has_pass(types: &Types<'_>) -> bool {
        types.weight == DType::F32
            && types.grad == DType::F32
            && types.states.iter().all(|format| match format {
                Format::Float(dtype) => matches!(dtype, DType::F32 | DType::BF16),
                Format::EightBit(_) => true,
            })
    }

    fn step_in_place<R: Rule<N>, const N: usize>(
        rule: &R,
        operands: Operands<Self, N>,
    ) -> Stepped<Self, N> {
        let Operands {
            weight,
            grad,
            clip,
            states,
        } = operands;
        let shape = weight.layout().shape().clone();
        let mut weight = in_order(weight);
        let grad = in_order(grad);
        let clip = HostClip::new(clip);
        let (fresh, mut states) = match states {
            States::New(formats) => (true, formats.map(|format| empty(format, &shape))),
            States::Old(states) => (false, states.map(contiguous)),
        };

        let lanes = Lanes {
            weight: weight.storage_mut(),
            grad: grad.storage(),
            states: states.each_mut().map(buffer_of),
        };
        let pass = Pass {
            rule: *rule,
            clip,
            fresh,
        };
        let step = |lanes: Lanes<'_, N>| Arch::new().dispatch(Step { pass, lanes });
        let chunks = lanes.chunks(shape.num_elements());
        if chunks.len() == 1 {
            chunks.into_iter().for_each(step);
        } else {
            chunks.into_par_iter().for_each(step);
        }
        Stepped { weight, states }
    }

    fn mean_in_place<M: Measure<N>, const N: usize>(
        measure: &M,
        operands: &Operands<Self, N>,
    ) -> FlexTensor {
        let grad = operands.grad.to_contiguous();
        let source: &[f32] = grad.storage();
        let clip = HostClip::new(operands.clip.clone());
        let states = match &operands.states {
            States::New(_) => None,
            States::Old(states) => Some(states.clone().map(contiguous)),
        };
        let states = states
            .as_ref()
            .map(|states| states.each_ref().map(Source::of_state));
        let count = source.len();
        let starts: Vec<usize> = (0..count).step_by(BLOCK).collect();
        let sum_of = |start: &usize| -> f64 {
            let length = BLOCK.min(count - start);
            let mut grads = [0.0; BLOCK];
            grads[..length].copy_from_slice(&source[*start..start + length]);
            let grads = grads.map(|grad| clip.clip(grad));
            let mut values = [[0.0; BLOCK]; N];
            for (state, values) in states.iter().flatten().zip(&mut values) {
                state.load(*start, &mut values[..length]);
            }
            let measured = (0..length).map(|place| match states {
                Some(_) => {
                    measure.next(grads[place], values.each_ref().map(|values| values[place]))
                }
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
        let mean = (sums.iter().sum::<f64>() / count as f64) as f32;
        FlexTensor::from_data(TensorData::from([mean]))
    }
}

/// The tensor with its elements one after the other. Taken by value: a second handle would make the buffer a
/// shared one, which is copied before it is written.
fn in_order(tensor: FlexTensor) -> FlexTensor {
    tensor.to_contiguous()
}

fn empty(format: Format, shape: &Shape) -> Moment<Flex> {
    let numbers = shape.num_elements();
    match format {
        Format::Float(dtype) => Moment::Float(FlexTensor::empty(shape.clone(), dtype)),
        Format::EightBit(map) => Moment::EightBit(EightBit {
            codes: FlexTensor::empty(words(numbers), DType::I32),
            scales: FlexTensor::empty(blocks(numbers), DType::F32),
            shape: shape.clone(),
            map,
        }),
    }
}

fn contiguous(state: Moment<Flex>) -> Moment<Flex> {
    state.map(&mut in_order, &mut in_order)
}

fn buffer_of(state: &mut Moment<Flex>) -> Buffer<'_> {
    match state {
        Moment::Float(floats) => Buffer::of(floats),
        Moment::EightBit(blocks) => Buffer::of_blocks(blocks),
    }
}

/// [`Clip`] with its factor on the host, where Flex has it anyway.
#[derive(Clone, Copy)]
enum HostClip {
    None,
    Value(f32),
    Factor(f32),
}

impl HostClip {
    fn new(clip: Clip<Flex>) -> Self {
        match clip {
            Clip::None => Self::None,
            Clip::Value(threshold) => Self::Value(threshold),
            Clip::Factor(factor) => Self::Factor(factor.to_contiguous().storage::<f32>()[0]),
        }
    }

    #[inline(always)]
    fn clip<T: Number>(self, grad: T) -> T {
        match self {
            Self::None => grad,
            Self::Value(threshold) => grad.clip_by_value(threshold.into()),
            Self::Factor(factor) => grad.mul_scalar(factor.into()),
        }
    }
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
    clip: HostClip,
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

impl RoundStochastically for Flex {
    fn round_stochastically(tensor: FlexTensor, noise: Noise) -> FlexTensor {
        let tensor = in_order(tensor);
        let mut rounded = FlexTensor::empty(tensor.layout().shape().clone(), DType::BF16);
        let numbers = tensor.storage::<f32>().par_chunks(CHUNK);
        let chunks = rounded
            .storage_mut::<bf16>()
            .par_chunks_mut(CHUNK)
            .zip(numbers);
        chunks.enumerate().for_each(|(chunk, (rounded, numbers))| {
            rounding::stochastically(numbers, rounded, noise, (chunk * CHUNK) as u32);
        });
        rounded
    }
}
