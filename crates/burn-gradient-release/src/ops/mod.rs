//! The operations of the backend: one file per trait of Burn.
//!
//! Every method is forwarded, those with a default included: the default would lose what the inner
//! backend does instead. Where no parameter can be among the operands, `burn_decorator`'s tables say
//! which methods there are.

mod activation;
mod bool_tensor;
mod float_tensor;
mod int_tensor;
mod module;
mod quantized_tensor;
mod transaction;

/// Makes a method of every operation in a table: hands it on to `Autodiff`.
macro_rules! forward {
    ($($name:ident($($argument:ident: $type:tt),*) -> $output:tt;)*) => {
        $(
            fn $name(
                $($argument: burn_decorator::signature_type!($type)),*
            ) -> burn_decorator::signature_type!($output) {
                let output = Autodiff::<B, C>::$name(
                    $($crate::ops::lower!($type, $argument)),*
                );
                $crate::ops::raise!($output, output)
            }
        )*
    };
}

/// An argument for `Autodiff`.
macro_rules! lower {
    (FloatTensor, $tensor:expr) => {
        $tensor.into_untapped()
    };
    (TensorPrimitive, $tensor:expr) => {
        match $tensor {
            TensorPrimitive::Float(tensor) => TensorPrimitive::Float(tensor.into_untapped()),
            TensorPrimitive::QFloat(tensor) => TensorPrimitive::QFloat(tensor),
        }
    };
    ($type:tt, $argument:expr) => {
        $argument
    };
}

/// An output of `Autodiff`.
macro_rules! raise {
    (FloatTensor, $tensor:expr) => {
        $crate::tensor::ReleaseTensor::plain($tensor)
    };
    (TensorPrimitive, $tensor:expr) => {
        match $tensor {
            TensorPrimitive::Float(tensor) => {
                TensorPrimitive::Float($crate::tensor::ReleaseTensor::plain(tensor))
            }
            TensorPrimitive::QFloat(tensor) => TensorPrimitive::QFloat(tensor),
        }
    };
    ($type:tt, $output:expr) => {
        $output
    };
}

use {forward, lower, raise};
