//! cubecl 0.10, which Burn 0.21 has.

#[path = "eight_bit.rs"]
mod eight_bit;
#[path = "interpreter.rs"]
mod interpreter;
#[path = "kernel.rs"]
mod kernel;
#[path = "launch.rs"]
mod launch;
#[path = "rounding.rs"]
mod rounding;

use cubecl::client::ComputeClient;
use cubecl::prelude::*;
use cubecl::std::tensor::layout::linear::{LinearView, LinearViewLaunch, linear_view};
use cubecl_0_10 as cubecl;

pub use launch::{EightBit, States, parts, rejoin, round_stochastically, split, step, sum};

/// A tensor on a device, of elements in 32 bits.
#[expect(missing_debug_implementations, reason = "a client has none")]
#[derive(Clone)]
pub struct DeviceTensor<R: Runtime> {
    /// The client of the device.
    pub client: ComputeClient<R>,
    /// The memory, with shape and strides.
    pub binding: TensorBinding<R>,
}

/// A [`DeviceTensor`], whichever its runtime is: code that is shared by all versions cannot name
/// it.
pub trait OnDevice: Clone {
    #[doc(hidden)]
    type Runtime: Runtime;
    #[doc(hidden)]
    fn client(&self) -> &ComputeClient<Self::Runtime>;
    #[doc(hidden)]
    fn binding(&self) -> &TensorBinding<Self::Runtime>;
    #[doc(hidden)]
    fn into_view(self) -> LinearViewLaunch<Self::Runtime>;
    #[doc(hidden)]
    fn into_buffer(self) -> ArrayArg<Self::Runtime>;
}

impl<R: Runtime> OnDevice for DeviceTensor<R> {
    type Runtime = R;

    fn client(&self) -> &ComputeClient<R> {
        &self.client
    }

    fn binding(&self) -> &TensorBinding<R> {
        &self.binding
    }

    fn into_view(self) -> LinearViewLaunch<R> {
        linear_view(self.binding)
    }

    fn into_buffer(self) -> ArrayArg<R> {
        self.binding.into_array_arg()
    }
}

/// The elements of a tensor in their order.
type View<E> = LinearView<E>;
/// The elements of a buffer, mutable.
type ViewMut<E> = LinearView<E, ReadWrite>;
/// The elements of a buffer.
type Buffer<E> = Array<E>;

/// Words that the units of a cube share.
#[cube]
fn shared_words(#[comptime] length: usize) -> SharedMemory<u32> {
    SharedMemory::new(length)
}

#[cube]
fn extract<N: Size>(numbers: Vector<f32, N>, #[comptime] lane: usize) -> f32 {
    numbers[lane]
}

#[cube]
fn insert<N: Size>(numbers: &mut Vector<f32, N>, #[comptime] lane: usize, number: f32) {
    numbers[lane] = number;
}

#[cube]
fn less_than<N: Size>(one: Vector<f32, N>, other: Vector<f32, N>) -> Vector<bool, N> {
    one.less_than(other)
}

#[cube]
fn greater_equal<N: Size>(one: Vector<f32, N>, other: Vector<f32, N>) -> Vector<bool, N> {
    one.greater_equal(other)
}
