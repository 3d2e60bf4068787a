//! Random masks, kept as bits.
//!
//! A mask of dropout cannot be computed again, and as floats it takes as much memory as the tensor
//! that it masks.

use burn::tensor::{
    DType, FloatDType, Int, IntDType, Shape, Tensor, TensorData, TensorMetadata, TensorPrimitive,
    backend::Backend, ops::FloatTensor,
};

/// Bits in a word: those of an `i32` without its sign, as every backend has them.
const BITS: usize = 31;

/// Number of words packed at a time: their integers take 16 MiB at most.
const WORDS_AT_A_TIME: usize = (4 << 20) / BITS;

/// A tensor of zeros and ones.
pub(crate) struct Mask<B: Backend> {
    words: Vec<Tensor<B, 2, Int>>,
    shape: Shape,
    dtype: FloatDType,
}

impl<B: Backend> Mask<B> {
    /// Packs a tensor of zeros and ones.
    pub(crate) fn pack(value: FloatTensor<B>) -> Self {
        let (shape, dtype) = (value.shape(), value.dtype().into());
        let count = shape.num_elements();
        let flat = Tensor::<B, 1>::from_primitive(TensorPrimitive::Float(value)).reshape([count]);
        let device = flat.device();
        let powers = (0..BITS).map(|bit| 1i32 << bit).collect();
        let powers = TensorData::new::<i32, _>(powers, [1, BITS]);
        let powers = Tensor::<B, 2, Int>::from_data(powers, (&device, DType::I32));
        let at_a_time = WORDS_AT_A_TIME * BITS;
        let words = (0..count).step_by(at_a_time).map(|from| {
            let end = (from + at_a_time).min(count);
            let part = flat.clone().narrow(0, from, end - from).greater_elem(0.5);
            let mut bits = part.int().cast(IntDType::I32);
            let missing = (end - from).next_multiple_of(BITS) - (end - from);
            if missing > 0 {
                let zeros = Tensor::zeros([missing], (&device, DType::I32));
                bits = Tensor::cat(vec![bits, zeros], 0);
            }
            let rows = (end - from).div_ceil(BITS);
            (bits.reshape([rows, BITS]) * powers.clone()).sum_dim(1)
        });
        Self {
            words: words.collect(),
            shape,
            dtype,
        }
    }

    pub(crate) fn bytes(&self) -> u64 {
        let words: usize = self
            .words
            .iter()
            .map(|words| words.shape().num_elements())
            .sum();
        (words * size_of::<i32>()) as u64
    }

    pub(crate) fn unpack(&self) -> FloatTensor<B> {
        let device = match self.words.first() {
            Some(words) => words.device(),
            None => unreachable!("a mask without elements is not packed"),
        };
        let places = (0..BITS as i32).collect();
        let places = TensorData::new::<i32, _>(places, [1, BITS]);
        let places = Tensor::<B, 2, Int>::from_data(places, (&device, DType::I32));
        let parts = self.words.iter().map(|words| {
            let [rows, _] = words.dims();
            let shifted = words
                .clone()
                .expand([rows, BITS])
                .bitwise_right_shift(places.clone().expand([rows, BITS]));
            let one = Tensor::<B, 2, Int>::ones([1, 1], (&device, DType::I32));
            let bits = shifted.bitwise_and(one.expand([rows, BITS]));
            bits.cast(self.dtype).reshape([rows * BITS])
        });
        let flat: Tensor<B, 1> = Tensor::cat(parts.collect(), 0);
        let flat = flat.narrow(0, 0, self.shape.num_elements());
        B::float_reshape(flat.into_primitive().tensor(), self.shape.clone())
    }
}
