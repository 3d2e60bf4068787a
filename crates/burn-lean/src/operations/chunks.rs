//! Work in chunks of rows, so that what is computed on the way is small.

use std::ops::Range;

use burn::tensor::{DType, Tensor};

use crate::backend::reading_waits;

/// A tensor has no more chunks than this, however large it is.
const MOST: usize = 64;

/// How large the temporaries of a chunk of an element-wise function are: about as large as a cache
/// of the processor. On a GPU each chunk costs the start of a few kernels.
pub(super) fn chunk_bytes<const D: usize>(tensor: &Tensor<D>) -> usize {
    match reading_waits(&tensor.clone().into_dispatch().kind) {
        true => 16 << 20,
        false => 256 << 10,
    }
}

/// Ranges of rows, of about so many bytes each. None if there are no rows.
pub(super) fn chunks(
    rows: usize,
    bytes_of_row: usize,
    bytes: usize,
) -> impl Iterator<Item = Range<usize>> {
    let at_once = (bytes / bytes_of_row.max(1))
        .max(rows.div_ceil(MOST))
        .max(1);
    (0..rows)
        .step_by(at_once)
        .map(move |start| start..(start + at_once).min(rows))
}

/// Replaces each chunk of rows of a tensor `[rows, width]` by what `map` makes of it: in place,
/// where the backend can and nobody else holds the tensor.
pub(super) fn map_rows(
    mut tensor: Tensor<2>,
    mut map: impl FnMut(Range<usize>, Tensor<2>) -> Tensor<2>,
) -> Tensor<2> {
    let [rows, width] = tensor.dims();
    let row = width * wide_bytes(tensor.dtype());
    for chunk in chunks(rows, row, chunk_bytes(&tensor)) {
        if chunk.len() == rows {
            return map(chunk, tensor);
        }
        // The slice is gone before the assignment, which then needs no copy.
        let mapped = map(chunk.clone(), tensor.clone().slice([chunk.clone()]));
        tensor = tensor.slice_assign([chunk], mapped);
    }
    tensor
}

/// The type that sums of a type are computed in: `f16` overflows, and `bf16` has 8 bits.
pub(super) fn wide(dtype: DType) -> DType {
    match dtype {
        DType::F16 | DType::BF16 => DType::F32,
        dtype => dtype,
    }
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
