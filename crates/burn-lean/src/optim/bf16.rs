//! Weights in bf16, stepped in 32 bits.

use std::fmt;

use burn::optim::{
    AdamConfig, AdamWConfig, LearningRate, ModuleOptimizer, Optimizer, RecordState, StateSink,
    StateSource, join_path,
};
use burn::tensor::{DType, Device, Tensor};
use lean_arithmetic::optim::Moments;

use super::record::Field;
use super::rounding::{LowBits, MasterWeights24, Rounding};
use super::{EightBitMoments, InOnePass, Lean};
use crate::gradients::{answers, is_looked_for, is_only_asked, takes_f32_gradients};
use crate::optimizer::{Request, fulfil, request};

/// An optimizer of weights in bf16, by any optimizer of weights in 32 bits.
///
/// A weight in bf16 has eight bits: a step of less than a 256th of it changes nothing if the sum is
/// rounded to the nearest. So the step is computed in 32 bits, one parameter at a time, and then
/// rounded so that nothing is lost: on average, [stochastically](super::Stochastic), or at all, with
/// [master weights](super::MasterWeights); or nearly, with master weights of [24 bits](MasterWeights24).
///
/// | bytes a parameter: weight, bits beside it | |
/// |---|---|
/// | [`Stochastic`](super::Stochastic) | 2 |
/// | [`MasterWeights24`] | 3; with AdamW's [moments in 8 bits](EightBitMoments) 5.1 |
/// | [`MasterWeights`](super::MasterWeights) | 4 |
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
    pub(super) rounding: R,
    f32: F32Parameters,
}

/// The parameters in f32 that are stepped, and not refused.
#[derive(Clone, Copy, Debug)]
enum F32Parameters {
    None,
    /// Gains and biases of normalizations, which [`MixedPrecision`](crate::MixedPrecision) keeps.
    Vectors,
    All,
}

impl F32Parameters {
    fn allows(self, rank: usize) -> bool {
        match self {
            Self::None => false,
            Self::Vectors => rank == 1,
            Self::All => true,
        }
    }
}

impl<O: Optimizer, R: Rounding> Bf16Weights<O, R> {
    /// Weights in bf16, stepped by this optimizer and rounded so.
    pub fn new(optimizer: O, rounding: R) -> Self {
        Self {
            optimizer,
            rounding,
            f32: F32Parameters::None,
        }
    }

    /// Also steps parameters in f32, such as those that [`MixedPrecision`](crate::MixedPrecision)
    /// keeps, with the optimizer alone. By default they are refused, because a model that was not
    /// cast takes twice the memory. [In five bytes](InFiveBytes::in_five_bytes), parameters of rank
    /// 1 are not refused.
    #[must_use]
    pub fn with_f32_parameters(mut self) -> Self {
        self.f32 = F32Parameters::All;
        self
    }

    /// Checks that a parameter can be stepped with this state.
    fn check<const D: usize>(
        &self,
        weight: &Tensor<D>,
        state: Option<&Bf16State<O, D>>,
    ) -> Result<(), String> {
        let dtype = weight.dtype();
        if dtype == DType::F32 && self.f32.allows(D) {
            return Ok(());
        }
        if !self.rounding.rounds_to(dtype) {
            return Err(format!(
                "`Bf16Weights` steps parameters in BF16, or in F16 with `MasterWeights24`, and this \
                 one is in {dtype:?}: cast the model with `MixedPrecision`, or allow those in F32 with \
                 `with_f32_parameters()`"
            ));
        }
        let Some((state, low)) = state.and_then(|state| Some((state, state.low.as_ref()?))) else {
            return Ok(());
        };
        check_low_of(dtype, state.low_of)?;
        let (elements, [words]) = (weight.shape().num_elements(), low.dims());
        self.rounding.check_low(dtype, elements, words)
    }

    /// Passes a question on to the optimizer, if it answers questions.
    fn ask_optimizer<const D: usize>(&self, weight: &Tensor<D>, state: Option<Bf16State<O, D>>) {
        let device = weight.device();
        if answers::<O::State<D>>(&device) {
            let one = Tensor::<D>::ones([1; D], (&device, DType::F32));
            let ones = one.expand(weight.shape());
            let state = state.and_then(|state| state.optimizer);
            drop(self.optimizer.step(0.0, ones.clone(), ones, state));
        }
    }

