//! Weights in bf16, stepped in 32 bits.

use std::fmt;

#[cfg(any(feature = "cube", feature = "flex"))]
use burn::backend::DispatchDevice;
use burn::optim::{
    LearningRate, ModuleOptimizer, Optimizer, RecordState, StateSink, StateSource, join_path,
};
use burn::tensor::{DType, Device, Tensor, TensorData};
use burn_lean_arithmetic::optim::Noise;

#[cfg(feature = "cube")]
use super::cube;
#[cfg(feature = "flex")]
use super::flex;
use super::record::Field;

/// An optimizer of weights in bf16, by any optimizer of weights in 32 bits.
///
/// A weight in bf16 has eight bits: a step of less than a 256th of it changes nothing if the sum is
/// rounded to the nearest. So the step is computed in 32 bits, one parameter at a time, and then
/// rounded so that on average nothing is lost: [by chance](Stochastic), or with
/// [Kahan's summation](Kahan).
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

/// Rounding to bf16 by chance, up with the probability of what is lost: right on average, without
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

/// Rounding to the nearest, with what is lost kept in bf16 and added to the weight in the next
/// step: two bytes a parameter more, and no chance.
///
/// What is kept has eight bits as well, so that a step of less than 2^-18 of the weight is lost.
#[derive(Clone, Copy, Debug)]
pub struct Kahan;

/// How weights are rounded to bf16.
pub trait Rounding: Clone + Send + Sync + 'static {
    /// The exact weight before a step, of the rounded one and what rounding kept.
    fn widen<const D: usize>(&self, weight: Tensor<D>, kept: Option<Tensor<D>>) -> Tensor<D>;

    /// Rounds the weight after step number `time`, and says what is kept.
    fn round<const D: usize>(
        &self,
        exact: Tensor<D>,
        time: usize,
    ) -> (Tensor<D>, Option<Tensor<D>>);
}

impl Rounding for Stochastic {
    fn widen<const D: usize>(&self, weight: Tensor<D>, _kept: Option<Tensor<D>>) -> Tensor<D> {
        weight.cast(DType::F32)
    }

    fn round<const D: usize>(
        &self,
        exact: Tensor<D>,
        time: usize,
    ) -> (Tensor<D>, Option<Tensor<D>>) {
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

impl Rounding for Kahan {
    fn widen<const D: usize>(&self, weight: Tensor<D>, kept: Option<Tensor<D>>) -> Tensor<D> {
        let weight = weight.cast(DType::F32);
        match kept {
            Some(kept) => weight + kept.cast(DType::F32),
            None => weight,
        }
    }

    fn round<const D: usize>(
        &self,
        exact: Tensor<D>,
        _time: usize,
    ) -> (Tensor<D>, Option<Tensor<D>>) {
        let rounded = exact.clone().cast(DType::BF16);
        let lost = exact - rounded.clone().cast(DType::F32);
        (rounded, Some(lost.cast(DType::BF16)))
    }
}

/// State of [`Bf16Weights`].
pub struct Bf16State<O: Optimizer, const D: usize> {
    /// How many steps there were.
    pub time: usize,
    /// State of the optimizer in 32 bits.
    pub optimizer: Option<O::State<D>>,
    /// What rounding has kept.
    pub kept: Option<Tensor<D>>,
}

impl<O: Optimizer, const D: usize> Clone for Bf16State<O, D> {
    fn clone(&self) -> Self {
        Self {
            time: self.time,
            optimizer: self.optimizer.clone(),
            kept: self.kept.clone(),
        }
    }
}

impl<O: Optimizer, const D: usize> fmt::Debug for Bf16State<O, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bf16State")
            .field("time", &self.time)
            .field("kept", &self.kept)
            .finish_non_exhaustive()
    }
}

impl<O: Optimizer, const D: usize> RecordState for Bf16State<O, D> {
    fn state_flatten(&self, prefix: &str, out: &mut StateSink) {
        self.time.flatten(&join_path(prefix, "time"), out);
        self.kept.flatten(&join_path(prefix, "kept"), out);
        if let Some(state) = &self.optimizer {
            state.state_flatten(&join_path(prefix, "optimizer"), out);
        }
    }

    fn state_unflatten(prefix: &str, source: &mut StateSource, device: &Device) -> Option<Self> {
        let time = Field::unflatten(&join_path(prefix, "time"), source, device)?;
        let kept = Field::unflatten(&join_path(prefix, "kept"), source, device)?;
        let prefix = join_path(prefix, "optimizer");
        let optimizer = match source.has_under(&prefix) {
            true => Some(RecordState::state_unflatten(&prefix, source, device)?),
            false => None,
        };
        Some(Self {
            time,
            optimizer,
            kept,
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
        let (time, optimizer, kept) = match state {
            Some(state) => (state.time + 1, state.optimizer, state.kept),
            None => (1, None, None),
        };
        let exact = self.rounding.widen(tensor, kept);
        let grad = grad.cast(DType::F32);
        let (exact, optimizer) = self.optimizer.step(lr, exact, grad, optimizer);
        let (tensor, kept) = self.rounding.round(exact, time);
        let state = Bf16State {
            time,
            optimizer,
            kept,
        };
        (tensor, Some(state))
    }

    fn to_device<const D: usize>(state: Bf16State<O, D>, device: &Device) -> Bf16State<O, D> {
        Bf16State {
            time: state.time,
            optimizer: state.optimizer.map(|state| O::to_device(state, device)),
            kept: state.kept.map(|kept| kept.to_device(device)),
        }
    }
}
