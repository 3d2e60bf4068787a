//! A matrix in four bits.

use std::ops::Range;

use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use lean_arithmetic::nf4::{self, BLOCK, DYNAMIC, Packer, QUANTILES, SCALES};

use super::state::Nf4State;
#[cfg(feature = "flex")]
use crate::backend::is_on_flex;
use crate::operations::chunks::chunks;
#[cfg(feature = "flex")]
use crate::operations::flex;

/// Numbers of a [`BLOCK`]th of what is packed at a time, at least.
const NUMBERS_AT_ONCE: usize = 1 << 10;

/// How much of a weight is unpacked or cast at once, in f32.
pub(crate) const PART_BYTES: usize = 2 << 20;

/// A weight in four bits, without autodiff. It is stored as a matrix `[rows, width]`, row after row.
#[derive(Clone, Debug)]
pub(crate) struct Packed {
    /// Eight numbers in a word.
    pub(super) numbers: Tensor<1, Int>,
    /// The scales of four blocks in a word.
    pub(super) scales: Tensor<1, Int>,
    /// The scales of scales, and the mean of scales at last.
    pub(super) of_scales: Tensor<1>,
    /// Of the matrix.
    pub(super) dims: [usize; 2],
    /// Whether the matrix is the transposed weight, as PyTorch has linear layers.
    pub(super) is_transposed: bool,
}

impl Packed {
    /// Packs a weight. Also returns whether all of its numbers are finite.
    pub(super) fn new(weight: Tensor<2>, is_transposed: bool) -> (Self, bool) {
        let matrix = match is_transposed {
            true => weight.transpose(),
            false => weight,
        };
        let (shape, device) = (matrix.dims(), matrix.device());
        let [rows, width] = shape;
        // Whole blocks at a time: in f32, the matrix would be the largest tensor of a model.
        let at_once = BLOCK * (NUMBERS_AT_ONCE / width.max(1)).max(1);
        let (mut packer, mut are_finite) = (Packer::default(), true);
        for first in (0..rows).step_by(at_once) {
            let part = matrix.clone().narrow(0, first, at_once.min(rows - first));
            // Flex would cast the whole matrix that this is a part of.
            let numbers = part.into_data().convert_dtype(DType::F32);
            let numbers: &[f32] = numbers.as_slice().expect("it is in f32");
            are_finite &= numbers.iter().all(|number| number.is_finite());
            packer.add(numbers);
        }
        let packed = packer.finish();
        let state = Nf4State {
            shape,
            weight: packed.numbers,
            absmax: packed.scales,
            nested_absmax: packed.scales_of_scales,
            nested_offset: packed.mean,
        };
        (Self::of(&state, is_transposed, &device), are_finite)
    }

    pub(super) fn of(state: &Nf4State, is_transposed: bool, device: &Device) -> Self {
        let device = device.clone().inner();
        let words = |bytes: &[u8]| {
            let words = nf4::words(bytes);
            let length = words.len();
            Tensor::from_data(TensorData::new(words, [length]), (&device, DType::I32))
        };
        let mut of_scales = state.nested_absmax.clone();
        of_scales.push(state.nested_offset);
        let length = of_scales.len();
        Self {
            numbers: words(&state.weight),
            scales: words(&state.absmax),
            of_scales: Tensor::from_data(
                TensorData::new(of_scales, [length]),
                (&device, DType::F32),
            ),
            dims: state.shape,
            is_transposed,
        }
    }

    pub(crate) fn state(&self) -> Nf4State {
        let numbers: usize = self.dims.iter().product();
        let bytes = |words: &Tensor<1, Int>, length: usize| {
            let words = words.clone().into_data();
            let bytes = words.iter::<i32>().flat_map(i32::to_le_bytes);
            bytes.take(length).collect()
        };
        let mut nested_absmax: Vec<f32> = self.of_scales.clone().into_data().iter().collect();
        let nested_offset = nested_absmax.pop().expect("there is a mean");
        Nf4State {
            shape: self.dims,
            weight: bytes(&self.numbers, numbers.div_ceil(2)),
            absmax: bytes(&self.scales, numbers.div_ceil(BLOCK)),
            nested_absmax,
            nested_offset,
        }
    }

    /// The shape of the weight.
    pub(crate) fn dims(&self) -> [usize; 2] {
        let [rows, width] = self.dims;
        match self.is_transposed {
            true => [width, rows],
            false => [rows, width],
        }
    }

    /// Whether the columns of the weight can be unpacked by themselves.
    pub(crate) fn is_transposed(&self) -> bool {
        self.is_transposed
    }

    /// The rows at these indices, in f32.
    pub(crate) fn select(&self, indices: Tensor<1, Int>) -> Tensor<2> {
        #[cfg(feature = "flex")]
        if is_on_flex(&self.of_scales) {
            let rows = indices.into_data();
            let rows = rows.iter::<u64>().map(|row| row as usize);
            let rows = rows.map(|row| self.rows(row..row + 1));
            return Tensor::cat(rows.collect(), 0);
        }
        self.unpacked().select(0, indices)
    }

