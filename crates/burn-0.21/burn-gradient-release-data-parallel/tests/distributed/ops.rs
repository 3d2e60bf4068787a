//! The operations, forwarded to [`Flex`]. A result is on the device that was given, or on that of
//! the first tensor.

use burn::backend::{
    Flex,
    flex::{FlexDevice, FlexTensor},
};

use crate::backend::{Place, Placed, Several};

burn_gradient_release_decorator::names!();

/// Where the result of an operation is to be.
#[derive(Default)]
struct At(Option<Place>);

impl At {
    fn lower(&mut self, tensor: Placed) -> FlexTensor {
        self.0.get_or_insert(tensor.place);
        tensor.ready()
    }

    fn device(&mut self, place: &Place) -> &'static FlexDevice {
        self.0 = Some(*place);
        &FlexDevice
    }

    fn raise(&self, tensor: FlexTensor) -> Placed {
        Placed::new(tensor, self.0.unwrap_or_default())
    }
}

macro_rules! forward {
    ($($name:ident($($argument:ident: $type:tt),*) -> $output:tt;)*) => {
        $(
            fn $name(
                $($argument: burn_gradient_release_decorator::signature_type!($type)),*
            ) -> burn_gradient_release_decorator::signature_type!($output) {
                #[allow(unused_mut, unused_variables)]
                let mut at = At::default();
                $(let $argument = lower!(at, $type, $argument);)*
                let output = Flex::$name($($argument),*);
                burn_gradient_release_decorator::map_output!($output, output, [raise] at,)
            }
        )*
    };
}

macro_rules! lower {
    ($at:ident, FloatTensor, $tensor:expr) => {
        $at.lower($tensor)
    };
    ($at:ident, TensorPrimitive, $tensor:expr) => {
        match $tensor {
            TensorPrimitive::Float(tensor) => TensorPrimitive::Float($at.lower(tensor)),
            TensorPrimitive::QFloat(tensor) => TensorPrimitive::QFloat(tensor),
        }
    };
    ($at:ident, [Option FloatTensor], $tensor:expr) => {
        $tensor.map(|tensor| $at.lower(tensor))
    };
    ($at:ident, [Vec FloatTensor], $tensors:expr) => {
        $tensors
            .into_iter()
            .map(|tensor| $at.lower(tensor))
            .collect()
    };
    ($at:ident, Device, $device:expr) => {
        $at.device($device)
    };
    ($at:ident, $type:tt, $argument:expr) => {
        $argument
    };
}

macro_rules! raise {
    ($at:ident, FloatTensor, $tensor:expr) => {
        $at.raise($tensor)
    };
    ($at:ident, $type:tt, $output:expr) => {
        $output
    };
}

impl ActivationOps<Self> for Several {
    burn_gradient_release_decorator::activation_ops!(forward);
}

impl ModuleOps<Self> for Several {
    burn_gradient_release_decorator::module_ops!(forward);
}

impl FloatTensorOps<Self> for Several {
    burn_gradient_release_decorator::float_tensor_ops!(forward);

    fn float_into_data(
        tensor: FloatTensor<Self>,
    ) -> impl Future<Output = Result<TensorData, ExecutionError>> + Send {
        Flex::float_into_data(tensor.ready())
    }

    fn float_device(tensor: &FloatTensor<Self>) -> Device<Self> {
        tensor.place
    }

    fn float_is_require_grad(_: &FloatTensor<Self>) -> bool {
        false
    }
}

impl IntTensorOps<Self> for Several {
    burn_gradient_release_decorator::int_tensor_ops!(forward);

    fn int_into_data(
        tensor: IntTensor<Self>,
    ) -> impl Future<Output = Result<TensorData, ExecutionError>> + Send {
        Flex::int_into_data(tensor)
    }

    fn int_device(_: &IntTensor<Self>) -> Device<Self> {
        Place::default()
    }
}

impl BoolTensorOps<Self> for Several {
    burn_gradient_release_decorator::bool_tensor_ops!(forward);

    fn bool_into_data(
        tensor: BoolTensor<Self>,
    ) -> impl Future<Output = Result<TensorData, ExecutionError>> + Send {
        Flex::bool_into_data(tensor)
    }

    fn bool_device(_: &BoolTensor<Self>) -> Device<Self> {
        Place::default()
    }

    fn bool_argwhere(
        tensor: BoolTensor<Self>,
        out_dtype: IntDType,
    ) -> impl Future<Output = IntTensor<Self>> + 'static + Send {
        Flex::bool_argwhere(tensor, out_dtype)
    }
}

impl QTensorOps<Self> for Several {
    burn_gradient_release_decorator::quantized_tensor_ops!(forward);

    fn quantize(
        tensor: FloatTensor<Self>,
        scheme: &QuantScheme,
        qparams: QuantizationParametersPrimitive<Self>,
    ) -> QuantizedTensor<Self> {
        let scales = qparams.scales.ready();
        Flex::quantize(
            tensor.ready(),
            scheme,
            QuantizationParametersPrimitive { scales },
        )
    }

    fn q_into_data(
        tensor: QuantizedTensor<Self>,
    ) -> impl Future<Output = Result<TensorData, ExecutionError>> + Send {
        Flex::q_into_data(tensor)
    }

    fn q_device(_: &QuantizedTensor<Self>) -> Device<Self> {
        Place::default()
    }
}

impl TransactionOps<Self> for Several {
    async fn tr_execute(
        transaction: TransactionPrimitive<Self>,
    ) -> Result<TransactionPrimitiveData, ExecutionError> {
        let floats = transaction.read_floats.iter().map(Placed::ready);
        Flex::tr_execute(TransactionPrimitive::new(
            floats.collect(),
            transaction.read_qfloats,
            transaction.read_ints,
            transaction.read_bools,
        ))
        .await
    }
}
