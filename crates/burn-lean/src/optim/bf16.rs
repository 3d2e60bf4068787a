//! Weights in bf16, stepped in 32 bits.

use std::fmt;

#[cfg(any(feature = "cube", feature = "flex"))]
use burn::backend::DispatchDevice;
use burn::optim::{
    LearningRate, ModuleOptimizer, Optimizer, RecordState, StateSink, StateSource, join_path,
};
use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use lean_arithmetic::optim::{Noise, half_words, join, split};

#[cfg(feature = "cube")]
use super::cube;
#[cfg(feature = "flex")]
use super::flex;
use super::record::Field;

/// An optimizer of weights in bf16, by any optimizer of weights in 32 bits.
///
/// A weight in bf16 has eight bits: a step of less than a 256th of it changes nothing if the sum is
/// rounded to the nearest. So the step is computed in 32 bits, one parameter at a time, and then
/// rounded so that nothing is lost: on average, [by chance](Stochastic), or at all, with
/// [master weights](MasterWeights).
///
/// ```
/// use burn::optim::AdamWConfig;
/// use burn_lean::WithGradientRelease;
/// use burn_lean::optim::{Bf16Weights, InOnePass, Stochastic};
///
/// let adamw = AdamWConfig::new().in_one_pass();
/// let optim = Bf16Weights::new(adamw, Stochastic { seed: 7 }).init().with_gradient_release();
/// # let _ = optim;
/// ```
#[derive(Clone, Debug)]
pub struct Bf16Weights<O, R> {
    optimizer: O,
    rounding: R,
}

impl<O: Optimizer, R: Rounding> Bf16Weights<O, R> {
    /// Weights in bf16, stepped by this optimizer and rounded so.
    pub fn new(optimizer: O, rounding: R) -> Self {
        Self {
            optimizer,
            rounding,
        }
    }

    /// The optimizer for all parameters of a module, which are in bf16.
    pub fn init(self) -> ModuleOptimizer {
        ModuleOptimizer::from(self)
    }
}

/// Rounding to bf16 by chance, up with the probability of the share lost: exact on average, without
/// memory.
///
/// The random numbers are those of the seed, the step and the place in the parameter: the same in
/// every run, and after a resume. Two parameters of one size have the same. On other backends than
/// Flex and the Cube backend the numbers go by way of the host, which is slow.
#[derive(Clone, Copy, Debug)]
pub struct Stochastic {
    /// Chooses the random numbers.
    pub seed: u64,
}

/// Master weights in 32 bits, at two bytes a parameter more: the weight is the number in bf16 that
/// is nearest to its master, of which the lower sixteen bits are kept beside it. The model computes
/// with the rounded weights, and the optimizer steps their masters, bit for bit as it would weights
/// in 32 bits.
///
/// Ties round away from zero, where Burn's cast rounds them to even. Weights that are changed
/// between two steps keep their lower bits, which are less than half a step of bf16; a weight set
/// to zero is zero. On other backends than Flex and the Cube backend the bits go by way of the
/// host, which is slow.
///
/// After Kalamkar et al., "Optimizing Deep Learning Recommender Systems' Training on CPU Cluster
/// Architectures" (2020): "Split-SGD-BF16".
#[derive(Clone, Copy, Debug)]
pub struct MasterWeights;

/// The lower halves of numbers in 32 bits, two to a word: `[words]`.
pub type LowerHalves = Tensor<1, Int>;

/// A way to round weights to bf16.
pub trait Rounding: Clone + Send + Sync + 'static {
    /// The exact weight before a step, from the rounded one and the bits that rounding kept.
    fn widen<const D: usize>(&self, weight: Tensor<D>, low: Option<LowerHalves>) -> Tensor<D>;

    /// Rounds the weight after step number `time`. Also returns the bits to keep.
    fn round<const D: usize>(
        &self,
        exact: Tensor<D>,
        time: usize,
    ) -> (Tensor<D>, Option<LowerHalves>);
}

impl Rounding for Stochastic {
    fn widen<const D: usize>(&self, weight: Tensor<D>, _low: Option<LowerHalves>) -> Tensor<D> {
        weight.cast(DType::F32)
    }