    /// The whole weight.
    pub(crate) fn unpacked(&self) -> Tensor<2> {
        let matrix = self.rows(0..self.dims[0]);
        match self.is_transposed {
            true => matrix.transpose(),
            false => matrix,
        }
    }

    /// These rows of the weight, in f32.
    pub(crate) fn unpacked_rows(&self, rows: Range<usize>) -> Tensor<2> {
        if !self.is_transposed {
            return self.rows(rows);
        }
        let [height, width] = self.dims;
        #[cfg(feature = "flex")]
        if is_on_flex(&self.of_scales) && !rows.is_empty() && height > 0 {
            // A product with this layout is faster than with that of the weight.
            return self.part([0..height, rows], false).transpose();
        }
        let part = |part| self.rows(part).slice_dim(1, rows.clone());
        let parts: Vec<_> = chunks(height, 4 * width, 2 * PART_BYTES)
            .map(part)
            .collect();
        match parts.is_empty() {
            true => self.unpacked().slice_dim(0, rows),
            false => Tensor::cat(parts, 0).transpose(),
        }
    }

    /// These columns of the weight, in f32.
    pub(crate) fn unpacked_columns(&self, columns: Range<usize>) -> Tensor<2> {
        if !self.is_transposed {
            return self.unpacked().slice_dim(1, columns);
        }
        #[cfg(feature = "flex")]
        if is_on_flex(&self.of_scales) && !columns.is_empty() && self.dims[1] > 0 {
            // A product with this layout is faster than with that of the matrix.
            return self.part([columns, 0..self.dims[1]], true);
        }
        self.rows(columns).transpose()
    }

    /// Rows and columns of the matrix, neither none; or columns and rows.
    #[cfg(feature = "flex")]
    fn part(&self, at: [Range<usize>; 2], is_transposed: bool) -> Tensor<2> {
        let [_, width] = self.dims;
        flex::unpack_nf4(
            &self.numbers,
            &self.scales,
            &self.of_scales,
            width,
            at,
            is_transposed,
        )
    }

    /// These rows of the matrix, in f32.
    pub(crate) fn rows(&self, rows: Range<usize>) -> Tensor<2> {
        let [_, width] = self.dims;
        let range = rows.start * width..rows.end * width;
        if range.is_empty() {
            return Tensor::zeros([rows.len(), width], (&self.of_scales.device(), DType::F32));
        }
        #[cfg(feature = "flex")]
        if is_on_flex(&self.of_scales) {
            return self.part([rows, 0..width], false);
        }
        let codes = field(&self.numbers, range.clone(), 4, 4);
        let numbers = table(&QUANTILES, &self.of_scales).select(0, codes);
        let blocks = range.start / BLOCK..range.end.div_ceil(BLOCK);
        let scales = self.scales_of(blocks.clone());
        // Each block's scale for each of its numbers.
        let scales = repeated(scales, BLOCK);
        let before = range.start - blocks.start * BLOCK;
        let scales = scales.slice_dim(0, before..before + range.len());
        (numbers * scales).reshape([rows.len(), width])
    }

    fn scales_of(&self, blocks: Range<usize>) -> Tensor<1> {
        let [count] = self.of_scales.dims();
        let codes = field(&self.scales, blocks.clone(), 8, 0);
        let differences = table(DYNAMIC.as_slice(), &self.of_scales).select(0, codes);
        let groups = blocks.start / SCALES..blocks.end.div_ceil(SCALES);
        let before = blocks.start - groups.start * SCALES;
        let of_scales = repeated(self.of_scales.clone().slice([groups]), SCALES);
        let of_scales = of_scales.slice_dim(0, before..before + blocks.len());
        differences * of_scales + self.of_scales.clone().slice_dim(0, count - 1..count)
    }
}

fn table(numbers: &[f32], like: &Tensor<1>) -> Tensor<1> {
    Tensor::from_data(
        TensorData::new(numbers.to_vec(), [numbers.len()]),
        (&like.device(), DType::F32),
    )
}

fn repeated(numbers: Tensor<1>, times: usize) -> Tensor<1> {
    let [count] = numbers.dims();
    numbers
        .reshape([count, 1])
        .expand([count, times])
        .reshape([count * times])
}

/// Fields of so many bits in words, from the lowest on. With `flip` of that many bits, those of each pair are
/// exchanged.
fn field(words: &Tensor<1, Int>, range: Range<usize>, bits: usize, flip: usize) -> Tensor<1, Int> {
    let per_word = 32 / bits;
    let covered = range.start / per_word..range.end.div_ceil(per_word);
    let (first, count) = (covered.start * per_word, covered.len());
    let words = words.clone().slice([covered]);
    let mask = (1_i64 << bits) - 1;
    let fields = (0..per_word).map(|at| {
        let shift = (at * bits) ^ flip;
        let field = words.clone().bitwise_right_shift_scalar(shift as i32);
        field.bitwise_and_scalar(mask as i32)
    });
    let fields: Tensor<2, Int> = Tensor::stack(fields.collect(), 1);
    let fields = fields.reshape([count * per_word]);
    fields.slice_dim(0, range.start - first..range.end - first)
}
