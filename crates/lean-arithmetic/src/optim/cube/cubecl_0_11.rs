//! cubecl 0.11, which Burn 0.22 has.

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

use cubecl::client::Client;
use cubecl::prelude::*;
use cubecl::std::tensor::layout::linear::{
    LinearView, LinearViewLaunch, LinearViewMut, linear_view,
};
use cubecl_0_11 as cubecl;

pub use launch::{EightBit, States, parts, rejoin, round_stochastically, split, step, sum};

/// A tensor on a device, of elements in 32 bits.
#[expect(missing_debug_implementations, reason = "a client has none")]
#[derive(Clone)]
pub struct DeviceTensor {
    /// The client of the device.
    pub client: Client,
    /// The memory, with shape and strides.
    pub binding: TensorBinding,
}

/// A [`DeviceTensor`]: code that is shared by all versions cannot name it.
pub trait OnDevice: Clone {
    #[doc(hidden)]
    fn client(&self) -> &Client;
    #[doc(hidden)]
    fn binding(&self) -> &TensorBinding;
    #[doc(hidden)]
    fn into_view(self) -> LinearViewLaunch;
    #[doc(hidden)]
    fn into_buffer(self) -> BufferArg;
}

impl OnDevice for DeviceTensor {
    fn client(&self) -> &Client {
        &self.client
    }

    fn binding(&self) -> &TensorBinding {
        &self.binding
    }

    fn into_view(self) -> LinearViewLaunch {
        linear_view(self.binding)
    }

    fn into_buffer(self) -> BufferArg {
        self.binding.into_tensor_arg().into_buffer_arg()
    }
}

/// The elements of a tensor in their order.
type View<E> = LinearView<'static, E>;
/// The elements of a buffer, mutable.
type ViewMut<E> = LinearViewMut<'static, E>;
/// The elements of a buffer.
type Buffer<E> = Box<[E]>;

/// Words that the units of a cube share.
#[cube]
fn shared_words(#[comptime] length: usize) -> Shared<[u32]> {
    Shared::new_slice(length)
}

#[cube]
fn extract<N: Size>(numbers: Vector<f32, N>, #[comptime] lane: usize) -> f32 {
    numbers.extract(lane)
}

#[cube]
fn insert<N: Size>(numbers: &mut Vector<f32, N>, #[comptime] lane: usize, number: f32) {
    numbers.insert(lane, number);
}

#[cube]
fn less_than<N: Size>(one: Vector<f32, N>, other: Vector<f32, N>) -> Vector<bool, N> {
    one.less_than(&other)
}

#[cube]
fn greater_equal<N: Size>(one: Vector<f32, N>, other: Vector<f32, N>) -> Vector<bool, N> {
    one.greater_equal(&other)
}
