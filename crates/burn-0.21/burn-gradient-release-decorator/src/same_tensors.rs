//! For decorators whose tensors are those of the backend below.
//!
//! [`names!`](crate::names) imports the names that the macros use.

/// A method of a table, which runs on the backend below.
///
/// ```ignore
/// burn_gradient_release_decorator::names!();
///
/// macro_rules! forward {
///     ($($name:ident $arguments:tt -> $output:tt;)*) => {
///         $(burn_gradient_release_decorator::same_tensors_method!(B, $name $arguments -> $output);)*
///     };
/// }
///
/// impl<B: Backend> ActivationOps<Self> for Decorator<B> {
///     burn_gradient_release_decorator::activation_ops!(forward);
/// }
/// ```
#[macro_export]
macro_rules! same_tensors_method {
    ($below:ty, $name:ident($($argument:ident: $type:tt),*) -> $output:tt) => {
        fn $name(
            $($argument: $crate::signature_type!($type)),*
        ) -> $crate::signature_type!($output) {
            $(let $argument = $crate::same_tensors_argument!($type, $argument);)*
            $crate::map_output!($output, <$below>::$name($($argument),*), [$crate::same_tensor])
        }
    };
}

/// An argument of a decorator's operation as one of the backend below: what contains tensors is
/// made anew.
#[doc(hidden)]
#[macro_export]
macro_rules! same_tensors_argument {
    (TensorPrimitive, $tensor:expr) => {
        $crate::map_output!(TensorPrimitive, $tensor, [$crate::same_tensor])
    };
    ($type:tt, $argument:expr) => {
        $argument
    };
}

/// A tensor, as it is.
#[doc(hidden)]
#[macro_export]
macro_rules! same_tensor {
    ($type:tt, $tensor:expr) => {
        $tensor
    };
}

/// The methods of `ModuleOps` that are not in [`module_ops!`](crate::module_ops), each forwarded to
/// the backend below.
#[macro_export]
macro_rules! same_tensors_module_rest {
    ($below:ty) => {
        fn has_ctc_loss_backward() -> bool {
            <$below>::has_ctc_loss_backward()
        }
    };
}

/// The methods of `FloatTensorOps` that are not in
/// [`float_tensor_ops!`](crate::float_tensor_ops), each forwarded to the backend below.
#[macro_export]
macro_rules! same_tensors_float_rest {
    ($below:ty) => {
        fn float_into_data(
            tensor: FloatTensor<Self>,
        ) -> impl Future<Output = Result<TensorData, ExecutionError>> + Send {
            <$below>::float_into_data(tensor)
        }

        fn float_device(tensor: &FloatTensor<Self>) -> Device<Self> {
            <$below>::float_device(tensor)
        }

        fn float_is_require_grad(tensor: &FloatTensor<Self>) -> bool {
            <$below>::float_is_require_grad(tensor)
        }
    };
}

/// The methods of `IntTensorOps` that are not in [`int_tensor_ops!`](crate::int_tensor_ops), each
/// forwarded to the backend below.
#[macro_export]
macro_rules! same_tensors_int_rest {
    ($below:ty) => {
        fn int_into_data(
            tensor: IntTensor<Self>,
        ) -> impl Future<Output = Result<TensorData, ExecutionError>> + Send {
            <$below>::int_into_data(tensor)
        }

        fn int_device(tensor: &IntTensor<Self>) -> Device<Self> {
            <$below>::int_device(tensor)
        }
    };
}

/// The methods of `BoolTensorOps` that are not in [`bool_tensor_ops!`](crate::bool_tensor_ops),
/// each forwarded to the backend below.
#[macro_export]
macro_rules! same_tensors_bool_rest {
    ($below:ty) => {
        fn bool_into_data(
            tensor: BoolTensor<Self>,
        ) -> impl Future<Output = Result<TensorData, ExecutionError>> + Send {
            <$below>::bool_into_data(tensor)
        }

        fn bool_device(tensor: &BoolTensor<Self>) -> Device<Self> {
            <$below>::bool_device(tensor)
        }

        fn bool_argwhere(
            tensor: BoolTensor<Self>,
            out_dtype: IntDType,
        ) -> impl Future<Output = IntTensor<Self>> + 'static + Send {
            <$below>::bool_argwhere(tensor, out_dtype)
        }
    };
}

/// `quantize` of `QTensorOps`, forwarded to the backend below.
#[macro_export]
macro_rules! same_tensors_quantize {
    ($below:ty) => {
        fn quantize(
            tensor: FloatTensor<Self>,
            scheme: &QuantScheme,
            qparams: QuantizationParametersPrimitive<Self>,
        ) -> QuantizedTensor<Self> {
            let scales = qparams.scales;
            <$below>::quantize(tensor, scheme, QuantizationParametersPrimitive { scales })
        }
    };
}

/// The methods of `QTensorOps` on quantized tensors that are not in
/// [`quantized_tensor_ops!`](crate::quantized_tensor_ops), each forwarded to the backend below.
#[macro_export]
macro_rules! same_tensors_quantized_rest {
    ($below:ty) => {
        fn q_into_data(
            tensor: QuantizedTensor<Self>,
        ) -> impl Future<Output = Result<TensorData, ExecutionError>> + Send {
            <$below>::q_into_data(tensor)
        }

        fn q_device(tensor: &QuantizedTensor<Self>) -> Device<Self> {
            <$below>::q_device(tensor)
        }

        fn q_is_require_grad(tensor: &QuantizedTensor<Self>) -> bool {
            <$below>::q_is_require_grad(tensor)
        }
    };
}

/// The method of `TransactionOps`, forwarded to the backend below.
#[macro_export]
macro_rules! same_tensors_transaction {
    ($below:ty) => {
        async fn tr_execute(
            transaction: TransactionPrimitive<Self>,
        ) -> Result<TransactionPrimitiveData, ExecutionError> {
            <$below>::tr_execute(TransactionPrimitive::new(
                transaction.read_floats,
                transaction.read_qfloats,
                transaction.read_ints,
                transaction.read_bools,
            ))
            .await
        }
    };
}
