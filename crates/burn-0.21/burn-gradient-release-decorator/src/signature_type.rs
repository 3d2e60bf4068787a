/// The type in Burn of a type in the tables; see the [crate](crate#types).
///
/// The names it uses have to be in scope: `FloatTensor` and its like, `Device`,
/// `TensorPrimitive`.
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