    /// The optimizer for all parameters of a module.
    pub fn init(self) -> ModuleOptimizer {
        ModuleOptimizer::from(self)
    }
}

/// A configuration of Burn's Adam or AdamW whose optimizer takes five bytes a parameter, with the
/// weight.
///
/// After FlashOptim (2026), <https://arxiv.org/abs/2602.23349>.
pub trait InFiveBytes: InOnePass<Optimizer: EightBitMoments> {
    /// The optimizer for a model that [`MixedPrecision`](crate::MixedPrecision) has cast:
    ///
    /// | | bytes a parameter |
    /// |---|---|
    /// | weight in bf16 or f16 | 2 |
    /// | [correction to 24 bits](MasterWeights24) | 1 |
    /// | [moments in 8 bits](EightBitMoments) | 2.06 |
    ///
    /// It computes in f32, [in one pass](InOnePass). Unlike
    /// [`with_8_bit_moments`](EightBitMoments::with_8_bit_moments), it keeps the moments of
    /// embeddings in 8 bits. Parameters of fewer than 4096 elements have moments in f32. Parameters
    /// of rank 1 may be in f32, such as those of normalizations. For others that you
    /// [keep](crate::MixedPrecision::keep), use
    /// [`with_f32_parameters`](Bf16Weights::with_f32_parameters).
    ///
    /// The seed chooses the noise of the last of the 24 bits.
    ///
    /// ```
    /// use burn::nn::{Linear, LinearConfig};
    /// use burn::optim::AdamWConfig;
    /// use burn::tensor::Device;
    /// use burn_lean::optim::InFiveBytes;
    /// use burn_lean::{MixedPrecision, WithGradientRelease};
    ///
    /// let model: Linear = LinearConfig::new(64, 64).init(&Device::flex().autodiff());
    /// let model = MixedPrecision::bf16().cast(model)?;
    /// let optim = AdamWConfig::new().in_five_bytes(42).init().with_gradient_release();
    /// # let _ = (model, optim);
    /// # Ok::<(), burn_lean::CastError>(())
    /// ```
    ///
    /// # Panics
    ///
    /// As [`in_one_pass`](InOnePass::in_one_pass).
    fn in_five_bytes(&self, seed: u64) -> Bf16Weights<Self::Optimizer, MasterWeights24> {
        let mut optimizer = self.in_one_pass();
        optimizer.settings_mut().moments = Moments::EightBit;
        let mut optimizer = Bf16Weights::new(optimizer, MasterWeights24 { seed });
        optimizer.f32 = F32Parameters::Vectors;
        optimizer
    }
}

impl InFiveBytes for AdamConfig {}
impl InFiveBytes for AdamWConfig {}

/// Name of the optimizer's state in the record of a [`Bf16State`].
pub(super) const OPTIMIZER: &str = "optimizer";

/// The types of weights that have lower bits, and the names of those in a record.
pub(super) const LOW: [(DType, &str); 2] = [(DType::BF16, "low"), (DType::F16, "low_of_f16")];

/// The name of the lower bits of a weight of this type.
pub(super) fn name_of_low(dtype: DType) -> &'static str {
    let [(_, of_bf16), (f16, of_f16)] = LOW;
    if dtype == f16 { of_f16 } else { of_bf16 }
}

/// The lower bits of a weight of one type say nothing of a weight of another one.
pub(super) fn check_low_of(dtype: DType, low_of: DType) -> Result<(), String> {
    match dtype == low_of {
        true => Ok(()),
        false => Err(format!(
            "the model is in {dtype:?}, and its optimizer has the lower bits of weights in {low_of:?}: \
             go from one to the other with `weights_to_f32` and `weights_from_f32`, which take the \
             record"
        )),
    }
}

