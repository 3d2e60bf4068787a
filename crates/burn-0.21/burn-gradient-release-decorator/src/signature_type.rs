/// The type in Burn of a type in the tables; see the [crate](crate#types).
///
/// [`names!`](crate::names) imports the names it uses.
#[macro_export]
macro_rules! signature_type {
    (FloatTensor) => { FloatTensor<Self> };
    (IntTensor) => { IntTensor<Self> };
    (BoolTensor) => { BoolTensor<Self> };
    (QuantizedTensor) => { QuantizedTensor<Self> };
    (TensorPrimitive) => { TensorPrimitive<Self> };
    (DeformConv2dBackward) => { DeformConv2dBackward<Self> };
    (MaxPool1dWithIndices) => { MaxPool1dWithIndices<Self> };
    (MaxPool1dBackward) => { MaxPool1dBackward<Self> };
    (MaxPool2dWithIndices) => { MaxPool2dWithIndices<Self> };
    (MaxPool2dBackward) => { MaxPool2dBackward<Self> };
    (Device) => { &Device<Self> };
    ([Option $of:tt]) => { Option<$crate::signature_type!($of)> };
    ([Vec $of:tt]) => { Vec<$crate::signature_type!($of)> };
    ([$first:tt, $second:tt]) => {
        ($crate::signature_type!($first), $crate::signature_type!($second))
    };
    (($($type:tt)*)) => { $($type)* };
    ($type:tt) => { $type };
}

/// Imports the traits of a backend's operations, and the types in their signatures.
#[macro_export]
macro_rules! names {
    () => {
        // Not every decorator needs all of them.
        #[allow(unused_imports)]
        use {
            burn::tensor::{
                BoolDType, DType, Distribution, FloatDType, IndexingUpdateOp, IntDType, Scalar,
                Shape, Slice, TensorData, TensorPrimitive,
                backend::{Backend, BackendTypes, DTypeUsageSet, ExecutionError},
                ops::{
                    ActivationOps, AttentionModuleOptions, BoolTensor, BoolTensorOps, ConvOptions,
                    ConvTransposeOptions, DeformConv2dBackward, DeformConvOptions, Device,
                    FloatTensor, FloatTensorOps, GridSampleOptions, IntTensor, IntTensorOps,
                    InterpolateOptions, MaxPool1dBackward, MaxPool1dWithIndices, MaxPool2dBackward,
                    MaxPool2dWithIndices, ModuleOps, QTensorOps, QuantizedTensor, TransactionOps,
                    TransactionPrimitive, TransactionPrimitiveData, UnfoldOptions,
                },
                quantization::{QuantScheme, QuantizationParametersPrimitive},
            },
            std::ops::Range,
        };
    };
}
