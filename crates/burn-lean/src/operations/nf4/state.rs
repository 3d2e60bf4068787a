//! A packed weight as it is stored.

use lean_arithmetic::nf4::{BLOCK, SCALES};

/// What bitsandbytes stores of a weight, under these names.
#[derive(Clone, Debug, PartialEq)]
pub struct Nf4State {
    /// The shape of the weight: of a linear layer `[d_output, d_input]`, as PyTorch has it.
    pub shape: [usize; 2],
    /// Two numbers in a byte, the first one in the high half.
    pub weight: Vec<u8>,
    /// The scale of each 64 numbers, without the mean.
    pub absmax: Vec<u8>,
    /// The scale of each 256 scales.
    pub nested_absmax: Vec<f32>,
    /// The mean of the scales.
    pub nested_offset: f32,
}

impl Nf4State {
    /// Whether it is of a matrix of this shape, and whole.
    pub(super) fn is_of(&self, shape: [usize; 2]) -> bool {
        let numbers: usize = shape.iter().product();
        let blocks = numbers.div_ceil(BLOCK);
        let lengths = [
            (self.weight.len(), numbers.div_ceil(2)),
            (self.absmax.len(), blocks),
            (self.nested_absmax.len(), blocks.div_ceil(SCALES)),
        ];
        self.shape == shape && lengths.iter().all(|(found, expected)| found == expected)
    }
}
