//! Burn's operations over the devices of a process.

use burn::tensor::{
    backend::{
        DeviceId,
        distributed::{
            CollectiveTensor, DistributedBackend, DistributedConfig, DistributedParams,
            ReduceOperation, TensorRef,
        },
    },
    ops::{Device, FloatTensor},
};
use burn_autodiff::{Autodiff, checkpoint::strategy::CheckpointStrategy};

use crate::{backend::GradientRelease, lower::operands::Arguments, lower::raise::Nodes};

/// Unarmed parameters are reduced as Burn reduces them: by the server of the backend below.
impl<B: DistributedBackend, C: CheckpointStrategy> DistributedBackend
    for GradientRelease<Autodiff<B, C>>
{
    fn start_communication_server(devices: &[Device<Self>], config: DistributedConfig) {
        Autodiff::<B, C>::start_communication_server(devices, config)
    }

    fn close_communication_server(device: &Device<Self>) {
        Autodiff::<B, C>::close_communication_server(device)
    }

    fn register_sync_parameters(device: &Device<Self>, distributed_params: Vec<DistributedParams>) {
        Autodiff::<B, C>::register_sync_parameters(device, distributed_params)
    }

    fn submit_sync_collective(device: &Device<Self>) {
        Autodiff::<B, C>::submit_sync_collective(device)
    }

    /// # Panics
    ///
    /// Always: gradients are tensors of the backend below, which takes them.
    fn submit_gradient_sync(_: TensorRef<Self>, _: DistributedParams) {
        panic!(
            "gradient release: a gradient is a tensor of the backend below; submit it there \
             (`<B as AutodiffBackend>::InnerBackend::submit_gradient_sync`)"
        )
    }

    /// Waits for the other devices before it returns, so each device needs a thread of its own.
    fn all_reduce(
        tensor: FloatTensor<Self>,
        op: ReduceOperation,
        device_ids: Vec<DeviceId>,
    ) -> CollectiveTensor<Self> {
        let mut arguments = Arguments::<B>::new();
        arguments.push(tensor);
        let reduced = arguments.apply(
            "all_reduce",
            Nodes::One,
            move |mut operands| {
                let tensor = operands.next().expect("there is one");
                // A tensor that is not resolved cannot be taken out safely.
                Autodiff::<B, C>::all_reduce(tensor, op, device_ids.clone()).resolve()
            },
            |reduced, raise| raise(reduced),
        );
        CollectiveTensor::new(reduced)
    }

    fn sync_collective(device: &Device<Self>) {
        Autodiff::<B, C>::sync_collective(device)
    }
}
