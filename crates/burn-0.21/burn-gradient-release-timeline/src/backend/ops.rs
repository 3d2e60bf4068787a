//! The operations, forwarded.

#![deny(clippy::missing_trait_methods)]

use super::{RecordableBackend, Recorded};
use crate::recorder::{self, Operation, RecordedTensor};

burn_gradient_release_decorator::names!();

/// Makes a method of each operation in a table, which records it and runs it on the backend below.
macro_rules! forward {
    ($($name:ident($($argument:ident: $type:tt),*) -> $output:tt;)*) => {
        $(
            fn $name(
                $($argument: burn_gradient_release_decorator::signature_type!($type)),*
            ) -> burn_gradient_release_decorator::signature_type!($output) {
                // Some operations have no recorded operand, or no recorded output.
                #[allow(unused_mut, unused_variables)]
                let mut operation = Operation::begin(stringify!($name));
                $(let $argument = lower!(operation, $type, $argument);)*
                let output = B::$name($($argument),*);
                burn_gradient_release_decorator::map_output!($output, output, [raise] operation,)
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
        $tensor.map(|tensor| lower!($operation, $of, tensor))
    };
    ($operation:ident, [Vec $of:tt], $tensors:expr) => {
        $tensors
            .into_iter()
            .map(|tensor| lower!($operation, $of, tensor))
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

impl<B: RecordableBackend> ActivationOps<Self> for Recorded<B> {
    burn_gradient_release_decorator::activation_ops!(forward);
}

impl<B: RecordableBackend> ModuleOps<Self> for Recorded<B> {
    burn_gradient_release_decorator::module_ops!(forward);
    burn_gradient_release_decorator::same_tensors_module_rest!(B);
}

impl<B: RecordableBackend> FloatTensorOps<Self> for Recorded<B> {
    burn_gradient_release_decorator::float_tensor_ops!(forward);

    fn float_into_data(
        tensor: FloatTensor<Self>,
    ) -> impl Future<Output = Result<TensorData, ExecutionError>> + Send {
        B::float_into_data(tensor.below)
    }

    fn float_device(tensor: &FloatTensor<Self>) -> Device<Self> {
        recorder::answer(tensor);
        B::float_device(&tensor.below)
    }

    fn float_is_require_grad(tensor: &FloatTensor<Self>) -> bool {
        B::float_is_require_grad(&tensor.below)
    }
}

impl<B: RecordableBackend> IntTensorOps<Self> for Recorded<B> {
    burn_gradient_release_decorator::int_tensor_ops!(forward);

    fn int_into_data(
        tensor: IntTensor<Self>,
    ) -> impl Future<Output = Result<TensorData, ExecutionError>> + Send {
        B::int_into_data(tensor.below)
    }

    fn int_device(tensor: &IntTensor<Self>) -> Device<Self> {
        recorder::answer(tensor);
        B::int_device(&tensor.below)
    }
}

impl<B: RecordableBackend> BoolTensorOps<Self> for Recorded<B> {
    burn_gradient_release_decorator::bool_tensor_ops!(forward);

    fn bool_into_data(
        tensor: BoolTensor<Self>,
    ) -> impl Future<Output = Result<TensorData, ExecutionError>> + Send {
        B::bool_into_data(tensor.below)
    }

    fn bool_device(tensor: &BoolTensor<Self>) -> Device<Self> {
        recorder::answer(tensor);
        B::bool_device(&tensor.below)
    }

    fn bool_argwhere(
        tensor: BoolTensor<Self>,
        out_dtype: IntDType,
    ) -> impl Future<Output = IntTensor<Self>> + 'static + Send {
        let mut operation = Operation::begin("bool_argwhere");
        let positions = B::bool_argwhere(operation.lower(tensor), out_dtype);
        async move { operation.raise(positions.await) }
    }
}

impl<B: RecordableBackend> QTensorOps<Self> for Recorded<B> {
    burn_gradient_release_decorator::quantized_tensor_ops!(forward);
    burn_gradient_release_decorator::same_tensors_quantized_rest!(B);

    fn quantize(
        tensor: FloatTensor<Self>,
        scheme: &QuantScheme,
        qparams: QuantizationParametersPrimitive<Self>,
    ) -> QuantizedTensor<Self> {
        let mut operation = Operation::begin("quantize");
        let tensor = operation.lower(tensor);
        let scales = operation.lower(qparams.scales);
        B::quantize(tensor, scheme, QuantizationParametersPrimitive { scales })
    }
}

impl<B: RecordableBackend> TransactionOps<Self> for Recorded<B> {
    async fn tr_execute(
        transaction: TransactionPrimitive<Self>,
    ) -> Result<TransactionPrimitiveData, ExecutionError> {
        B::tr_execute(TransactionPrimitive::new(
            below(transaction.read_floats),
            transaction.read_qfloats,
            below(transaction.read_ints),
            below(transaction.read_bools),
        ))
        .await
    }
}

fn below<P>(tensors: Vec<RecordedTensor<P>>) -> Vec<P> {
    tensors.into_iter().map(|tensor| tensor.below).collect()
}
