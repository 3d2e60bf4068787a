//! Rounding of weights to 16 bits.

#[cfg(any(feature = "cube", feature = "flex"))]
use burn::backend::DispatchDevice;
use burn::tensor::{DType, Int, Tensor, TensorData};
use lean_arithmetic::optim::{Noise, Split};

#[cfg(feature = "cube")]
use super::cube;
#[cfg(feature = "flex")]
use super::flex;

/// Stochastic rounding to bf16, up with the probability of the share lost: exact on average, without
/// memory.
///
/// The noise depends only on the seed, the step and the place of the element. So it is the same in
/// every run and after a resume. Two parameters of one size have the same. On other backends than
/// Flex and the Cube backend the numbers go by way of the host, which is slow.
#[derive(Clone, Copy, Debug)]
pub struct Stochastic {
    /// Chooses the noise.
    pub seed: u64,
}

/// Master weights in 32 bits, at two more bytes a parameter. The weight is its master, rounded to
/// the nearest bf16. The optimizer keeps the lower sixteen bits of the master. The model computes
/// with the rounded weights, and the optimizer steps their masters, bit for bit as it would weights
/// in 32 bits.
///
/// Ties round away from zero, where Burn's cast rounds them to even. Weights that are changed
/// between two steps keep their lower bits, which are at most half a step of bf16: a weight set to
/// zero is zero, or below half the smallest number. On other backends than Flex and the Cube backend
/// the bits go by way of the host, which is slow.
///
/// After Kalamkar et al., "Optimizing Deep Learning Recommender Systems' Training on CPU Cluster
/// Architectures" (2020): "Split-SGD-BF16".
#[derive(Clone, Copy, Debug)]
pub struct MasterWeights;

/// Master weights in 24 bits, at one byte a parameter more, for weights in bf16 or f16: `c / 128 * h`
/// beside a weight, where `h` is half a unit in its last place and `c` a correction from -128 to 127.
///
/// The last of the 24 bits is rounded stochastically, so that a step smaller than it, a 2^-16th of
/// the weight, is right on average. The noise depends only on the seed, the step and the place of
/// the element. So it is the same in every run, on every backend and after a resume. What is said
/// of [`MasterWeights`] in other respects holds here too.
///
/// After FlashOptim (2026), <https://arxiv.org/abs/2602.23349>, which rounds the correction to the
/// nearest and calls this weight splitting. In f16, whose smallest number is 2^-24, the last of the
/// 24 bits is at least 2^-32.
#[derive(Clone, Copy, Debug)]
pub struct MasterWeights24 {
    /// Chooses the noise.
    pub seed: u64,
}

/// The lower bits of master weights, packed in words from the lowest bit on: `[words]`.
pub type LowBits = Tensor<1, Int>;

/// A way to round weights to 16 bits.
pub trait Rounding: Clone + Send + Sync + 'static {
    /// Whether it rounds to this type.
    fn rounds_to(&self, dtype: DType) -> bool {
        dtype == DType::BF16
    }

    /// How weights are split into this type and the lower bits that are kept.
    #[doc(hidden)]
    fn split(&self, _dtype: DType) -> Option<Split> {
        None
    }

    /// The noise of step number `time`.
    #[doc(hidden)]
    fn noise(&self, _time: usize) -> Option<Noise> {
        None
    }

    /// Checks that this rounding keeps so many words beside a weight of this type and number of elements.
    ///
    /// # Errors
    ///
    /// Why it does not, and the way out.
    fn check_low(&self, dtype: DType, elements: usize, words: usize) -> Result<(), String> {
        match self.split(dtype).map(|split| split.words(elements)) {
            Some(needed) if words == needed => Ok(()),
            Some(needed) => Err(format!(
                "the lower bits of a weight are {words} words and not the {needed} of its size: its \
                 state is that of another parameter, or of master weights with other bits"
            )),
            None => Err(
                "the state has the lower bits of master weights, which stochastic rounding does not \
                 keep: go from one to the other with `weights_to_f32` and `weights_from_f32`, which take \
                 the record"
                    .into(),
            ),
        }
    }

    /// The exact weight before a step, from the rounded one and the bits that rounding kept.
    ///
    /// # Panics
    ///
    /// If this rounding does not [keep these bits](Self::check_low) beside the weight.
    fn widen<const D: usize>(&self, weight: Tensor<D>, low: Option<LowBits>) -> Tensor<D> {
        let (dtype, elements) = (weight.dtype(), weight.shape().num_elements());
        let check = |low: &LowBits| self.check_low(dtype, elements, low.dims()[0]);
        if let Some(Err(reason)) = low.as_ref().map(check) {
            panic!("{reason}");
        }
        let weight = weight.cast(DType::F32);
        match self.split(dtype).zip(low) {
            Some((split, low)) => join(split, weight, low),
            None => weight,
        }
    }

    /// Rounds the weight after step number `time` to this type. Also returns the bits to keep.
    fn round<const D: usize>(
        &self,
        exact: Tensor<D>,
        dtype: DType,
        time: usize,
    ) -> (Tensor<D>, Option<LowBits>) {
        let (rounded, low) = match (self.split(dtype), self.noise(time)) {
            (Some(split), noise) => {
                let (nearest, low) = split_off(split, exact, noise);
                (nearest, Some(low))
            }
            (None, Some(noise)) => (round_stochastically(exact, noise), None),
            (None, None) => (exact, None),
        };
        (rounded.cast(dtype), low)
    }
}

