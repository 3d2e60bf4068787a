//! Launching of the kernels over tensors.

use super::cubecl;
use cubecl::prelude::{AddressType, CubeDim};
use cubecl::{calculate_cube_count_elemwise, tensor_vector_size_parallel};

use super::eight_bit::{self, BlocksLaunch, CUBE, WORD};
use super::{OnDevice, kernel, rounding};
use crate::optim::cube::Pass;
use crate::optim::{Kind, Noise, Split};

/// Smallest number of elements that a unit adds up for a sum.
const ADDED_BY_A_UNIT: usize = 64;
/// Bytes of an element.
const SIZE: usize = size_of::<f32>();
/// Largest number of partial sums.
const PARTS: usize = 1 << 16;

/// The states of a parameter, which are all floats or all in 8 bits.
#[derive(Debug)]
pub struct States<T> {
    /// The states in floats.
    pub floats: Vec<T>,
    /// The states in 8 bits.
    pub eight_bit: Vec<EightBit<T>>,
}

/// A state in 8 bits.
#[derive(Debug)]
pub struct EightBit<T> {
    /// The words of its blocks.
    pub words: T,
    /// The kind of its numbers.
    pub kind: Kind,
}

impl<T> Default for States<T> {
    fn default() -> Self {
        Self {
            floats: Vec::new(),
            eight_bit: Vec::new(),
        }
    }
}

/// Overwrites weight and states.
pub fn step<T: OnDevice>(pass: Pass, weight: T, grad: T, states: States<T>) {
    let extent = Extent::of(states.floats.iter().chain([&weight, &grad]));
    let client = &weight.client().clone();
    if extent.elements > 0 && states.eight_bit.is_empty() {
        let units = extent.elements / extent.vector;
        let dim = CubeDim::new(client, units);
        kernel::step::launch(
            client,
            calculate_cube_count_elemwise(client, units, dim),
            dim,
            extent.address,
            extent.vector,
            weight.into_view(),
            grad.into_view(),
            states.floats.into_iter().map(T::into_view).collect(),
            pass.scalars.into_iter().collect(),
            pass.is_first,
            pass.program,
        );
    } else if extent.elements > 0 {
        let units = extent.elements.div_ceil(WORD);
        let dim = CubeDim::new_1d(CUBE as u32);
        let [hash, turn] = pass.noise.map_or([0; 2], |noise| noise.seeds);
        eight_bit::step::launch(
            client,
            calculate_cube_count_elemwise(client, units, dim),
            dim,
            extent.address,
            // A unit has the numbers of one word, whatever the width of its vectors.
            extent.vector.min(WORD),
            weight.into_view(),
            grad.into_view(),
            states
                .eight_bit
                .into_iter()
                .map(|EightBit { words, kind }| BlocksLaunch::new(words.into_buffer(), kind))
                .collect(),
            pass.scalars.into_iter().collect(),
            hash,
            turn,
            pass.noise.is_some(),
            pass.is_first,
            pass.program,
        );
    }
}

/// Number of partial sums for a number of elements.
pub fn parts(elements: usize) -> usize {
    (elements / ADDED_BY_A_UNIT).clamp(1, PARTS)
}

/// Sums the result of the pass over all elements, of which there is at least one, into the partial
/// sums `sums`.
pub fn sum<T: OnDevice>(pass: Pass, sums: T, grad: T, states: States<T>) {
    let extent = Extent::of(states.floats.iter().chain([&grad]));
    let client = &grad.client().clone();
    let parts = sums.binding().size();
    let dim = CubeDim::new(client, parts);
    kernel::sum::launch(
        client,
        calculate_cube_count_elemwise(client, parts, dim),
        dim,
        extent.address,
        extent.vector,
        grad.into_view(),
        states.floats.into_iter().map(T::into_view).collect(),
        states
            .eight_bit
            .into_iter()
            .map(|state| BlocksLaunch::new(state.words.into_buffer(), state.kind))
            .collect(),
        sums.into_buffer(),
        pass.scalars.into_iter().collect(),
        pass.program,
    );
}

/// Rounds numbers to bf16 with noise, in place.
pub fn round_stochastically<T: OnDevice>(numbers: T, noise: Noise) {
    let extent = Extent::of([&numbers].into_iter());
    if extent.elements > 0 {
        let [hash, turn] = noise.seeds;
        let client = &numbers.client().clone();
        let units = extent.elements / extent.vector;
        let dim = CubeDim::new(client, units);
        rounding::stochastically::launch(
            client,
            calculate_cube_count_elemwise(client, units, dim),
            dim,
            extent.address,
            extent.vector,
            numbers.into_view(),
            hash,
            turn,
        );
    }
}

/// Splits numbers: rounds them in their place, and writes the words of their lower bits.
pub fn split<T: OnDevice>(split: Split, numbers: T, low: T, noise: Option<Noise>) {
    by_words(split, numbers, low, noise, false);
}

/// Joins numbers that were [split](split()), in their place.
pub fn rejoin<T: OnDevice>(split: Split, numbers: T, low: T) {
    by_words(split, numbers, low, None, true);
}

fn by_words<T: OnDevice>(split: Split, numbers: T, low: T, noise: Option<Noise>, joins: bool) {
    let extent = Extent::of([&numbers].into_iter());
    if extent.elements > 0 {
        let [hash, turn] = noise.map_or([0; 2], |noise| noise.seeds);
        let client = &numbers.client().clone();
        let words = split.words(extent.elements);
        let dim = CubeDim::new(client, words);
        rounding::by_words::launch(
            client,
            calculate_cube_count_elemwise(client, words, dim),
            dim,
            extent.address,
            numbers.into_view(),
            low.into_buffer(),
            hash,
            turn,
            split,
            noise.is_some(),
            joins,
        );
    }
}

/// The size of tensors of one shape, for a kernel over them.
struct Extent {
    elements: usize,
    /// Elements that a unit takes at once.
    vector: usize,
    address: AddressType,
}

impl Extent {
    fn of<'a, T: OnDevice + 'a>(tensors: impl Iterator<Item = &'a T>) -> Self {
        let mut extent = Self {
            elements: 0,
            vector: usize::MAX,
            address: AddressType::default(),
        };
        for tensor in tensors {
            let binding = tensor.binding();
            let vector = tensor_vector_size_parallel(
                tensor.client().io_optimized_vector_sizes(SIZE),
                &binding.shape,
                &binding.strides,
                binding.shape.len() - 1,
            );
            extent.elements = binding.size();
            extent.vector = extent.vector.min(vector);
            extent.address = extent.address.max(binding.required_address_type(SIZE));
        }
        extent
    }
}
