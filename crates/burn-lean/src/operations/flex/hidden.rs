//! The hidden layer of a feed-forward network on Flex, computed again in blocks of columns.

use std::ops::Range;

use burn::tensor::{Shape, Tensor};
use lean_arithmetic::slices::{Activation, drop_row, pack_row};

use super::super::threads::each;
use super::{CHUNK, FlexTensor, floats, own, read, tensor, zeros};

/// Which elements are dropped, as numbers.
pub(in super::super) struct PackedMask {
    /// `[1, words]`
    pub(in super::super) words: Tensor<2>,
    /// How many elements there are.
    pub(in super::super) elements: usize,
    /// The factor of those that are kept.
    pub(in super::super) scale: f64,
}

/// The input of an activation, `[rows, width]`, which its gradient is written over.
pub(in super::super) struct Hidden {
    function: Activation,
    input: FlexTensor,
}

impl Hidden {
    pub(in super::super) fn new(function: Activation, input: Tensor<2>) -> Self {
        Self {
            function,
            input: own(input),
        }
    }

    /// Columns of the activation, dropped by the masks of parts of their rows. With its gradient,
    /// that of the input is written over the input.
    pub(in super::super) fn block(
        &mut self,
        columns: &Range<usize>,
        masks: &[PackedMask],
        grad: Option<Tensor<2>>,
    ) -> Tensor<2> {
        let [rows, width] = self.input.layout().shape().dims();
        let mut hidden = zeros(&Shape::new([rows, columns.len()]));
        // Rows of a chunk: whole ones.
        let at_once = (CHUNK / columns.len().max(1)).max(1);
        let (part, whole) = (at_once * columns.len(), at_once * width);
        let function = self.function;
        match grad {
            None => {
                let inputs = read(&self.input).chunks(whole);
                let chunks = inputs.zip(hidden.storage_mut().chunks_mut(part));
                each(chunks.collect(), |(input, hidden)| {
                    let hidden = hidden.chunks_exact_mut(columns.len());
                    for (input, hidden) in input.chunks_exact(width).zip(hidden) {
                        function.value(&input[columns.clone()], hidden);
                    }
                });
            }
            Some(grad) => {
                let mut grad = own(grad);
                drop_all(masks, grad.storage_mut());
                let inputs = self.input.storage_mut().chunks_mut(whole);
                let chunks = inputs.zip(hidden.storage_mut().chunks_mut(part));
                let chunks = chunks.zip(read(&grad).chunks(part));
                let compute = |((input, hidden), grad): ((&mut [f32], &mut [f32]), &[f32])| {
                    let hidden = hidden.chunks_exact_mut(columns.len());
                    let rows = input.chunks_exact_mut(width).zip(hidden);
                    for ((input, hidden), grad) in rows.zip(grad.chunks_exact(columns.len())) {
                        function.value_and_backward(&mut input[columns.clone()], hidden, grad);
                    }
                };
                each(chunks.collect(), compute);
            }
        }
        drop_all(masks, hidden.storage_mut());
        tensor(hidden)
    }

    /// The input, or what has been written over it.
    pub(in super::super) fn into_input(self) -> Tensor<2> {
        tensor(self.input)
    }
}

/// Applies the masks of parts that follow each other.
fn drop_all(masks: &[PackedMask], mut numbers: &mut [f32]) {
    let mut parts = Vec::with_capacity(masks.len());
    for mask in masks {
        let (part, rest) = numbers.split_at_mut(mask.elements);
        parts.push((mask, part));
        numbers = rest;
    }
    each(parts, |(mask, part)| {
        drop_row(read(&floats(mask.words.clone())), part, mask.scale as f32);
    });
}

/// Zeroes elements where `keep` is zero, and scales the others.
pub(in super::super) fn drop_with(x: Tensor<2>, keep: &Tensor<2>, scale: f64) -> Tensor<2> {
    let (mut x, keep) = (own(x), floats(keep.clone()));
    let scale = scale as f32;
    let chunks = x
        .storage_mut()
        .chunks_mut(CHUNK)
        .zip(read(&keep).chunks(CHUNK));
    each(chunks.collect(), |(x, keep): (&mut [f32], &[f32])| {
        for (x, keep) in x.iter_mut().zip(keep) {
            *x = *x * keep * scale;
        }
    });
    tensor(x)
}

/// The numbers `[1, words]` of the mask of some columns of `[rows, width]`.
pub(in super::super) fn pack_block(
    keep: &Tensor<2>,
    columns: &Range<usize>,
    words: usize,
) -> Tensor<2> {
    let [_, width] = keep.dims();
    let keep = floats(keep.clone());
    let rows = read(&keep).chunks_exact(width.max(1));
    let block: Vec<f32> = rows
        .flat_map(|row| &row[columns.clone()])
        .copied()
        .collect();
    let mut packed = zeros(&Shape::new([1, words]));
    pack_row(&block, packed.storage_mut());
    tensor(packed)
}
