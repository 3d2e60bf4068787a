//! The operations, forwarded: one file per trait.

#![deny(clippy::missing_trait_methods)]

mod activation;
mod bool_tensor;
mod float_tensor;
mod int_tensor;
mod module;
mod quantized_tensor;
mod transaction;

/// Makes a method of each operation in a table of `burn_gradient_release_decorator`, which records the operation and
/// runs it on the backend below.
macro_rules! forward {
    ($($name:ident($($argument:ident: $type:tt),*) -> $output:tt;)*) => {
        $(
            fn $name(
                $($argument: burn_gradient_release_decorator::signature_type!($type)),*
            ) -> burn_gradient_release_decorator::signature_type!($output) {
                // Some operations have no recorded operand, or no recorded output.
                #[allow(unused_mut, unused_variables)]
                let mut operation = crate::recorder::Operation::begin(stringify!($name));
                $(let $argument = $crate::backend::ops::lower!(operation, $type, $argument);)*
                let output = B::$name($($argument),*);
                burn_gradient_release_decorator::map_output!($output, output, [$crate::backend::ops::raise] operation,)
            }
        )*
    };
}

/// Unwraps an argument for the backend below.
macro_rules! lower {
    ($operation:ident, FloatTensor, $tensor:expr) => {
        $operation.lower($tensor)
    };
    ($operation:ident, IntTensor, $tensor:expr) => {
        $operation.lower($tensor)
    };
    ($operation:ident, BoolTensor, $tensor:expr) => {
        $operation.lower($tensor)
    };
    ($operation:ident, TensorPrimitive, $tensor:expr) => {
        match $tensor {
            TensorPrimitive::Float(tensor) => TensorPrimitive::Float($operation.lower(tensor)),
            TensorPrimitive::QFloat(tensor) => TensorPrimitive::QFloat(tensor),
        }
    };
    ($operation:ident, [Option $of:tt], $tensor:expr) => {
        $tensor.map(|tensor| $crate::backend::ops::lower!($operation, $of, tensor))
    };
    ($operation:ident, [Vec $of:tt], $tensors:expr) => {
        $tensors
            .into_iter()
            .map(|tensor| $crate::backend::ops::lower!($operation, $of, tensor))
            .collect()
    };
    ($operation:ident, $type:tt, $argument:expr) => {
        $argument
    };
}

/// Wraps a tensor of the backend below.
macro_rules! raise {
    ($operation:ident, QuantizedTensor, $tensor:expr) => {
        $tensor
    };
    ($operation:ident, $type:tt, $tensor:expr) => {
        $operation.raise($tensor)
    };
}

pub(crate) use {forward, lower, raise};
