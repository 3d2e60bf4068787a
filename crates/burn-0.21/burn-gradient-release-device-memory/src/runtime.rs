//! The runtime around a runtime.

use std::{marker::PhantomData, sync::MutexGuard};

use burn_cubecl::CubeRuntime;
use cubecl::{
    Runtime,
    client::ComputeClient,
    device::DeviceId,
    ir::TargetProperties,
    server::ComputeServer,
    zspace::{Shape, Strides},
};

use crate::{meter::Meter, server::MeteredServer};

/// A runtime of cubecl that can be [metered](Metered).
pub trait MeterableRuntime: CubeRuntime {
    /// The name of the metered runtime. It differs from that of the runtime within, because results
    /// of autotuning are filed under it.
    const METERED_NAME: &'static str;
}

#[cfg(feature = "wgpu")]
impl MeterableRuntime for cubecl::wgpu::WgpuRuntime {
    const METERED_NAME: &'static str = "metered<wgpu>";
}

#[cfg(feature = "cuda")]
impl MeterableRuntime for cubecl::cuda::CudaRuntime {
    const METERED_NAME: &'static str = "metered<cuda>";
}

/// A runtime of cubecl that knows the peak of its memory: see
/// [`DeviceMemory`](crate::DeviceMemory).
///
/// It has a server of its own on the device, with memory pools of its own: tensors of `R` itself
/// are neither counted nor shared.
#[derive(Clone, Debug)]
pub struct Metered<R>(PhantomData<R>);

impl<R: MeterableRuntime> Runtime for Metered<R> {
    type Compiler = R::Compiler;
    type Server = MeteredServer<R::CubeServer>;
    type Device = R::CubeDevice;

    fn client(device: &Self::Device) -> ComputeClient<Self> {
        ComputeClient::load(device)
    }

    fn name(_client: &ComputeClient<Self>) -> &'static str {
        R::METERED_NAME
    }

    fn require_array_lengths() -> bool {
        R::require_array_lengths()
    }

    fn max_cube_count() -> (u32, u32, u32) {
        R::max_cube_count()
    }

    fn can_read_tensor(shape: &Shape, strides: &Strides) -> bool {
        R::can_read_tensor(shape, strides)
    }

    fn target_properties() -> TargetProperties {
        R::target_properties()
    }

    fn enumerate_devices(
        type_id: u16,
        info: &<Self::Server as ComputeServer>::Info,
    ) -> Vec<DeviceId> {
        R::enumerate_devices(type_id, info.of_the_server())
    }

    fn enumerate_all_devices(info: &<Self::Server as ComputeServer>::Info) -> Vec<DeviceId> {
        R::enumerate_all_devices(info.of_the_server())
    }
}

/// A [`Metered`] runtime, whichever it is around.
pub trait MeteredRuntime: Runtime {
    #[doc(hidden)]
    fn meter(client: &ComputeClient<Self>) -> MutexGuard<'_, Meter>;
}

impl<R: MeterableRuntime> MeteredRuntime for Metered<R> {
    fn meter(client: &ComputeClient<Self>) -> MutexGuard<'_, Meter> {
        client.info().meter()
    }
}
