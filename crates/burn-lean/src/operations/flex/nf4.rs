//! Weights in four bits, unpacked into slices.

use std::ops::Range;

use burn::tensor::{Int, Shape, Tensor};
use lean_arithmetic::nf4;

use super::{CHUNK, FlexTensor, each, floats, read, tensor, zeros};
use burn::backend::Flex;

/// Rows and columns of a matrix of this width, or the columns as rows. `of_scales` has the scales of scales,
/// and their mean at last.
pub(in crate::operations) fn unpack(
    numbers: &Tensor<1, Int>,
    scales: &Tensor<1, Int>,
    of_scales: &Tensor<1>,
    width: usize,
    [rows, columns]: [Range<usize>; 2],
    is_transposed: bool,
) -> Tensor<2> {
    let [numbers, scales] = [numbers, scales].map(|words| ints(words.clone()));
    let of_scales = floats(of_scales.clone());
    let [numbers, scales]: [&[i32]; 2] = [&numbers, &scales].map(words);
    let (mean, of_scales) = read(&of_scales).split_last().expect("there is a mean");
    let scale = |block: usize| {
        let code = scales[block / 4].to_le_bytes()[block % 4];
        nf4::scale(code, of_scales[block / nf4::SCALES], *mean)
    };
    let dims = match is_transposed {
        true => [columns.len(), rows.len()],
        false => [rows.len(), columns.len()],
    };
    let mut output = zeros(&Shape::new(dims));
    let mut at_once = (CHUNK / dims[1].max(1)).max(1);
    if is_transposed {
        at_once = at_once.next_multiple_of(nf4::BLOCK);
    }
    let chunks = output.storage_mut().chunks_mut(at_once * dims[1].max(1));
    let chunks = chunks.enumerate().collect();
    if is_transposed {
        each(chunks, |(at, output): (usize, &mut [f32])| {
            let first = columns.start + at * at_once;
            let part = first..columns.end.min(first + at_once);
            nf4::unpack_transposed(numbers, width, [rows.clone(), part], scale, output);
        });
        return tensor(output);
    }
    // Whole rows follow each other.
    let run = match columns.len() == width {
        true => at_once * dims[1],
        false => dims[1],
    };
    each(chunks, |(at, output): (usize, &mut [f32])| {
        for (row, output) in output.chunks_mut(run).enumerate() {
            let start = (rows.start + at * at_once + row) * width + columns.start;
            nf4::unpack(numbers, start..start + output.len(), scale, output);
        }
    });
    tensor(output)
}

fn ints(tensor: Tensor<1, Int>) -> FlexTensor {
    let tensor = tensor.try_into_primitive::<Flex>();
    tensor.expect("it is on Flex").to_contiguous()
}

fn words(tensor: &FlexTensor) -> &[i32] {
    tensor.as_slice().expect("its elements are in order")
}
