//! A backend without tensors, for records that have none.
//!
//! Burn's `LrScheduler::to_record` is generic over the backend, so a boxed scheduler, whose type is
//! unknown, needs a fixed backend to write its record for, and the crate depends on none. Without
//! boxes the type of a [`ModuleLrScheduler`](super::ModuleLrScheduler) would have to name the
//! scheduler of every group. A scheduler keeps numbers, so its record is the same for every
//! backend.

use burn::tensor::{
    TensorMetadata,
    backend::{DeviceId, DeviceOps},
    quantization::QTensorPrimitive,
};

burn_gradient_release_decorator::names!();

/// A backend that makes no tensors: each of its operations panics.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tensorless;

/// The tensor that is never made.
#[derive(Clone, Debug)]
pub(super) enum NoTensor {}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct NoDevice;

fn no_tensor() -> ! {
    panic!(
        "gradient release: a scheduler of a `ModuleLrScheduler` keeps a tensor in its record; it \
         can only keep numbers and texts there"
    )
}

impl TensorMetadata for NoTensor {
    fn dtype(&self) -> DType {
        match *self {}
    }

    fn shape(&self) -> Shape {
        match *self {}
    }
}

impl QTensorPrimitive for NoTensor {
    fn scheme(&self) -> &QuantScheme {
        match *self {}
    }
}

impl burn::tensor::backend::Device for NoDevice {
    fn from_id(_: DeviceId) -> Self {
        Self
    }

    fn to_id(&self) -> DeviceId {
        DeviceId::new(0, 0)
    }
}

impl DeviceOps for NoDevice {}

impl BackendTypes for Tensorless {
    type Device = NoDevice;

    type FloatTensorPrimitive = NoTensor;
    type FloatElem = f32;

    type IntTensorPrimitive = NoTensor;
    type IntElem = i32;

    type BoolTensorPrimitive = NoTensor;
    type BoolElem = bool;

    type QuantizedTensorPrimitive = NoTensor;
}

impl Backend for Tensorless {
    fn name(_: &NoDevice) -> String {
        "tensorless".to_owned()
    }

    fn seed(_: &NoDevice, _: u64) {}

    fn dtype_usage(_: &NoDevice, _: DType) -> DTypeUsageSet {
        // All, so that the operation itself panics.
        DTypeUsageSet::all()
    }

    fn device_count(_: u16) -> usize {
        1
    }
}

/// Makes a method of each operation in a table, which panics.
macro_rules! refuse {
    ($($name:ident($($argument:ident: $type:tt),*) -> $output:tt;)*) => {
        $(fn $name(
            $(_: burn_gradient_release_decorator::signature_type!($type)),*
        ) -> burn_gradient_release_decorator::signature_type!($output) {
            no_tensor()
        })*
    };
}

impl ActivationOps<Self> for Tensorless {}

impl TransactionOps<Self> for Tensorless {}

impl ModuleOps<Self> for Tensorless {
    burn_gradient_release_decorator::module_ops!(refuse);
}

impl FloatTensorOps<Self> for Tensorless {
    burn_gradient_release_decorator::float_tensor_ops!(refuse);

    async fn float_into_data(tensor: NoTensor) -> Result<TensorData, ExecutionError> {
        match tensor {}
    }

    fn float_device(tensor: &NoTensor) -> NoDevice {
        match *tensor {}
    }
}

impl IntTensorOps<Self> for Tensorless {
    burn_gradient_release_decorator::int_tensor_ops!(refuse);

    async fn int_into_data(tensor: NoTensor) -> Result<TensorData, ExecutionError> {
        match tensor {}
    }

    fn int_device(tensor: &NoTensor) -> NoDevice {
        match *tensor {}
    }
}

impl BoolTensorOps<Self> for Tensorless {
    burn_gradient_release_decorator::bool_tensor_ops!(refuse);

    async fn bool_into_data(tensor: NoTensor) -> Result<TensorData, ExecutionError> {
        match tensor {}
    }

    fn bool_device(tensor: &NoTensor) -> NoDevice {
        match *tensor {}
    }
}

impl QTensorOps<Self> for Tensorless {
    burn_gradient_release_decorator::quantized_tensor_ops!(refuse);

    fn quantize(
        tensor: NoTensor,
        _: &QuantScheme,
        _: QuantizationParametersPrimitive<Self>,
    ) -> NoTensor {
        match tensor {}
    }

    async fn q_into_data(tensor: NoTensor) -> Result<TensorData, ExecutionError> {
        match tensor {}
    }

    fn q_device(tensor: &NoTensor) -> NoDevice {
        match *tensor {}
    }
}