/// State of [`Bf16Weights`].
#[derive(Clone)]
pub struct Bf16State<O: Optimizer, const D: usize> {
    /// Number of steps taken.
    pub time: usize,
    /// State of the optimizer in 32 bits.
    pub optimizer: Option<O::State<D>>,
    /// The lower bits of master weights.
    pub low: Option<LowBits>,
    /// The type of the weight that has these lower bits.
    pub low_of: DType,
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
        let name = name_of_low(self.low_of);
        self.low.flatten(&join_path(prefix, name), out);
        if let Some(state) = &self.optimizer {
            state.state_flatten(&join_path(prefix, OPTIMIZER), out);
        }
    }

    fn state_unflatten(prefix: &str, source: &mut StateSource, device: &Device) -> Option<Self> {
        if is_looked_for(prefix) {
            return None;
        }
        let of_optimizer = join_path(prefix, OPTIMIZER);
        let of_type = LOW.into_iter().find_map(|(dtype, name)| {
            let low = LowBits::unflatten(&join_path(prefix, name), source, device)?;
            Some((low, dtype))
        });
        let low_of = of_type.as_ref().map_or(DType::BF16, |(_, dtype)| *dtype);
        let low = of_type.map(|(low, _)| low);
        // Each of ours has a time of its own. What accumulates in its moments has an optimizer too, and no
        // time.
        let time: Option<usize> = Field::unflatten(&join_path(prefix, "time"), source, device);
        let is_nested = time.is_some() && source.has_under(&of_optimizer);
        if low.is_none()
            && !is_nested
            && let Some(optimizer) = RecordState::state_unflatten(prefix, source, device)
        {
            // What the optimizer alone has saved, of weights in 32 bits; or there is nothing that it
            // saves, as with SGD without momentum.
            return Some(Self {
                time: time.unwrap_or(0),
                optimizer: Some(optimizer),
                low,
                low_of,
            });
        }
        let time = time?;
        let optimizer = match source.has_under(&of_optimizer) {
            true => Some(RecordState::state_unflatten(&of_optimizer, source, device)?),
            false => None,
        };
        Some(Self {
            time,
            optimizer,
            low,
            low_of,
        })
    }
}

impl<O: Optimizer, R: Rounding> Optimizer for Bf16Weights<O, R> {
    type State<const D: usize> = Bf16State<O, D>;

    /// # Panics
    ///
    /// If the parameter is not in bf16, or in f16 with [`MasterWeights24`], or in f32
    /// [if that was asked for](Bf16Weights::with_f32_parameters); or if the state has lower bits of
    /// a weight in the other type.
    fn step<const D: usize>(
        &self,
        lr: LearningRate,
        tensor: Tensor<D>,
        grad: Tensor<D>,
        state: Option<Bf16State<O, D>>,
    ) -> (Tensor<D>, Option<Bf16State<O, D>>) {
        let dtype = tensor.dtype();
        match request() {
            Some(Request::Round(dtype)) if self.rounding.rounds_to(dtype) => {
                fulfil();
                // What 24 bits hold already has nothing to be rounded, whatever the noise.
                let (tensor, low) = self.rounding.round(tensor, dtype, 0);
                let state = low.is_some().then_some(Bf16State {
                    time: 0,
                    optimizer: None,
                    low,
                    low_of: dtype,
                });
                return (tensor, state);
            }
            Some(Request::Round(_)) => return (tensor, None),
            #[cfg(feature = "safetensors")]
            Some(Request::Widen) => {
                fulfil();
                let state = state.filter(|state| state.low_of == dtype);
                let low = state.and_then(|state| state.low);
                return (self.rounding.widen(tensor, low), None);
            }
            None => {}
        }
        takes_f32_gradients();
        let checked = self.check(&tensor, state.as_ref());
        let is_taken = checked.is_ok();
        if is_only_asked(checked) {
            if is_taken {
                self.ask_optimizer(&tensor, state);
            }
            return (tensor, None);
        }
        let is_f32 = dtype == DType::F32;
        let (time, optimizer, low) = match state {
            Some(state) => (state.time + 1, state.optimizer, state.low),
            None => (1, None, None),
        };
        let grad = grad.cast(DType::F32);
        let exact = match is_f32 {
            // Bits that it had in half precision are in it by now.
            true => tensor,
            false => self.rounding.widen(tensor, low),
        };
        let (exact, optimizer) = self.optimizer.step(lr, exact, grad, optimizer);
        let (tensor, low) = match is_f32 {
            true => (exact, None),
            false => self.rounding.round(exact, dtype, time),
        };
        let state = Bf16State {
            time,
            optimizer,
            low,
            low_of: dtype,
        };
        (tensor, Some(state))
    }

    fn to_device<const D: usize>(state: Bf16State<O, D>, device: &Device) -> Bf16State<O, D> {
        Bf16State {
            time: state.time,
            optimizer: state.optimizer.map(|state| O::to_device(state, device)),
            low: state.low.map(|low| low.to_device(device)),
            low_of: state.low_of,
        }
    }
}
