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

/// The chunks of rows of a tensor `[rows, width]` that the functions below work in. None if there
/// are no rows.
pub(super) fn row_chunks(tensor: &Tensor<2>) -> Vec<Range<usize>> {
    let [rows, width] = tensor.dims();
    let row = width * wide_bytes(tensor.dtype());
    chunks(rows, row, chunk_bytes(tensor)).collect()
}

/// Replaces each chunk of rows of a tensor `[rows, width]` by the result of `map`: in place, if the
/// backend can and nothing else holds the tensor.
pub(super) fn map_rows(
    tensor: Tensor<2>,
    map: impl Fn(Range<usize>, Tensor<2>) -> Tensor<2> + Sync,
) -> Tensor<2> {
    let map = |chunk, [rows]: [_; 1]| ([map(chunk, rows)], ());
    let [tensor] = map_rows_with([tensor], map, |()| {});
    tensor
}

/// [`map_rows`] of several tensors of one shape, where `map` makes something else of each chunk,
/// too. `each` gets that in the order of the rows.
pub(super) fn map_rows_with<const N: usize, T: Send>(
    mut tensors: [Tensor<2>; N],
    map: impl Fn(Range<usize>, [Tensor<2>; N]) -> ([Tensor<2>; N], T) + Sync,
    mut each: impl FnMut(T),
) -> [Tensor<2>; N] {
    let chunks = row_chunks(&tensors[0]);
    if let [chunk] = &chunks[..] {
        let (mapped, other) = map(chunk.clone(), tensors);
        each(other);
        return mapped;
    }
    for at_once in chunks.chunks(threads(&tensors[0])) {
        // The slices are dropped before the assignments, which then need no copy.
        let mapped = in_parallel(at_once, |chunk| {
            let rows = |tensor: &Tensor<2>| tensor.clone().slice([chunk.clone()]);
            map(chunk.clone(), tensors.each_ref().map(rows))
        });
        for (chunk, (mapped, other)) in at_once.iter().zip(mapped) {
            for (tensor, mapped) in tensors.iter_mut().zip(mapped) {
                tensor.inplace(|tensor| tensor.slice_assign([chunk.clone()], mapped));
            }
            each(other);
        }
    }
    tensors
}

/// Replaces each part of a tensor by the result of `map`: in place, if the backend can and nothing
/// else holds the tensor. A part has the whole of the axis `dim`, and is where the ranges say.
pub(super) fn map_parts<const D: usize>(
    mut tensor: Tensor<D>,
    dim: usize,
    map: impl Fn(&[Range<usize>; D], Tensor<D>) -> Tensor<D> + Sync,
) -> Tensor<D> {
    let dims = tensor.dims();
    if dims.contains(&0) {
        return tensor;
    }
    // The longest axis that no sum runs along.
    let others = (0..D).filter(|axis| *axis != dim);
    let axis = others.max_by_key(|axis| dims[*axis]).unwrap_or(dim);
    let part = |chunk: &Range<usize>| -> [Range<usize>; D] {
        std::array::from_fn(|at| match at == axis {
            true => chunk.clone(),
            false => 0..dims[at],
        })
    };
    let whole = 0..dims[axis];
    let row = dims.iter().product::<usize>() / dims[axis] * wide_bytes(tensor.dtype());
    let parts: Vec<_> = match axis == dim {
        true => vec![whole.clone()],
        false => chunks(dims[axis], row, chunk_bytes(&tensor)).collect(),
    };
    if parts.len() == 1 {
        return map(&part(&whole), tensor);
    }
    for at_once in parts.chunks(threads(&tensor)) {
        let mapped = in_parallel(at_once, |chunk| {
            let at = part(chunk);
            map(&at, tensor.clone().slice(at.clone()))
        });
        for (chunk, mapped) in at_once.iter().zip(mapped) {
            tensor.inplace(|tensor| tensor.slice_assign(part(chunk), mapped));
        }
    }
    tensor
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
