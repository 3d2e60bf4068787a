//! The pass on a fused backend, as a custom operation.
//!
//! It gets the only handle of the tensors that its caller has moved into it, and so may write in
//! place.

use std::fmt;
use std::marker::PhantomData;

use burn_fusion::custom::{CustomOpIr, HandleContainer, OperationIr, StreamId, TensorIr};
use burn_fusion::{ExecutionError, Fusion, FusionBackend, FusionHandle, FusionTensor, stream};

use super::operation::{Operation, Run};

impl<B: FusionBackend + Run> Run for Fusion<B> {
    fn run(
        operation: Operation,
        tensors: Vec<FusionTensor<B::FusionRuntime>>,
    ) -> Vec<FusionTensor<B::FusionRuntime>> {
        let client = tensors[0].client.clone();
        let outputs = operation.outputs(&tensors[0].shape).into_iter();
        let outputs: Vec<_> = outputs
            .map(|(shape, dtype)| TensorIr::uninit(client.create_empty_handle(), shape, dtype))
            .collect();
        // In order: if a tensor is given twice, only the last one may have its only handle.
        let inputs: Vec<_> = tensors.into_iter().map(FusionTensor::into_ir).collect();
        let description = CustomOpIr::new(operation.name(), &inputs, &outputs);
        let queued = Queued {
            operation,
            description: description.clone(),
            backend: PhantomData::<B>,
        };
        client.register(
            StreamId::current(),
            OperationIr::Custom(description),
            queued,
        )
    }
}

/// An operation in the queue of a stream.
struct Queued<B> {
    operation: Operation,
    description: CustomOpIr,
    backend: PhantomData<B>,
}

impl<B> fmt::Debug for Queued<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.description.fmt(f)
    }
}

impl<B: FusionBackend + Run> stream::Operation<B::FusionRuntime> for Queued<B> {
    fn execute(
        &self,
        handles: &mut HandleContainer<FusionHandle<B::FusionRuntime>>,
    ) -> Result<(), ExecutionError> {
        let inputs = self.description.inputs.iter();
        let tensors = inputs.map(|input| handles.get_float_tensor::<B>(input));
        let tensors = B::run(self.operation.clone(), tensors.collect());
        for (output, tensor) in self.description.outputs.iter().zip(tensors) {
            handles.register_float_tensor::<B>(&output.id, tensor);
        }
        Ok(())
    }
}
