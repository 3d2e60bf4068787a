//! The operations of the backend, made from `burn_gradient_release_decorator`'s tables: one file for
//! each trait of Burn with exceptions.
//!
//! The kind of an operation follows from its result, unless a trait's file names an exception:
//!
//! | kind | operations | what is done |
//! |---|---|---|
//! | `derived` | those with one float result | of parameters alone, derived; else one node |
//! | `node` | the same, with int or bool tensors, or of matrices | one node on the tape |
//! | `nodes` | those with several results | nodes on the tape |
//! | `value` | those without a float result | computed from values; nothing on the tape |
//! | `composed` | those that Burn's default composes of others | the default, over our operations |
//!
//! A lint checks that the tables are complete wherever a whole table is forwarded, as in the
//! recorder of `burn-gradient-release-timeline`.

mod activation;
mod float_tensor;
mod int_tensor;
mod module;

use burn_autodiff::{Autodiff, checkpoint::strategy::CheckpointStrategy};

use crate::{backend::GradientRelease, tensor::ReleaseTensor};

burn_gradient_release_decorator::names!();

/// Makes a method of every operation in a table without tensors that could be parameters.
macro_rules! forward {
    ($($name:ident $arguments:tt -> $output:tt;)*) => {
        $($crate::ops::method!(value $name $arguments -> $output);)*
    };
}

/// Makes a method of every operation in a table, by the trait's own `kind!`.
macro_rules! methods {
    ($($name:ident $arguments:tt -> $output:tt;)*) => {
        $(kind!($name $arguments -> $output);)*
    };
}

/// Declares `kind!`: the exceptions by name, then the rule.
macro_rules! exceptions {
    // A macro that declares another cannot write its `$` itself.
    (($dollar:tt) $($kind:ident: $($name:ident)*;)*) => {
        macro_rules! kind {
            $($(
                ($name $dollar arguments:tt -> $dollar output:tt) => {
                    $crate::ops::method!($kind $name $dollar arguments -> $dollar output);
                };
            )*)*
            ($dollar name:ident $dollar arguments:tt -> FloatTensor) => {
                $crate::ops::method!(derived $dollar name $dollar arguments -> FloatTensor);
            };
            ($dollar name:ident $dollar arguments:tt -> IntTensor) => {
                $crate::ops::method!(value $dollar name $dollar arguments -> IntTensor);
            };
            ($dollar name:ident $dollar arguments:tt -> BoolTensor) => {
                $crate::ops::method!(value $dollar name $dollar arguments -> BoolTensor);
            };
            ($dollar name:ident $dollar arguments:tt -> $dollar output:tt) => {
                $crate::ops::method!(nodes $dollar name $dollar arguments -> $dollar output);
            };
        }
    };
}

/// A method of one kind.
macro_rules! method {
    (composed $name:ident($($argument:ident: $type:tt),*) -> $output:tt) => {};
    (own $name:ident($($argument:ident: $type:tt),*) -> $output:tt) => {};
    ($kind:ident $name:ident($($argument:ident: $type:tt),*) -> $output:tt) => {
        fn $name(
            $($argument: burn_gradient_release_decorator::signature_type!($type)),*
        ) -> burn_gradient_release_decorator::signature_type!($output) {
            // Not every operation has float tensors among its arguments.
            #[allow(unused_mut)]
            let mut arguments = $crate::lower::operands::Arguments::<B>::new();
            $(let $argument = $crate::ops::keep!(arguments, $type, $argument);)*
            $crate::ops::run!($kind, $name, $output, arguments, |operands| {
                Autodiff::<B, C>::$name($($crate::ops::give!(operands, $type, $argument)),*)
            })
        }
    };
}

/// Runs an operation on the operands.
macro_rules! run {
    (derived, $name:ident, FloatTensor, $arguments:ident, |$operands:ident| $operation:block) => {
        // Not every operation uses the operands.
        $arguments.derive(
            stringify!($name),
            move |#[allow(unused_mut, unused_variables)] mut $operands| $operation,
        )
    };
    (node, $name:ident, $output:tt, $arguments:ident, |$operands:ident| $operation:block) => {
        $crate::ops::run!(One, $name, $output, $arguments, |$operands| $operation)
    };
    (nodes, $name:ident, $output:tt, $arguments:ident, |$operands:ident| $operation:block) => {
        $crate::ops::run!(Several, $name, $output, $arguments, |$operands| $operation)
    };
    (value, $name:ident, $output:tt, $arguments:ident, |$operands:ident| $operation:block) => {{
        #[allow(unused_mut, unused_variables)]
        let mut $operands = $arguments.values();
        #[allow(unused_variables)]
        let raise = $crate::tensor::ReleaseTensor::<B>::plain;
        burn_gradient_release_decorator::map_output!($output, $operation, [$crate::ops::raise] raise,)
    }};
    ($nodes:ident, $name:ident, $output:tt, $arguments:ident, |$operands:ident| $operation:block) => {
        $arguments.apply(
            stringify!($name),
            $crate::lower::raise::Nodes::$nodes,
            move |mut $operands| $operation,
            |results, raise| {
                burn_gradient_release_decorator::map_output!($output, results, [$crate::ops::raise] raise,)
            },
        )
    };
}

