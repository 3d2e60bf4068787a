//! The operations, forwarded: all but one.

#![deny(clippy::missing_trait_methods)]

use std::ops::Range;

use burn::tensor::{
    BoolDType, Distribution, FloatDType, IndexingUpdateOp, IntDType, Scalar, Shape, Slice,
    TensorData, TensorMetadata, TensorPrimitive,
    backend::{Backend, ExecutionError},
    ops::{
        ActivationOps, AttentionModuleOptions, BoolTensor, BoolTensorOps, ConvOptions,
        ConvTransposeOptions, DeformConv2dBackward, DeformConvOptions, Device, FloatTensor,
        FloatTensorOps, GridSampleOptions, IntTensor, IntTensorOps, InterpolateOptions,
        MaxPool1dBackward, MaxPool1dWithIndices, MaxPool2dBackward, MaxPool2dWithIndices,
        ModuleOps, QTensorOps, QuantizedTensor, TransactionOps, TransactionPrimitive,
        TransactionPrimitiveData, UnfoldOptions,
    },
    quantization::{QuantScheme, QuantizationParametersPrimitive},
};

use crate::FlatLinear;

/// Makes a method of each operation in a table, which runs it on the backend below.
macro_rules! forward {
    ($($name:ident $arguments:tt -> $output:tt;)*) => {
        $(method!($name $arguments -> $output);)*
    };
}

macro_rules! method {
    (linear_weight_backward $arguments:tt -> $output:tt) => {};
    ($name:ident($($argument:ident: $type:tt),*) -> $output:tt) => {
        fn $name(
            $($argument: burn_decorator::signature_type!($type)),*
        ) -> burn_decorator::signature_type!($output) {
            $(let $argument = lower!($type, $argument);)*
            burn_decorator::map_output!($output, B::$name($($argument),*), [same])
        }
    };
}

/// The tensors are those of the backend below; what contains them has to be made anew.
macro_rules! lower {
    (TensorPrimitive, $tensor:expr) => {
        burn_decorator::map_output!(TensorPrimitive, $tensor, [same])
    };
    ($type:tt, $argument:expr) => {
        $argument
    };
}

macro_rules! same {
    ($type:tt, $tensor:expr) => {
        $tensor
    };
}

impl<B: Backend> ModuleOps<Self> for FlatLinear<B> {
    burn_decorator::module_ops!(forward);

    /// `x` is `[.., in]`, `output_grad` `[.., out]`; the result is `[in, out]`.
    fn linear_weight_backward(
        x: FloatTensor<Self>,
        output_grad: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        let rows = |tensor: FloatTensor<Self>| {
            let shape = tensor.shape();
            let width = shape[shape.num_dims() - 1];
            let rows = shape.num_elements() / width.max(1);
            B::float_reshape(tensor, Shape::new([rows, width]))
        };
        let x = B::float_swap_dims(rows(x), 0, 1);
        B::float_matmul(x, rows(output_grad))
    }

    fn has_ctc_loss_backward() -> bool {
        B::has_ctc_loss_backward()
    }
}

impl<B: Backend> ActivationOps<Self> for FlatLinear<B> {
    burn_decorator::activation_ops!(forward);
}

impl<B: Backend> FloatTensorOps<Self> for FlatLinear<B> {
    burn_decorator::float_tensor_ops!(forward);

    fn float_into_data(
        tensor: FloatTensor<Self>,
    ) -> impl Future<Output = Result<TensorData, ExecutionError>> + Send {
        B::float_into_data(tensor)
    }

    fn float_device(tensor: &FloatTensor<Self>) -> Device<Self> {
        B::float_device(tensor)
    }

    fn float_is_require_grad(tensor: &FloatTensor<Self>) -> bool {
        B::float_is_require_grad(tensor)
    }
}

impl<B: Backend> IntTensorOps<Self> for FlatLinear<B> {
    burn_decorator::int_tensor_ops!(forward);

    fn int_into_data(
        tensor: IntTensor<Self>,
    ) -> impl Future<Output = Result<TensorData, ExecutionError>> + Send {
        B::int_into_data(tensor)
    }

    fn int_device(tensor: &IntTensor<Self>) -> Device<Self> {
        B::int_device(tensor)
    }
}

impl<B: Backend> BoolTensorOps<Self> for FlatLinear<B> {
    burn_decorator::bool_tensor_ops!(forward);

    fn bool_into_data(
        tensor: BoolTensor<Self>,
    ) -> impl Future<Output = Result<TensorData, ExecutionError>> + Send {
        B::bool_into_data(tensor)
    }

    fn bool_device(tensor: &BoolTensor<Self>) -> Device<Self> {
        B::bool_device(tensor)
    }

    fn bool_argwhere(
        tensor: BoolTensor<Self>,
        out_dtype: IntDType,
    ) -> impl Future<Output = IntTensor<Self>> + 'static + Send {
        B::bool_argwhere(tensor, out_dtype)
    }
}

impl<B: Backend> QTensorOps<Self> for FlatLinear<B> {
    burn_decorator::quantized_tensor_ops!(forward);

    fn quantize(
        tensor: FloatTensor<Self>,
        scheme: &QuantScheme,
        qparams: QuantizationParametersPrimitive<Self>,
    ) -> QuantizedTensor<Self> {
        let scales = qparams.scales;
        B::quantize(tensor, scheme, QuantizationParametersPrimitive { scales })
    }

    fn q_into_data(
        tensor: QuantizedTensor<Self>,
    ) -> impl Future<Output = Result<TensorData, ExecutionError>> + Send {
        B::q_into_data(tensor)
    }

    fn q_device(tensor: &QuantizedTensor<Self>) -> Device<Self> {
        B::q_device(tensor)
    }

    fn q_is_require_grad(tensor: &QuantizedTensor<Self>) -> bool {
        B::q_is_require_grad(tensor)
    }
}

impl<B: Backend> TransactionOps<Self> for FlatLinear<B> {
    async fn tr_execute(
        transaction: TransactionPrimitive<Self>,
    ) -> Result<TransactionPrimitiveData, ExecutionError> {
        B::tr_execute(TransactionPrimitive::new(
            transaction.read_floats,
            transaction.read_qfloats,
            transaction.read_ints,
            transaction.read_bools,
        ))
        .await
    }
}