impl Rounding for Stochastic {
    fn noise(&self, time: usize) -> Option<Noise> {
        Some(Noise::of_step(self.seed, time))
    }
}

impl Rounding for MasterWeights {
    fn split(&self, _: DType) -> Option<Split> {
        Some(Split::Bf16In32)
    }
}

impl Rounding for MasterWeights24 {
    fn rounds_to(&self, dtype: DType) -> bool {
        matches!(dtype, DType::BF16 | DType::F16)
    }

    fn split(&self, dtype: DType) -> Option<Split> {
        Some(match dtype {
            DType::F16 => Split::F16In24,
            _ => Split::Bf16In24,
        })
    }

    fn noise(&self, time: usize) -> Option<Noise> {
        Some(Noise::of_step(self.seed, time))
    }
}

fn round_stochastically<const D: usize>(exact: Tensor<D>, noise: Noise) -> Tensor<D> {
    #[cfg(feature = "flex")]
    if matches!(exact.device().as_dispatch(), DispatchDevice::Flex(_)) {
        return flex::round_stochastically(exact, noise);
    }
    #[cfg(feature = "cube")]
    if matches!(exact.device().as_dispatch(), DispatchDevice::Cube(_)) {
        return cube::round_stochastically(exact, noise);
    }
    let round = |(number, place)| {
        let bits = noise.round_to_bf16(number, place);
        f32::from_bits(u32::from(bits) << 16)
    };
    let (device, shape) = (exact.device(), exact.shape());
    let rounded: Vec<f32> = on_host(exact).into_iter().zip(0u32..).map(round).collect();
    Tensor::from_data(TensorData::new(rounded, shape), (&device, DType::F32))
}

fn on_host<const D: usize>(exact: Tensor<D>) -> Vec<f32> {
    let numbers = exact.try_into_vec_as::<f32>();
    numbers.expect("steps are computed in 32 bits")
}

/// Rounds a weight in 32 bits, still in 32, and returns the lower bits.
fn split_off<const D: usize>(
    split: Split,
    exact: Tensor<D>,
    noise: Option<Noise>,
) -> (Tensor<D>, LowBits) {
    #[cfg(feature = "flex")]
    if matches!(exact.device().as_dispatch(), DispatchDevice::Flex(_)) {
        return flex::split(split, exact, noise);
    }
    #[cfg(feature = "cube")]
    if matches!(exact.device().as_dispatch(), DispatchDevice::Cube(_)) {
        return cube::split(split, exact, noise);
    }
    let (device, shape) = (exact.device(), exact.shape());
    let mut numbers = on_host(exact);
    let low = split.split_all(&mut numbers, |place| {
        noise.map_or(0, |noise| noise.at(place))
    });
    let length = low.len();
    let low = Tensor::from_data(TensorData::new(low, [length]), (&device, DType::I32));
    let numbers = TensorData::new(numbers, shape);
    (Tensor::from_data(numbers, (&device, DType::F32)), low)
}

/// Restores a weight that was split.
fn join<const D: usize>(split: Split, weight: Tensor<D>, low: LowBits) -> Tensor<D> {
    #[cfg(feature = "flex")]
    if matches!(weight.device().as_dispatch(), DispatchDevice::Flex(_)) {
        return flex::rejoin(split, weight, low);
    }
    #[cfg(feature = "cube")]
    if matches!(weight.device().as_dispatch(), DispatchDevice::Cube(_)) {
        return cube::rejoin(split, weight, low);
    }
    let (device, shape) = (weight.device(), weight.shape());
    let mut numbers = on_host(weight);
    let low = low.try_into_vec_as::<i32>().expect("they are words");
    split.join_all(&mut numbers, &low);
    Tensor::from_data(TensorData::new(numbers, shape), (&device, DType::F32))
}
