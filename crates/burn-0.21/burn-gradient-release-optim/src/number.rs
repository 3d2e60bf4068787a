//! The elements of a tensor as one number of a rule.

use burn::tensor::{Tensor, backend::Backend};

lean_arithmetic::whole_tensor! {
    /// All elements of a tensor at once, as a rule without a pass computes with them.
    Whole<B, D>([B: Backend, const D: usize] Tensor<B, D>), greater_equal_elem
}
