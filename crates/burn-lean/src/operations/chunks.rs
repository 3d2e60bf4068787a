//! Work in chunks of rows, so that intermediate results are small.

use std::ops::Range;

use burn::tensor::{DType, Tensor};

use super::threads::{in_parallel, threads};
use crate::backend::reading_waits;

/// A tensor has no more chunks than this, however large it is.
const MOST: usize = 64;

/// How large the temporaries of a chunk of an element-wise function are. On a processor a small
/// part of the tensor, and enough for its threads: with a quarter of a MiB a step of ViT-S is 9 %
/// slower than with one. On a GPU each chunk costs the start of a few kernels.
pub(super) fn chunk_bytes<const D: usize>(tensor: &Tensor<D>) -> usize {
    match reading_waits(&tensor.clone().into_dispatch()) {
        true => 16 << 20,
        false => {
            let bytes = tensor.shape().num_elements() * wide_bytes(tensor.dtype());
            (bytes / 16).clamp(256 << 10, 1 << 20)
        }
    }
}

/// Ranges of rows of about this number of bytes each. Empty if there are no rows.
pub(super) fn chunks(
    rows: usize,
    bytes_of_row: usize,
    bytes: usize,
) -> impl Iterator<Item = Range<usize>> + Send {
    chunks_of(rows, (bytes / bytes_of_row.max(1)).max(rows.div_ceil(MOST)))
}

/// Ranges of this number of rows, at least one. Empty if there are no rows.
pub(super) fn chunks_of(rows: usize, at_once: usize) -> impl Iterator<Item = Range<usize>> + Send {
    let at_once = at_once.max(1);
    (0..rows)
        .step_by(at_once)
        .map(move |start| start..(start + at_once).min(rows))
}

/// The chunks of a tensor along an axis that the functions below work in. None if the axis is empty.
pub(super) fn chunks_along<const D: usize>(tensor: &Tensor<D>, axis: usize) -> Vec<Range<usize>> {
    let dims = tensor.dims();
    let row = dims.iter().product::<usize>() / dims[axis].max(1) * wide_bytes(tensor.dtype());
    chunks(dims[axis], row, chunk_bytes(tensor)).collect()
}

/// [`map_along`] of rows `[rows, width]`.
pub(super) fn map_rows(
    tensor: Tensor<2>,
    map: impl Fn(Range<usize>, Tensor<2>) -> Tensor<2> + Sync,
) -> Tensor<2> {
    map_along(tensor, 0, map)
}

/// Replaces each chunk of a tensor along an axis by the result of `map`: in place, if the backend
/// can and nothing else holds the tensor.
pub(super) fn map_along<const D: usize>(
    tensor: Tensor<D>,
    axis: usize,
    map: impl Fn(Range<usize>, Tensor<D>) -> Tensor<D> + Sync,
) -> Tensor<D> {
    let map = |chunk, [tensor]: [_; 1]| ([map(chunk, tensor)], ());
    let [tensor] = map_along_with([tensor], axis, map, |()| {});
    tensor
}

/// [`map_along`] of several tensors of one shape, where `map` makes something else of each chunk,
/// too. `each` gets that in the order of the chunks.
pub(super) fn map_along_with<const D: usize, const N: usize, T: Send>(
    mut tensors: [Tensor<D>; N],
    axis: usize,
    map: impl Fn(Range<usize>, [Tensor<D>; N]) -> ([Tensor<D>; N], T) + Sync,
    mut each: impl FnMut(T),
) -> [Tensor<D>; N] {
    let chunks = chunks_along(&tensors[0], axis);
    if let [chunk] = &chunks[..] {
        let (mapped, other) = map(chunk.clone(), tensors);
        each(other);
        return mapped;
    }
    let mut at = tensors[0].dims().map(|length| 0..length);
    for at_once in chunks.chunks(threads(&tensors[0])) {
        // The slices are dropped before the assignments, which then need no copy.
        let mapped = in_parallel(at_once, |chunk| {
            let part = |tensor: &Tensor<D>| tensor.clone().slice_dim(axis, chunk.clone());
            map(chunk.clone(), tensors.each_ref().map(part))
        });
        for (chunk, (mapped, other)) in at_once.iter().zip(mapped) {
            at[axis] = chunk.clone();
            for (tensor, mapped) in tensors.iter_mut().zip(mapped) {
                tensor.inplace(|tensor| tensor.slice_assign(at.clone(), mapped));
            }
            each(other);
        }
    }
    tensors
}

fn wide_bytes(dtype: DType) -> usize {
    match dtype {
        DType::F64 => 8,
        _ => 4,
    }
}

/// `[..., width]` as `[rows, width]`.
pub(super) fn as_rows<const D: usize>(tensor: Tensor<D>) -> Tensor<2> {
    let dims = tensor.dims();
    let (rows, width) = rows_of(&dims);
    shaped(tensor, [rows, width])
}

/// The tensor with another shape. Burn's `reshape` reads a length of 0 as that of the axis before.
pub(super) fn shaped<const D: usize, const D2: usize>(
    tensor: Tensor<D>,
    dims: [usize; D2],
) -> Tensor<D2> {
    match dims.contains(&0) {
        true => Tensor::empty(dims, (&tensor.device(), tensor.dtype())),
        false => tensor.reshape(dims),
    }
}

/// The rows and the width of a shape `[..., width]`.
pub(super) fn rows_of(dims: &[usize]) -> (usize, usize) {
    match dims {
        [rows @ .., width] => (rows.iter().product(), *width),
        [] => (1, 1),
    }
}
