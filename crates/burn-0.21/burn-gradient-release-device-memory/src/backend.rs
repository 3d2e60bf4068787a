//! Burn's GPU backends on metered runtimes.

use burn::tensor::backend::Backend;
use burn_cubecl::{BoolElement, CubeBackend, FloatElement, IntElement};
use burn_fusion::{Fusion, FusionBackend};

use crate::runtime::{MeterableRuntime, Metered, MeteredRuntime};

/// [`Wgpu`](https://docs.rs/burn-wgpu) with a meter: operations are fused.
#[cfg(feature = "wgpu")]
pub type MeteredWgpu<F = f32, I = i32, B = u32> = Fusion<MeteredWgpuUnfused<F, I, B>>;

/// `Wgpu` with a meter, as it is without Burn's feature `fusion`.
#[cfg(feature = "wgpu")]
pub type MeteredWgpuUnfused<F = f32, I = i32, B = u32> =
    CubeBackend<Metered<cubecl::wgpu::WgpuRuntime>, F, I, B>;

/// [`Cuda`](https://docs.rs/burn-cuda) with a meter: operations are fused.
#[cfg(feature = "cuda")]
pub type MeteredCuda<F = f32, I = i32> = Fusion<MeteredCudaUnfused<F, I>>;

/// `Cuda` with a meter, as it is without Burn's feature `fusion`.
#[cfg(feature = "cuda")]
pub type MeteredCudaUnfused<F = f32, I = i32> =
    CubeBackend<Metered<cubecl::cuda::CudaRuntime>, F, I, u8>;

/// A backend whose memory [`DeviceMemory`](crate::DeviceMemory) knows: on a
/// [metered runtime](crate::Metered), fused or not.
pub trait MeteredBackend: Backend {
    /// The runtime underneath.
    type Metered: MeteredRuntime<Device = Self::Device>;
}

impl<R, F, I, B> MeteredBackend for CubeBackend<Metered<R>, F, I, B>
where
    R: MeterableRuntime,
    F: FloatElement,
    I: IntElement,
    B: BoolElement,
{
    type Metered = Metered<R>;
}

impl<B: FusionBackend + MeteredBackend> MeteredBackend for Fusion<B> {
    type Metered = B::Metered;
}
