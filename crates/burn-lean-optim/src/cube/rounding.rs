//! Rounding to bf16 by chance.

use burn::tensor::DType;
use burn_cubecl::{
    BoolElement, CubeBackend, CubeRuntime, FloatElement, IntElement,
    cubecl::{
        self, calculate_cube_count_elemwise, prelude::*, std::tensor::layout::linear::LinearView,
    },
    tensor::CubeTensor,
};

use burn_lean_arithmetic::optim::{MIXING, Noise};

use super::{Extent, writable};
use crate::RoundStochastically;

impl<R, F, I, BT> RoundStochastically for CubeBackend<R, F, I, BT>
where
    R: CubeRuntime,
    F: FloatElement,
    I: IntElement,
    BT: BoolElement,
{
    /// In place, and in 32 bits: what has bf16 is left to the cast that follows.
    fn round_stochastically(tensor: CubeTensor<R>, noise: Noise) -> CubeTensor<R> {
        assert_eq!(tensor.dtype, DType::F32, "steps are computed in 32 bits");
        let tensor = writable(tensor);
        let extent = Extent::of([&tensor].into_iter());
        if extent.elements > 0 {
            let [low, high] = noise.seeds;
            let client = &tensor.client;
            let units = extent.elements / extent.vector;
            let dim = CubeDim::new(client, units);
            stochastically::launch(
                client,
                calculate_cube_count_elemwise(client, units, dim),
                dim,
                extent.address,
                extent.vector,
                tensor.clone().into_linear_view(),
                low,
                high,
            );
        }
        tensor
    }
}

#[cube(launch, address_type = "dynamic")]
fn stochastically<N: Size>(
    numbers: &mut LinearView<Vector<f32, N>, ReadWrite>,
    low: u32,
    high: u32,
) {
    if !numbers.is_in_bounds(ABSOLUTE_POS) {
        terminate!();
    }
    let exact = numbers[ABSOLUTE_POS];
    let mut rounded = Vector::<f32, N>::empty();
    #[unroll]
    for lane in 0..N::value() {
        let place = (ABSOLUTE_POS * N::value() + lane) as u32;
        rounded[lane] = round(exact[lane], mixed(mixed(place ^ low) ^ high));
    }
    numbers[ABSOLUTE_POS] = rounded;
}

/// Away from zero with the probability of the part that bf16 has no bits for.
#[cube]
fn round(number: f32, random: u32) -> f32 {
    let bits = u32::reinterpret(number);
    let is_finite = (bits & 0x7f80_0000u32) != 0x7f80_0000u32;
    let rounded = (bits + (random >> 16)) & 0xffff_0000u32;
    f32::reinterpret(select(is_finite, rounded, bits))
}

/// As on the processor.
#[cube]
fn mixed(bits: u32) -> u32 {
    let bits = (bits ^ (bits >> 16)) * comptime!(MIXING[0]);
    let bits = (bits ^ (bits >> 15)) * comptime!(MIXING[1]);
    bits ^ (bits >> 16)
}
