//! The placeholder that an armed `Param` holds instead of its weight.

use burn::Tensor;
use burn::backend::autodiff::NodeId;
use burn::backend::ops::FloatTensorOps;
use burn::backend::{Dispatch, DispatchTensor, TensorMetadata};
use burn::tensor::{Bytes, DType, Shape, Slice, TensorData};

use super::node::node_of;
use crate::backend::{in_memory, plain, reading_waits};

/// A signaling NaN of a float type. Copies keep its bits; computed values have those of a quiet one,
/// or another sign.
fn bits(dtype: DType) -> Option<Vec<u8>> {
    // Of one payload, so that a cast gives the first bits of the other type's.
    match dtype {
        DType::F64 => Some(0x7ff1_4ebc_a753_9e51_u64.to_ne_bytes().to_vec()),
        DType::F32 => Some(0x7f8a_75e5_u32.to_ne_bytes().to_vec()),
        DType::F16 => Some(0x7c53_u16.to_ne_bytes().to_vec()),
        DType::BF16 => Some(0x7f8a_u16.to_ne_bytes().to_vec()),
        _ => None,
    }
}

/// The exponent of a float with the first seven bits of its mantissa, which every cast keeps; and
/// whether it is negative.
fn first_bits(dtype: DType, bytes: &[u8]) -> Option<(u64, bool)> {
    let (bits, rest) = match dtype {
        DType::F64 => (u64::from_ne_bytes(bytes.try_into().ok()?), 45),
        DType::F32 => (u64::from(u32::from_ne_bytes(bytes.try_into().ok()?)), 16),
        DType::F16 => (u64::from(u16::from_ne_bytes(bytes.try_into().ok()?)), 3),
        DType::BF16 => (u64::from(u16::from_ne_bytes(bytes.try_into().ok()?)), 0),
        _ => return None,
    };
    let sign = 1_u64 << (8 * bytes.len() - 1);
    Some(((bits & !sign) >> rest, bits & sign != 0))
}

/// Tells the bits of what is computed from a placeholder: a quiet NaN, or one of the other sign. `None`
/// if the placeholder of this type has no bits of its own.
fn computed(dtype: DType) -> Option<impl Fn(&[u8]) -> bool> {
    let (placeholder, _) = first_bits(dtype, &bits(dtype)?)?;
    let quiet = placeholder | 0x40;
    Some(move |found: &[u8]| {
        first_bits(dtype, found).is_some_and(|(found, is_negative)| {
            found == quiet || (is_negative && found == placeholder)
        })
    })
}

/// Whether a memory of several elements has some of a placeholder, or of what is computed from one.
/// `None` for one element.
fn has_some(dtype: DType, memory: &[u8]) -> Option<bool> {
    if memory.len() <= dtype.size() {
        return None;
    }
    let (placeholder, is_computed) = (bits(dtype)?, computed(dtype)?);
    let mut elements = memory.chunks_exact(dtype.size());
    Some(elements.any(|element| element == placeholder || is_computed(element)))
}

/// The one element of a placeholder, of the weight's rank and type. Expanded to the weight's shape,
/// it takes no memory. Code that does not read through `Param::val` sees NaN.
pub(crate) fn placeholder_element(weight: &DispatchTensor) -> DispatchTensor {
    let one = Shape::from(vec![1; weight.shape().num_dims()]);
    let data = match bits(weight.dtype()) {
        Some(signaling) => {
            TensorData::from_bytes(Bytes::from_bytes_vec(signaling), one, weight.dtype())
        }
        None => TensorData::new(vec![f32::NAN], one).convert_dtype(weight.dtype()),
    };
    Dispatch::float_from_data(data, &weight.device())
}

/// Whether a tensor is a placeholder, and was not computed from one. Reads one element.
pub(crate) fn is_placeholder(tensor: &DispatchTensor) -> bool {
    first_element(tensor).is_some_and(|first| match bits(first.dtype()) {
        Some(signaling) => first.as_bytes() == signaling,
        None => first.iter::<f32>().any(f32::is_nan),
    })
}

/// Whether a tensor was computed from a placeholder. Reads one element.
pub(crate) fn is_computed_from_placeholder(tensor: &DispatchTensor) -> bool {
    // A GPU may change the bits of a NaN.
    let keeps_bits = !reading_waits(tensor);
    first_element(tensor).is_some_and(|first| {
        match computed(first.dtype()).filter(|_| keeps_bits) {
            Some(is_computed) => is_computed(first.as_bytes()),
            None => first.iter::<f32>().any(f32::is_nan),
        }
    })
}

/// What the base of a parameter is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Holds {
    /// A weight: as always, or loaded while the parameter is armed.
    Weight,
    /// The placeholder of an armed parameter.
    Placeholder,
    /// Something that was computed from a placeholder, or from a part of it.
    Computed,
}

impl Holds {
    /// What a parameter holds that is armed, or is of a copy of an armed model, when it has another leaf
    /// than the armed one.
    pub(crate) fn of_armed(base: &DispatchTensor) -> Self {
        let dtype = base.dtype();
        // It had a weight of floats.
        if !dtype.is_float() {
            return Self::Computed;
        }
        // In the memory of several elements it is not the placeholder, whatever they are: a clamp leaves
        // them as they were.
        match in_memory(base, |memory| has_some(dtype, memory)).flatten() {
            Some(true) => Self::Computed,
            Some(false) => Self::Weight,
            None if is_placeholder(base) => Self::Placeholder,
            None if is_computed_from_placeholder(base) => Self::Computed,
            None => Self::Weight,
        }
    }
}

/// Whether the base of an armed parameter is no longer the placeholder over this leaf: something
/// was loaded into it or computed from it.
pub(crate) fn is_replaced(leaf: NodeId, base: &DispatchTensor) -> bool {
    node_of(base) != Some(leaf) && !is_placeholder(base)
}

/// Whether a gradient of a weight of this shape is the mark of one that was taken, or was computed
/// from such a mark.
pub(crate) fn is_left(shape: &Shape, grad: &DispatchTensor) -> bool {
    // A mark has one element, which need not be read where the weight has more.
    if grad.shape().iter().all(|dim| *dim == 1) {
        return shape.iter().any(|dim| *dim != 1) || is_placeholder(grad);
    }
    !reading_waits(grad) && is_computed_from_placeholder(grad)
}

fn first_element(tensor: &DispatchTensor) -> Option<TensorData> {
    let shape = tensor.shape();
    // What is quantized was never a placeholder.
    if shape.num_elements() == 0 || !tensor.dtype().is_float() {
        return None;
    }
    let first = vec![Slice::from(0..1); shape.num_dims()];
    let first = Dispatch::float_slice(plain(tensor.clone()), &first);
    Some(Tensor::<1>::from_dispatch(first).into_data())
}
