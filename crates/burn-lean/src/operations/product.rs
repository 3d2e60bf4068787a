//! Products of matrices, on Flex written where they belong.

use std::ops::Range;

use burn::tensor::{DType, Tensor};

use super::chunks::{chunks, map_rows};
#[cfg(feature = "flex")]
use super::flex;
use crate::backend::is_on_flex;
use crate::wide::{is_half, wide, widened};

/// What was in the output of a product.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Before {
    /// Is written over.
    Anything,
    /// Is added to.
    Sum,
}

/// `lhs * rhs`, where one may be empty.
pub(super) fn matmul(lhs: Tensor<2>, rhs: Tensor<2>) -> Tensor<2> {
    let is_empty = [&lhs, &rhs]
        .iter()
        .any(|factor| factor.shape().num_elements() == 0);
    if !is_empty && !are_written(&lhs, &rhs) {
        return lhs.matmul(rhs);
    }
    let output = filled([lhs.dims()[0], rhs.dims()[1]], lhs.dtype(), &lhs);
    match is_empty {
        true => output,
        false => product_over(output, lhs, rhs),
    }
}

/// `lhs * rhs`, written over `output`, which has that shape and type, if such products are.
pub(super) fn product_over(output: Tensor<2>, lhs: Tensor<2>, rhs: Tensor<2>) -> Tensor<2> {
    if !are_written(&lhs, &rhs) {
        drop(output);
        return matmul(lhs, rhs);
    }
    if is_half(lhs.dtype()) {
        return product_in_f32(output, &lhs, &rhs, None);
    }
    let all = output.dims().map(|length| 0..length);
    product_into(output, all, Before::Anything, lhs, rhs)
}

/// `output + lhs * rhs`, where the factors are in 32 bits; of the type of `output`, rounded once.
pub(super) fn add_product(output: Tensor<2>, lhs: Tensor<2>, rhs: Tensor<2>) -> Tensor<2> {
    let (dtype, dims) = (output.dtype(), output.dims());
    let is_empty = dims.contains(&0) || lhs.dims()[1] == 0;
    if is_empty {
        return output;
    }
    if dtype == lhs.dtype() {
        let all = dims.map(|length| 0..length);
        return product_into(output, all, Before::Sum, lhs, rhs);
    }
    map_rows(output, |rows, output| {
        let lhs = lhs.clone().slice([rows]);
        (output.cast(lhs.dtype()) + lhs.matmul(rhs.clone())).cast(dtype)
    })
}

/// Whether the product of two factors is written into an output: on Flex, in 32 bits.
fn are_written(lhs: &Tensor<2>, rhs: &Tensor<2>) -> bool {
    let is_alike = lhs.dtype() == rhs.dtype();
    is_alike && is_on_flex(lhs) && wide(lhs.dtype()) == DType::F32
}

/// `lhs * rhs`, written into these rows and columns of `output`, or added to them.
pub(super) fn product_into(
    output: Tensor<2>,
    at: [Range<usize>; 2],
    before: Before,
    lhs: Tensor<2>,
    rhs: Tensor<2>,
) -> Tensor<2> {
    #[cfg(feature = "flex")]
    if [&output, &lhs, &rhs].into_iter().all(flex::has_slices) {
        return flex::product_into(output, at, before, lhs, rhs);
    }
    let mut part = matmul(lhs, rhs);
    if before == Before::Sum {
        part = part + output.clone().slice(at.clone());
    }
    let dtype = output.dtype();
    output.slice_assign(at, part.cast(dtype))
}

/// What a product is added to, where there is a bias: that, for each row.
pub(super) fn onto_bias(
    bias: Option<Tensor<1>>,
    [rows, columns]: [usize; 2],
    like: &Tensor<2>,
) -> (Tensor<2>, Before) {
    #[cfg(feature = "flex")]
    if let Some(bias) = bias.as_ref().filter(|bias| flex::has_slices(bias)) {
        return (flex::repeated(bias.clone(), rows), Before::Sum);
    }
    let zeros = filled([rows, columns], like.dtype(), like);
    match bias {
        Some(bias) => (zeros + bias.unsqueeze(), Before::Sum),
        None => (zeros, Before::Anything),
    }
}

/// How large a part of a product in half precision is: smaller ones are slower.
const PART_BYTES: usize = 1 << 20;

/// Fewest rows or columns of a part.
const SHORTEST: usize = 128;

/// A part of a product `[rows, columns]`.
struct Part {
    rows: Range<usize>,
    columns: Range<usize>,
}

/// The parts that a product is made in, of which each is in 32 bits for a while. Their longer axis is
/// cut: a product reads all of the other factor for each part.
fn parts([rows, columns]: [usize; 2]) -> impl Iterator<Item = Part> + Send {
    let cuts_rows = rows >= columns;
    let (length, other) = match cuts_rows {
        true => (rows, columns),
        false => (columns, rows),
    };
    let line = 4 * other;
    let bytes = PART_BYTES.max(SHORTEST * line);
    chunks(length, line, bytes).map(move |part| match cuts_rows {
        true => Part {
            rows: part,
            columns: 0..columns,
        },
        false => Part {
            rows: 0..rows,
            columns: part,
        },
    })
}

/// `lhs * rhs + bias` in half precision, computed in 32 bits and rounded once. Of the factor that all
/// parts read, there is one copy in 32 bits; Flex would make it anew for each part.
pub(super) fn product_in_f32(
    mut output: Tensor<2>,
    lhs: &Tensor<2>,
    rhs: &Tensor<2>,
    bias: Option<Tensor<1>>,
) -> Tensor<2> {
    let dtype = output.dtype();
    let ([rows, inner], [_, columns]) = (lhs.dims(), rhs.dims());
    let [mut lhs, mut rhs] = [lhs.clone(), rhs.clone()];
    match rows >= columns {
        true => rhs = widened(rhs),
        false => lhs = widened(lhs),
    }
    let bias = bias.map(|bias| widened(bias).unsqueeze::<2>());
    for Part { rows, columns } in parts([rows, columns]) {
        let lhs = widened(lhs.clone().slice([rows.clone(), 0..inner]));
        let rhs = widened(rhs.clone().slice([0..inner, columns.clone()]));
        let mut part = matmul(lhs, rhs);
        if let Some(bias) = &bias {
            part = part + bias.clone().slice([0..1, columns.clone()]);
        }
        output = output.slice_assign([rows, columns], part.cast(dtype));
    }
    output
}

/// A tensor of zeros that is written over. Not `empty` and not `zeros`, which Flex makes twice.
pub(super) fn filled(dims: [usize; 2], dtype: DType, like: &Tensor<2>) -> Tensor<2> {
    Tensor::full(dims, 0.0, (&like.device(), dtype))
}
