//! The types that arithmetic is done in.

use burn::tensor::{DType, Tensor};

/// The type that numbers of a type are computed in: `f16` overflows, and `bf16` has 8 bits.
pub(crate) fn wide(dtype: DType) -> DType {
    match dtype {
        DType::F16 | DType::BF16 => DType::F32,
        dtype => dtype,
    }
}

pub(crate) fn is_half(dtype: DType) -> bool {
    wide(dtype) != dtype
}

/// The tensor in its [`wide`] type, which costs no copy if it has that.
pub(crate) fn widened<const D: usize>(tensor: Tensor<D>) -> Tensor<D> {
    let dtype = wide(tensor.dtype());
    tensor.cast(dtype)
}
