//! The hidden layer of a feed-forward network on Flex, computed again in blocks of columns.

use std::ops::Range;

use burn::tensor::{Shape, Tensor};
use lean_arithmetic::slices::{Activation, drop_row, pack_row};

use super::super::threads::each;
use super::{CHUNK, floats, own, read, tensor, zeros};

/// Which elements are dropped, as numbers.
pub(in super::super) struct PackedMask {
    /// `[1, words]`
    pub(in super::super) words: Tensor<2>,
    /// How many elements there are.
    pub(in super::super) elements: usize,
    /// The factor of those that are kept.
    pub(in super::super) scale: f64,
}

/// Columns of the hidden layer, dropped by the masks of parts of their rows. Its inputs are that of the
/// activation and, if it is gated, what that is multiplied with: `[rows, width]`. Their gradients are written
/// over them.
pub(in super::super) fn hidden_block(
    function: Activation,
    inputs: Vec<Tensor<2>>,
    columns: &Range<usize>,
    masks: &[PackedMask],
    grad: Tensor<2>,
) -> (Vec<Tensor<2>>, Tensor<2>) {
    let mut inputs: Vec<_> = inputs.into_iter().map(own).collect();
    let [rows, width] = inputs[0].layout().shape().dims();
    let length = columns.len();
    let (mut hidden, mut grad) = (zeros(&Shape::new([rows, length])), own(grad));
    drop_all(masks, grad.storage_mut());
    // Rows of a chunk: whole ones.
    let at_once = (CHUNK / length.max(1)).max(1);
    let (part, whole) = (at_once * length, at_once * width);
    let outputs = hidden.storage_mut().chunks_mut(part);
    let outputs = outputs.zip(grad.storage_mut().chunks_mut(part));
    let mut parts = inputs
        .iter_mut()
        .map(|x| x.storage_mut::<f32>().chunks_mut(whole));
    let (input, mut up) = (parts.next().expect("there is an input"), parts.next());
    let chunks = input.zip(outputs).map(|(input, outputs)| {
        let up = up.as_mut().map(|up| up.next().expect("it is as long"));
        (input, up, outputs)
    });
    each(
        chunks.collect(),
        |(input, mut up, (hidden, grad)): Rows<'_>| {
            let outputs = hidden
                .chunks_exact_mut(length)
                .zip(grad.chunks_exact_mut(length));
            let rows = input.chunks_exact_mut(width).zip(outputs).enumerate();
            for (row, (input, (hidden, grad))) in rows {
                let input = &mut input[columns.clone()];
                let Some(up) = &mut up else {
                    function.value_and_backward(input, hidden, grad);
                    continue;
                };
                let up = &mut up[row * width..][columns.clone()];
                function.gated(input, up, hidden);
                function.gated_backward(input, up, grad);
                input.copy_from_slice(grad);
            }
        },
    );
    drop_all(masks, hidden.storage_mut());
    (inputs.into_iter().map(tensor).collect(), tensor(hidden))
}

/// Rows of the inputs, and of the hidden layer and its gradient.
type Rows<'a> = (
    &'a mut [f32],
    Option<&'a mut [f32]>,
    (&'a mut [f32], &'a mut [f32]),
);

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
