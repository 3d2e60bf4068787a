//! Products of matrices, written where they belong.
//!
//! Burn's own makes the buffer of its output twice, and the output is copied to where it belongs.

use std::ops::Range;

use burn::tensor::{Tensor, TensorData};
use gemm::Parallelism;

use super::super::product::Before;
use super::{FlexTensor, floats, is_whole, of, read, tensor, zeros};

/// A matrix in the buffer of a tensor.
#[derive(Clone, Copy)]
pub(super) struct Matrix<'a> {
    numbers: &'a [f32],
    dims: [usize; 2],
    strides: [usize; 2],
}

impl<'a> Matrix<'a> {
    /// The last two axes of a tensor, whose others have one element.
    ///
    /// # Panics
    ///
    /// If the tensor is flipped.
    pub(super) fn of(tensor: &'a FlexTensor) -> Self {
        let layout = tensor.layout();
        let last = layout.shape().num_dims() - 2;
        let stride = |axis: usize| {
            let stride = layout.strides()[last + axis];
            usize::try_from(stride).expect("a flipped tensor is copied before")
        };
        let numbers = tensor.storage::<f32>();
        Self {
            numbers: &numbers[layout.start_offset().min(numbers.len())..],
            dims: [layout.shape()[last], layout.shape()[last + 1]],
            strides: [stride(0), stride(1)],
        }
    }

    /// Rows that follow each other in a slice.
    pub(super) fn new(numbers: &'a [f32], dims: [usize; 2]) -> Self {
        let strides = [dims[1], 1];
        Self {
            numbers,
            dims,
            strides,
        }
    }

    pub(super) fn transposed(mut self) -> Self {
        self.dims.reverse();
        self.strides.reverse();
        self
    }

    pub(super) fn dims(&self) -> [usize; 2] {
        self.dims
    }

    pub(super) fn rows(mut self, rows: Range<usize>) -> Self {
        self.numbers = &self.numbers[rows.start * self.strides[0]..];
        self.dims[0] = rows.len();
        self
    }

    pub(super) fn columns(self, columns: Range<usize>) -> Self {
        self.transposed().rows(columns).transposed()
    }

    /// Row after row.
    pub(super) fn numbers(self) -> impl Iterator<Item = f32> + 'a {
        let [row, column] = self.strides;
        let of_row =
            move |at| (0..self.dims[1]).map(move |of| self.numbers[at * row + of * column]);
        (0..self.dims[0]).flat_map(of_row)
    }
}

/// Products of fewer multiplications are made on one thread, as Flex's.
#[cfg(feature = "rayon")]
const WORTH_THREADS: usize = 192 * 192 * 192;

/// Writes `lhs * rhs` into the rows of `output`, of which two follow each other at a distance of `stride`.
///
/// # Panics
///
/// If the matrices are not of shapes that fit, or are not within their slices.
#[allow(unsafe_code)] // Products on this many layouts are made by pointers in every crate that has them.
pub(super) fn multiply(
    output: &mut [f32],
    stride: usize,
    before: Before,
    lhs: Matrix<'_>,
    rhs: Matrix<'_>,
) {
    let ([rows, inner], [_, columns]) = (lhs.dims, rhs.dims);
    assert_eq!(inner, rhs.dims[0], "the inner axes of a product");
    if rows == 0 || columns == 0 {
        return;
    }
    let is_within = |[rows, columns]: [usize; 2], strides: [usize; 2], length: usize| {
        let last = (rows - 1)
            .checked_mul(strides[0])
            .zip((columns - 1).checked_mul(strides[1]));
        last.and_then(|(row, column)| row.checked_add(column))
            .is_some_and(|last| last < length)
    };
    assert!(
        stride >= columns && is_within([rows, columns], [stride, 1], output.len()),
        "the output of a product is within its buffer, and its rows do not overlap"
    );
    for factor in [lhs, rhs] {
        assert!(
            inner == 0 || is_within(factor.dims, factor.strides, factor.numbers.len()),
            "a factor of a product is within its buffer"
        );
    }
    #[cfg(feature = "rayon")]
    let parallelism = match rows.saturating_mul(columns).saturating_mul(inner) {
        WORTH_THREADS.. => Parallelism::Rayon(0),
        _ => Parallelism::None,
    };
    #[cfg(not(feature = "rayon"))]
    let parallelism = Parallelism::None;
    let factor = |Matrix {
                      numbers, strides, ..
                  }: Matrix<'_>| {
        let [row, column] = strides.map(|stride| stride as isize);
        (numbers.as_ptr(), column, row)
    };
    let ((lhs, lhs_column, lhs_row), (rhs, rhs_column, rhs_row)) = (factor(lhs), factor(rhs));
    let (output, adds) = (output.as_mut_ptr(), before == Before::Sum);
    // SAFETY: `gemm` reads `lhs` and `rhs` and writes `output` at the products of an index below a length
    // of theirs and its stride. The asserts above hold the last of each, which is the highest, within its
    // slice: strides of axes of length 1 are times 0. `output` is borrowed mutably, so it overlaps neither.
    // Strides are those of tensors, which are `isize`, or below the length of a slice.
    unsafe {
        gemm::gemm(
            rows,
            columns,
            inner,
            output,
            1,
            stride as isize,
            adds,
            lhs,
            lhs_column,
            lhs_row,
            rhs,
            rhs_column,
            rhs_row,
            1.0,
            1.0,
            false,
            false,
            false,
            parallelism,
        );
    }
}

/// A tensor that can be a factor.
pub(super) fn unflipped<const D: usize>(tensor: Tensor<D>) -> FlexTensor {
    let tensor = of(tensor);
    match tensor.layout().strides().iter().all(|stride| *stride >= 0) {
        true => tensor,
        false => tensor.to_contiguous(),
    }
}

/// Writes `lhs * rhs` into rows and columns of `output`, or adds it to them.
pub(in super::super) fn product_into(
    output: Tensor<2>,
    [rows, columns]: [Range<usize>; 2],
    before: Before,
    lhs: Tensor<2>,
    rhs: Tensor<2>,
) -> Tensor<2> {
    let [height, width] = output.dims();
    let mut output = of(output);
    let is_all = [rows.len(), columns.len()] == [height, width];
    if !(output.is_unique() && is_whole(&output) && output.is_contiguous()) {
        output = match is_all && before == Before::Anything {
            true => zeros(output.layout().shape()),
            false => output.to_contiguous(),
        };
    }
    let (lhs, rhs) = (unflipped(lhs), unflipped(rhs));
    let (of_lhs, of_rhs) = (Matrix::of(&lhs), Matrix::of(&rhs));
    assert_eq!(
        [of_lhs.dims[0], of_rhs.dims[1]],
        [rows.len(), columns.len()],
        "a product fills its part of the output"
    );
    let first = rows.start * width + columns.start;
    if let Some(output) = output.storage_mut().get_mut(first..) {
        multiply(output, width, before, of_lhs, of_rhs);
    }
    tensor(output)
}

/// `rows` times the same row, `[rows, width]`.
pub(in super::super) fn repeated(row: Tensor<1>, rows: usize) -> Tensor<2> {
    let row = floats(row);
    let numbers = read(&row).repeat(rows);
    let dims = [rows, read(&row).len()];
    tensor(FlexTensor::from_data(TensorData::new(numbers, dims)))
}
