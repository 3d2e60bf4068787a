//! The placeholder that an armed `Param` holds instead of its weight.

use burn::Tensor;
use burn::backend::{BackendTensor, TensorMetadata};
use burn::tensor::{Bytes, DType, Shape, TensorData};

use crate::backend::{Inner, Primitive, WithBackend, reading_waits, with_backend};

/// A signaling NaN of a float type, and the quiet NaN that arithmetic makes of it. Copies keep the
/// bits of the first; computed values have those of the second.
fn bits(dtype: DType) -> Option<(Vec<u8>, Vec<u8>)> {
    macro_rules! pair {
        ($signaling:expr, $quiet:expr) => {
            Some((
                $signaling.to_ne_bytes().to_vec(),
                ($signaling | $quiet).to_ne_bytes().to_vec(),
            ))
        };
    }
    match dtype {
        DType::F64 => pair!(0x7ff1_4ebc_a753_9e51_u64, 0x0008_0000_0000_0000),
        DType::F32 => pair!(0x7f8a_75e5_u32, 0x0040_0000),
        DType::F16 => pair!(0x7d35_u16, 0x0200),
        DType::BF16 => pair!(0x7f8a_u16, 0x0040),
        _ => None,
    }
}

/// The one element of a placeholder, of the weight's rank and type. Expanded to the weight's shape,
/// it takes no memory. Code that does not read through `Param::val` sees NaN.
pub(crate) fn placeholder_element<B: Inner>(weight: &Primitive<B>) -> Primitive<B> {
    let one = Shape::from(vec![1; weight.shape().num_dims()]);
    let data = match bits(weight.dtype()) {
        Some((signaling, _)) => {
            TensorData::from_bytes(Bytes::from_bytes_vec(signaling), one, weight.dtype())
        }
        None => TensorData::new(vec![f32::NAN], one).convert_dtype(weight.dtype()),
    };
    B::float_from_data(data, &weight.device())
}

/// The [element](placeholder_element) of a tensor's backend.
#[cfg(feature = "train")]
pub(crate) struct ElementOf<const D: usize>;

#[cfg(feature = "train")]
impl<const D: usize> WithBackend for ElementOf<D> {
    type Output = Tensor<D>;

    fn run<B: Inner>(self, tensor: BackendTensor<B>) -> Tensor<D> {
        B::tensor(match tensor {
            BackendTensor::Autodiff(tensor) => placeholder_element::<B>(tensor.primitive()),
            BackendTensor::Float(tensor) => placeholder_element::<B>(&tensor),
            _ => unreachable!("a float parameter"),
        })
    }
}

/// Whether a tensor is a placeholder, and was not computed from one. Reads one element.
pub(crate) fn is_placeholder<const D: usize>(tensor: Tensor<D>) -> bool {
    let first = first_element(tensor);
    first.is_some_and(|first| match bits(first.dtype()) {
        Some((signaling, _)) => first.as_bytes() == signaling,
        None => first.iter::<f32>().any(f32::is_nan),
    })
}

/// Whether a tensor was computed from a placeholder. Reads one element.
pub(crate) fn is_computed_from_placeholder<const D: usize>(tensor: Tensor<D>) -> bool {
    // A GPU may change the bits of a NaN.
    let keeps_bits = !reading_waits(&tensor.clone().into_dispatch().kind);
    let first = first_element(tensor);
    first.is_some_and(|first| match bits(first.dtype()) {
        Some((_, quiet)) if keeps_bits => first.as_bytes() == quiet,
        _ => first.iter::<f32>().any(f32::is_nan),
    })
}

struct LeafOf;

impl WithBackend for LeafOf {
    type Output = Option<u64>;

    fn run<B: Inner>(self, tensor: BackendTensor<B>) -> Option<u64> {
        match tensor {
            BackendTensor::Autodiff(leaf) => Some(leaf.id().value),
            _ => None,
        }
    }
}

/// The node of a parameter's base; `None` on an unknown backend.
pub(crate) fn leaf_of<const D: usize>(base: Tensor<D>) -> Option<u64> {
    with_backend(base.into_dispatch().kind, LeafOf).flatten()
}

/// Whether the base of an armed parameter is no longer the placeholder over this leaf: something
/// was loaded into it or computed from it.
pub(crate) fn is_replaced<const D: usize>(leaf: u64, base: Tensor<D>) -> bool {
    leaf_of(base.clone()) != Some(leaf) && !is_placeholder(base)
}

/// Whether a gradient of a weight with these dimensions is the mark of one that was taken, or was
/// computed from such a mark.
pub(crate) fn is_left<const D: usize>(dims: [usize; D], grad: Tensor<D>) -> bool {
    // A mark has one element, which need not be read where the weight has more.
    if grad.dims() == [1; D] {
        return dims != [1; D] || is_placeholder(grad);
    }
    let waits = reading_waits(&grad.clone().into_dispatch().kind);
    !waits && is_computed_from_placeholder(grad)
}

fn first_element<const D: usize>(tensor: Tensor<D>) -> Option<TensorData> {
    if tensor.shape().num_elements() == 0 {
        return None;
    }
    let first = std::array::from_fn::<_, D, _>(|_| 0..1);
    Some(tensor.inner().slice(first).into_data())
}