    fn round<const D: usize>(
        &self,
        exact: Tensor<D>,
        time: usize,
    ) -> (Tensor<D>, Option<LowerHalves>) {
        let noise = Noise::of_step(self.seed, time);
        #[cfg(feature = "flex")]
        if matches!(exact.device().as_dispatch(), DispatchDevice::Flex(_)) {
            return (flex::round_stochastically(exact, noise), None);
        }
        #[cfg(feature = "cube")]
        if matches!(exact.device().as_dispatch(), DispatchDevice::Cube(_)) {
            return (
                cube::round_stochastically(exact, noise).cast(DType::BF16),
                None,
            );
        }
        (round_on_host(exact, noise), None)
    }
}

fn round_on_host<const D: usize>(exact: Tensor<D>, noise: Noise) -> Tensor<D> {
    let (device, shape) = (exact.device(), exact.shape());
    let numbers = exact.try_into_vec_as::<f32>();
    let numbers = numbers.expect("steps are computed in 32 bits");
    let round = |(number, place)| {
        let bits = noise.round_to_bf16(number, place);
        f32::from_bits(u32::from(bits) << 16)
    };
    let rounded: Vec<f32> = numbers.into_iter().zip(0u32..).map(round).collect();
    Tensor::from_data(TensorData::new(rounded, shape), (&device, DType::BF16))
}

impl Rounding for MasterWeights {
    /// # Panics
    ///
    /// If the bits kept belong to a parameter of another size.
    fn widen<const D: usize>(&self, weight: Tensor<D>, low: Option<LowerHalves>) -> Tensor<D> {
        let weight = weight.cast(DType::F32);
        let Some(low) = low else { return weight };
        let ([words], needed) = (low.dims(), half_words(weight.shape().num_elements()));
        assert!(
            words == needed,
            "the lower halves of a weight are {words} words and not the {needed} of its size: its \
             state is that of another parameter"
        );
        #[cfg(feature = "flex")]
        if matches!(weight.device().as_dispatch(), DispatchDevice::Flex(_)) {
            return flex::rejoin(weight, low);
        }
        #[cfg(feature = "cube")]
        if matches!(weight.device().as_dispatch(), DispatchDevice::Cube(_)) {
            return cube::rejoin(weight, low);
        }
        rejoin_on_host(weight, low)
    }

    fn round<const D: usize>(
        &self,
        exact: Tensor<D>,
        _time: usize,
    ) -> (Tensor<D>, Option<LowerHalves>) {
        #[cfg(feature = "flex")]
        if matches!(exact.device().as_dispatch(), DispatchDevice::Flex(_)) {
            let (nearest, low) = flex::split(exact);
            return (nearest.cast(DType::BF16), Some(low));
        }
        #[cfg(feature = "cube")]
        if matches!(exact.device().as_dispatch(), DispatchDevice::Cube(_)) {
            let (nearest, low) = cube::split(exact);
            return (nearest.cast(DType::BF16), Some(low));
        }
        let (nearest, low) = split_on_host(exact);
        (nearest, Some(low))
    }
}

fn split_on_host<const D: usize>(exact: Tensor<D>) -> (Tensor<D>, LowerHalves) {
    let (device, shape) = (exact.device(), exact.shape());
    let numbers = exact.try_into_vec_as::<f32>();
    let numbers = numbers.expect("steps are computed in 32 bits");
    let (nearest, low): (Vec<_>, Vec<_>) = numbers.into_iter().map(split).unzip();
    let widened = |nearest| f32::from_bits(u32::from(nearest) << 16);
    let nearest: Vec<f32> = nearest.into_iter().map(widened).collect();
    let word = |pair: &[u16]| {
        let second = pair.get(1).copied().unwrap_or(0);
        (u32::from(second) << 16 | u32::from(pair[0])).cast_signed()
    };
    let words: Vec<i32> = low.chunks(2).map(word).collect();
    let length = words.len();
    let low = Tensor::from_data(TensorData::new(words, [length]), (&device, DType::I32));
    let nearest = Tensor::from_data(TensorData::new(nearest, shape), (&device, DType::BF16));
    (nearest, low)
}

