//! What an armed `Param` holds in place of its weight.

use burn::Tensor;
use burn::backend::TensorMetadata;
use burn::tensor::{DType, Shape, TensorData};

use crate::backend::{Inner, Primitive};

/// A signaling NaN: copies keep its bits, and whatever is computed from it has others.
const BITS: u32 = 0x7f8a_75e5;

/// The one element of a placeholder, of the weight's rank and type. Expanded to the weight's shape it takes no
/// memory, and is a NaN to whoever reads around `Param::val`.
pub(crate) fn placeholder_element<B: Inner>(weight: &Primitive<B>) -> Primitive<B> {
    let one = Shape::from(vec![1; weight.shape().num_dims()]);
    let data = TensorData::new(vec![f32::from_bits(BITS)], one);
    let data = match weight.dtype() {
        DType::F32 => data,
        // Fewer bits leave nothing to tell it from another NaN.
        dtype => data.convert_dtype(dtype),
    };
    B::float_from_data(data, &weight.device())
}

/// Whether a tensor is a placeholder, and was not computed from one. Reads one element.
pub(crate) fn is_placeholder<const D: usize>(tensor: Tensor<D>) -> bool {
    if tensor.shape().num_elements() == 0 {
        return false;
    }
    let data = tensor
        .inner()
        .slice(std::array::from_fn::<_, D, _>(|_| 0..1))
        .into_data();
    let first = data.iter::<f32>().next();
    match data.dtype() {
        DType::F32 => data
            .as_slice::<f32>()
            .is_ok_and(|data| data[0].to_bits() == BITS),
        _ => first.is_some_and(f32::is_nan),
    }
}

/// Whether a tensor begins with a NaN. Reads one element.
pub(crate) fn begins_with_nan<const D: usize>(tensor: Tensor<D>) -> bool {
    tensor.shape().num_elements() > 0
        && tensor
            .inner()
            .slice(std::array::from_fn::<_, D, _>(|_| 0..1))
            .into_data()
            .iter::<f32>()
            .any(f32::is_nan)
}
