//! A backend with several devices on the processor, which reduces as CUDA does: what is not
//! resolved has no value.

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicU16, Ordering},
};

use burn::{
    backend::{
        Flex,
        flex::{FlexDevice, FlexTensor},
    },
    tensor::{
        DType, Shape, TensorMetadata,
        backend::{
            Backend, BackendTypes, DTypeUsageSet, Device as DeviceTrait, DeviceId, DeviceOps,
            ExecutionError,
            distributed::{CollectiveTensor, DistributedBackend, ReduceOperation},
        },
        ops::{Device, FloatTensor},
    },
};

use crate::all_reduce;

/// A backend decorator around [`Flex`] that gives it devices.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Several;

/// One of its devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Place(u16);

/// Devices that no other test uses.
pub(crate) fn places(count: u16) -> Vec<Place> {
    static NEXT: AtomicU16 = AtomicU16::new(1);
    let first = NEXT.fetch_add(count, Ordering::Relaxed);
    (first..first + count).map(Place).collect()
}

impl DeviceTrait for Place {
    fn from_id(id: DeviceId) -> Self {
        Self(id.index_id)
    }

    fn to_id(&self) -> DeviceId {
        DeviceId::new(7, self.0)
    }
}

impl DeviceOps for Place {}

/// A tensor on a device.
#[derive(Clone, Debug)]
pub(crate) struct Placed {
    value: Value,
    pub(crate) place: Place,
}

#[derive(Clone, Debug)]
enum Value {
    Ready(FlexTensor),
    /// To be filled once all devices have come.
    Reducing(Arc<OnceLock<FlexTensor>>, DType, Shape),
}

impl Placed {
    pub(crate) fn new(tensor: FlexTensor, place: Place) -> Self {
        let value = Value::Ready(tensor);
        Self { value, place }
    }

    pub(crate) fn ready(&self) -> FlexTensor {
        match &self.value {
            Value::Ready(tensor) => tensor.clone(),
            Value::Reducing(cell, ..) => cell.get().expect("used before it is resolved").clone(),
        }
    }
}

impl TensorMetadata for Placed {
    fn dtype(&self) -> DType {
        match &self.value {
            Value::Ready(tensor) => tensor.dtype(),
            Value::Reducing(_, dtype, _) => *dtype,
        }
    }

    fn shape(&self) -> Shape {
        match &self.value {
            Value::Ready(tensor) => tensor.shape(),
            Value::Reducing(_, _, shape) => shape.clone(),
        }
    }
}

impl BackendTypes for Several {
    type Device = Place;

    type FloatTensorPrimitive = Placed;
    type FloatElem = <Flex as BackendTypes>::FloatElem;

    type IntTensorPrimitive = <Flex as BackendTypes>::IntTensorPrimitive;
    type IntElem = <Flex as BackendTypes>::IntElem;

    type BoolTensorPrimitive = <Flex as BackendTypes>::BoolTensorPrimitive;
    type BoolElem = <Flex as BackendTypes>::BoolElem;

    type QuantizedTensorPrimitive = <Flex as BackendTypes>::QuantizedTensorPrimitive;
}

impl Backend for Several {
    fn name(_: &Place) -> String {
        "several".into()
    }

    fn seed(_: &Place, seed: u64) {
        Flex::seed(&FlexDevice, seed)
    }

    fn sync(_: &Place) -> Result<(), ExecutionError> {
        Flex::sync(&FlexDevice)
    }

    fn dtype_usage(_: &Place, dtype: DType) -> DTypeUsageSet {
        Flex::dtype_usage(&FlexDevice, dtype)
    }

    fn device_count(_: u16) -> usize {
        usize::from(u16::MAX)
    }
}

impl DistributedBackend for Several {
    fn all_reduce(
        tensor: FloatTensor<Self>,
        op: ReduceOperation,
        device_ids: Vec<DeviceId>,
    ) -> CollectiveTensor<Self> {
        let place = tensor.place;
        let (dtype, shape) = (tensor.dtype(), tensor.shape());
        let cell = all_reduce::bring(tensor.ready(), place.id(), op, device_ids);
        let value = Value::Reducing(cell, dtype, shape);
        CollectiveTensor::new(Placed { value, place })
    }

    fn sync_collective(place: &Device<Self>) {
        all_reduce::wait(place.id());
    }
}
