//! States as Burn's records have them: a name for each tensor and each number.
//!
//! Burn's derive makes these for its own crates only.

use burn::backend::ops::{FloatTensorOps, IntTensorOps};
use burn::backend::{Dispatch, DispatchTensor, TensorMetadata};
#[cfg(feature = "flex")]
use burn::optim::RecordState;
use burn::optim::{StateSink, StateSource};
#[cfg(feature = "flex")]
use burn::tensor::TensorData;
use burn::tensor::{DType, Device, Int, Tensor};

use crate::tensors::{MapTensor, Tensors};

/// A part of a state, under its whole name.
pub(super) trait Field: Sized {
    fn flatten(&self, name: &str, out: &mut StateSink);

    /// `None` if it is missing, or of another kind.
    fn unflatten(name: &str, source: &mut StateSource, device: &Device) -> Option<Self>;

    /// Applies a function to each tensor.
    fn map_tensors(self, map: &mut MapTensor<'_>) -> Self;

    fn on_device(self, device: &Device) -> Self {
        let device = device.as_dispatch();
        self.map_tensors(&mut MapTensor(&mut |tensor: DispatchTensor| match tensor
            .dtype()
            .is_float()
        {
            true => Dispatch::float_to_device(tensor, device),
            false => Dispatch::int_to_device(tensor, device),
        }))
    }
}

impl Field for usize {
    fn flatten(&self, name: &str, out: &mut StateSink) {
        out.push_scalar("", name, (*self).into());
    }

    fn unflatten(name: &str, source: &mut StateSource, _device: &Device) -> Option<Self> {
        source.take_scalar("", name)?.try_into().ok()
    }

    fn map_tensors(self, _: &mut MapTensor<'_>) -> Self {
        self
    }
}

impl<const D: usize> Field for Tensor<D> {
    fn flatten(&self, name: &str, out: &mut StateSink) {
        out.push_tensor("", name, self.clone().into_data());
    }

    fn unflatten(name: &str, source: &mut StateSource, device: &Device) -> Option<Self> {
        let data = source.take_tensor("", name)?;
        let dtype = data.dtype();
        let is_tensor = data.rank() == D && dtype.is_float();
        // In the type that it was saved in, if the device has that: the device's own may be another.
        is_tensor.then(|| match device.supports_dtype(dtype) {
            true => Self::from_data(data, (device, dtype)),
            false => Self::from_data(data, device),
        })
    }

    fn map_tensors(self, map: &mut MapTensor<'_>) -> Self {
        self.map(map)
    }
}

/// A record of words of 32 bits.
impl Field for Tensor<1, Int> {
    fn flatten(&self, name: &str, out: &mut StateSink) {
        out.push_tensor("", name, self.clone().into_data());
    }

    fn unflatten(name: &str, source: &mut StateSource, device: &Device) -> Option<Self> {
        let data = source.take_tensor("", name)?;
        let is_words = data.rank() == 1 && data.dtype() == DType::I32;
        is_words.then(|| Self::from_data(data, (device, DType::I32)))
    }

    fn map_tensors(self, map: &mut MapTensor<'_>) -> Self {
        self.map(map)
    }
}

impl<T: Field> Field for Option<T> {
    fn flatten(&self, name: &str, out: &mut StateSink) {
        if let Some(field) = self {
            field.flatten(name, out);
        }
    }

    fn unflatten(name: &str, source: &mut StateSource, device: &Device) -> Option<Self> {
        Some(T::unflatten(name, source, device))
    }

    fn map_tensors(self, map: &mut MapTensor<'_>) -> Self {
        self.map(|field| field.map_tensors(map))
    }
}

/// The state on Flex with the tensors of its record changed, one after the other.
#[cfg(feature = "flex")]
pub(super) fn by_way_of_record<S: RecordState, E>(
    state: S,
    mut change: impl FnMut(TensorData) -> Result<TensorData, E>,
) -> Result<S, E> {
    const NAME: &str = "state";
    let mut read = StateSink::default();
    state.state_flatten(NAME, &mut read);
    drop(state);
    let mut source = StateSource::new(read.scalars.into_iter().collect());
    for (name, data) in read.tensors {
        source.insert_tensor(name, change(data)?);
    }
    let state = RecordState::state_unflatten(NAME, &mut source, &Device::flex());
    Ok(state.expect("it has just been written"))
}

/// Saves a state as its fields, each under its name, and lets it be a field of another.
macro_rules! record_state {
    ($name:ident { $($field:ident),+ }) => {
        impl<const D: usize> burn::optim::RecordState for $name<D> {
            fn state_flatten(&self, prefix: &str, out: &mut burn::optim::StateSink) {
                $(
                    let name = burn::optim::join_path(prefix, stringify!($field));
                    crate::optim::record::Field::flatten(&self.$field, &name, out);
                )+
            }

            fn state_unflatten(
                prefix: &str,
                source: &mut burn::optim::StateSource,
                device: &burn::tensor::Device,
            ) -> Option<Self> {
                // Each of them, also after one that is missing: a moment tells who looks for it.
                $(
                    let name = burn::optim::join_path(prefix, stringify!($field));
                    let $field = crate::optim::record::Field::unflatten(&name, source, device);
                )+
                Some(Self { $($field: $field?),+ })
            }
        }

        impl<const D: usize> crate::optim::record::Field for $name<D> {
            fn flatten(&self, name: &str, out: &mut burn::optim::StateSink) {
                burn::optim::RecordState::state_flatten(self, name, out);
            }

            fn unflatten(
                name: &str,
                source: &mut burn::optim::StateSource,
                device: &burn::tensor::Device,
            ) -> Option<Self> {
                burn::optim::RecordState::state_unflatten(name, source, device)
            }

            fn map_tensors(self, map: &mut crate::tensors::MapTensor<'_>) -> Self {
                Self {
                    $($field: crate::optim::record::Field::map_tensors(self.$field, map)),+
                }
            }
        }
    };
}

pub(super) use record_state;