fn rejoin_on_host<const D: usize>(nearest: Tensor<D>, low: LowerHalves) -> Tensor<D> {
    let (device, shape) = (nearest.device(), nearest.shape());
    let numbers = nearest.try_into_vec_as::<f32>().expect("they were cast");
    let words = low.try_into_vec_as::<i32>().expect("they are words");
    let halves = words.into_iter().map(i32::cast_unsigned);
    let halves = halves.flat_map(|word| [word as u16, (word >> 16) as u16]);
    let numbers = numbers.into_iter().zip(halves);
    let numbers: Vec<f32> = numbers
        .map(|(number, low)| join((number.to_bits() >> 16) as u16, low))
        .collect();
    Tensor::from_data(TensorData::new(numbers, shape), (&device, DType::F32))
}

/// State of [`Bf16Weights`].
pub struct Bf16State<O: Optimizer, const D: usize> {
    /// Number of steps taken.
    pub time: usize,
    /// State of the optimizer in 32 bits.
    pub optimizer: Option<O::State<D>>,
    /// The lower halves that [`MasterWeights`] keeps.
    pub low: Option<LowerHalves>,
}

impl<O: Optimizer, const D: usize> Clone for Bf16State<O, D> {
    fn clone(&self) -> Self {
        Self {
            time: self.time,
            optimizer: self.optimizer.clone(),
            low: self.low.clone(),
        }
    }
}

impl<O: Optimizer, const D: usize> fmt::Debug for Bf16State<O, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bf16State")
            .field("time", &self.time)
            .field("low", &self.low)
            .finish_non_exhaustive()
    }
}

impl<O: Optimizer, const D: usize> RecordState for Bf16State<O, D> {
    fn state_flatten(&self, prefix: &str, out: &mut StateSink) {
        self.time.flatten(&join_path(prefix, "time"), out);
        self.low.flatten(&join_path(prefix, "low"), out);
        if let Some(state) = &self.optimizer {
            state.state_flatten(&join_path(prefix, "optimizer"), out);
        }
    }

    fn state_unflatten(prefix: &str, source: &mut StateSource, device: &Device) -> Option<Self> {
        let time = Field::unflatten(&join_path(prefix, "time"), source, device)?;
        let low = Field::unflatten(&join_path(prefix, "low"), source, device)?;
        let prefix = join_path(prefix, "optimizer");
        let optimizer = match source.has_under(&prefix) {
            true => Some(RecordState::state_unflatten(&prefix, source, device)?),
            false => None,
        };
        Some(Self {
            time,
            optimizer,
            low,
        })
    }
}

impl<O: Optimizer, R: Rounding> Optimizer for Bf16Weights<O, R> {
    type State<const D: usize> = Bf16State<O, D>;

    /// # Panics
    ///
    /// If the parameter is not in bf16.
    fn step<const D: usize>(
        &self,
        lr: LearningRate,
        tensor: Tensor<D>,
        grad: Tensor<D>,
        state: Option<Bf16State<O, D>>,
    ) -> (Tensor<D>, Option<Bf16State<O, D>>) {
        let dtype = tensor.dtype();
        assert!(
            dtype == DType::BF16,
            "`Bf16Weights` steps parameters in BF16, and this one is in {dtype:?}: cast the \
             model's parameters, or take the optimizer by itself"
        );
        let (time, optimizer, low) = match state {
            Some(state) => (state.time + 1, state.optimizer, state.low),
            None => (1, None, None),
        };
        let exact = self.rounding.widen(tensor, low);
        let grad = grad.cast(DType::F32);
        let (exact, optimizer) = self.optimizer.step(lr, exact, grad, optimizer);
        let (tensor, low) = self.rounding.round(exact, time);
        let state = Bf16State {
            time,
            optimizer,
            low,
        };
        (tensor, Some(state))
    }

    fn to_device<const D: usize>(state: Bf16State<O, D>, device: &Device) -> Bf16State<O, D> {
        Bf16State {
            time: state.time,
            optimizer: state.optimizer.map(|state| O::to_device(state, device)),
            low: state.low.map(|low| low.to_device(device)),
        }
    }
}