/// Keeps an argument of an operation. Float tensors go to the operands.
macro_rules! keep {
    ($arguments:ident, FloatTensor, $tensor:expr) => {
        $arguments.push($tensor)
    };
    ($arguments:ident, TensorPrimitive, $tensor:expr) => {
        match $tensor {
            TensorPrimitive::Float(tensor) => {
                $arguments.push(tensor);
                None
            }
            TensorPrimitive::QFloat(tensor) => Some(tensor),
        }
    };
    ($arguments:ident, [Option FloatTensor], $tensor:expr) => {
        $tensor.map(|tensor| $arguments.push(tensor))
    };
    ($arguments:ident, [Vec FloatTensor], $tensors:expr) => {{
        let tensors = $tensors;
        let count = tensors.len();
        tensors
            .into_iter()
            .for_each(|tensor| $arguments.push(tensor));
        count
    }};
    ($arguments:ident, Device, $device:expr) => {
        $device.clone()
    };
    ($arguments:ident, (&[$of:ty]), $slice:expr) => {
        $slice.to_vec()
    };
    ($arguments:ident, (&$of:ty), $reference:expr) => {
        $reference.clone()
    };
    ($arguments:ident, $type:tt, $argument:expr) => {
        $argument
    };
}

/// An argument for `Autodiff`. The operation may run again, so its arguments are kept.
macro_rules! give {
    ($operands:ident, FloatTensor, $kept:ident) => {{
        let () = $kept;
        $operands.next().expect("as many operands as arguments")
    }};
    ($operands:ident, TensorPrimitive, $kept:ident) => {
        match &$kept {
            Some(tensor) => TensorPrimitive::QFloat(tensor.clone()),
            None => TensorPrimitive::Float($operands.next().expect("a float operand")),
        }
    };
    ($operands:ident, [Option FloatTensor], $kept:ident) => {
        $kept.and_then(|()| $operands.next())
    };
    ($operands:ident, [Vec FloatTensor], $kept:ident) => {
        $operands.by_ref().take($kept).collect()
    };
    ($operands:ident, Device, $kept:ident) => {
        &$kept
    };
    ($operands:ident, (& $($of:tt)*), $kept:ident) => {
        &$kept
    };
    ($operands:ident, $type:tt, $kept:ident) => {
        $kept.clone()
    };
}

/// A tensor among the outputs of `Autodiff`.
macro_rules! raise {
    ($raise:ident, FloatTensor, $tensor:expr) => {
        $raise($tensor)
    };
    ($raise:ident, $type:tt, $output:expr) => {
        $output
    };
}

use {exceptions, give, keep, method, methods, raise, run};

#[deny(clippy::missing_trait_methods)]
impl<B: Backend, C: CheckpointStrategy> BoolTensorOps<Self> for GradientRelease<Autodiff<B, C>> {
    burn_gradient_release_decorator::bool_tensor_ops!(forward);
    burn_gradient_release_decorator::same_tensors_bool_rest!(Autodiff<B, C>);
}

#[deny(clippy::missing_trait_methods)]
impl<B: Backend, C: CheckpointStrategy> QTensorOps<Self> for GradientRelease<Autodiff<B, C>> {
    burn_gradient_release_decorator::quantized_tensor_ops!(forward);
    burn_gradient_release_decorator::same_tensors_quantized_rest!(Autodiff<B, C>);

    fn quantize(
        tensor: FloatTensor<Self>,
        scheme: &QuantScheme,
        qparams: QuantizationParametersPrimitive<Self>,
    ) -> QuantizedTensor<Self> {
        let scales = qparams.scales.into_autodiff();
        let qparams = QuantizationParametersPrimitive { scales };
        Autodiff::<B, C>::quantize(tensor.into_autodiff(), scheme, qparams)
    }
}

#[deny(clippy::missing_trait_methods)]
impl<B: Backend, C: CheckpointStrategy> TransactionOps<Self> for GradientRelease<Autodiff<B, C>> {
    async fn tr_execute(
        transaction: TransactionPrimitive<Self>,
    ) -> Result<TransactionPrimitiveData, ExecutionError> {
        let floats = transaction.read_floats.into_iter();
        Autodiff::<B, C>::tr_execute(TransactionPrimitive::new(
            floats.map(ReleaseTensor::into_autodiff).collect(),
            transaction.read_qfloats,
            transaction.read_ints,
            transaction.read_bools,
        ))
        .await
    }
}
