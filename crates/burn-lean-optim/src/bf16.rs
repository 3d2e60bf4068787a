//! Weights in bf16, stepped in 32 bits.

use std::fmt;

use burn::{
    module::AutodiffModule,
    optim::{LearningRate, SimpleOptimizer, adaptor::OptimizerAdaptor},
    record::{PrecisionSettings, Record},
    tensor::{
        DType, Tensor, TensorPrimitive,
        backend::{AutodiffBackend, Backend},
    },
};
use burn_lean_arithmetic::optim::Noise;
use serde::{Deserialize, Serialize};

use crate::{
    RoundStochastically,
    moment::{Moment, MomentItem},
};

/// An optimizer of weights in bf16, by any optimizer of weights in 32 bits.
///
/// A weight in bf16 has eight bits: a step of less than a 256th of it changes nothing if the sum is rounded to the
/// nearest. So the step is computed in 32 bits, one parameter at a time, and then rounded so that on average
/// nothing is lost: [by chance](Stochastic), or with [Kahan's summation](Kahan).
///
/// ```
/// use burn::{backend::{Autodiff, Flex}, nn::Linear, optim::{AdamWConfig, adaptor::OptimizerAdaptor}};
/// use burn_lean_optim::{AdamW, Bf16Weights, InOnePass, Stochastic};
///
/// type B = Autodiff<Flex>;
///
/// let adamw = AdamWConfig::new().in_one_pass();
/// let optim: OptimizerAdaptor<Bf16Weights<AdamW, Stochastic>, Linear<B>, B> =
///     Bf16Weights::new(adamw, Stochastic { seed: 7 }).init();
/// # let _ = optim;
/// ```
#[derive(Clone, Debug)]
pub struct Bf16Weights<O, R> {
    optimizer: O,
    rounding: R,
}

impl<O, R> Bf16Weights<O, R> {
    /// Weights in bf16, stepped by this optimizer and rounded so.
    pub fn new(optimizer: O, rounding: R) -> Self {
        Self {
            optimizer,
            rounding,
        }
    }

    /// The optimizer for all parameters of a module, which are in bf16.
    pub fn init<B, M>(self) -> OptimizerAdaptor<Self, M, B>
    where
        B: AutodiffBackend,
        M: AutodiffModule<B>,
        Self: SimpleOptimizer<B::InnerBackend>,
    {
        OptimizerAdaptor::from(self)
    }
}

/// Rounding to bf16 by chance, up with the probability of what is lost: right on average, without memory.
///
/// The random numbers are those of the seed, the step and the place in the parameter: the same in every run, and
/// after a resume.
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
pub trait Rounding<B: Backend>: Clone + Send + Sync {
    /// The exact weight before a step, of the rounded one and what rounding kept.
    fn widen<const D: usize>(&self, weight: Tensor<B, D>, kept: Option<Moment<B>>) -> Tensor<B, D>;

    /// Rounds the weight after step number `time`, and says what is kept.
    fn round<const D: usize>(
        &self,
        exact: Tensor<B, D>,
        time: usize,
    ) -> (Tensor<B, D>, Option<Moment<B>>);
}

impl<B: RoundStochastically> Rounding<B> for Stochastic {
    fn widen<const D: usize>(
        &self,
        weight: Tensor<B, D>,
        _kept: Option<Moment<B>>,
    ) -> Tensor<B, D> {
        weight.cast(DType::F32)
    }

    fn round<const D: usize>(
        &self,
        exact: Tensor<B, D>,
        time: usize,
    ) -> (Tensor<B, D>, Option<Moment<B>>) {
        let noise = Noise::of_step(self.seed, time);
        let rounded = B::round_stochastically(exact.into_primitive().tensor(), noise);
        let rounded: Tensor<B, D> = Tensor::from_primitive(TensorPrimitive::Float(rounded));
        (rounded.cast(DType::BF16), None)
    }
}

impl<B: Backend> Rounding<B> for Kahan {
    fn widen<const D: usize>(&self, weight: Tensor<B, D>, kept: Option<Moment<B>>) -> Tensor<B, D> {
        let weight = weight.cast(DType::F32);
        match kept {
            Some(kept) => weight + kept.to_tensor().cast(DType::F32),
            None => weight,
        }
    }

    fn round<const D: usize>(
        &self,
        exact: Tensor<B, D>,
        _time: usize,
    ) -> (Tensor<B, D>, Option<Moment<B>>) {
        let rounded = exact.clone().cast(DType::BF16);
        let lost = exact - rounded.clone().cast(DType::F32);
        let lost = lost.cast(DType::BF16).into_primitive().tensor();
        (rounded, Some(Moment::Float(lost)))
    }
}

/// State of [`Bf16Weights`].
pub struct Bf16State<O: SimpleOptimizer<B>, B: Backend, const D: usize> {
    /// How many steps there were.
    pub time: usize,
    /// State of the optimizer in 32 bits.
    pub optimizer: Option<O::State<D>>,
    /// What rounding has kept.
    pub kept: Option<Moment<B>>,
}

impl<O: SimpleOptimizer<B>, B: Backend, const D: usize> Clone for Bf16State<O, B, D> {
    fn clone(&self) -> Self {
        Self {
            time: self.time,
            optimizer: self.optimizer.clone(),
            kept: self.kept.clone(),
        }
    }
}

impl<O: SimpleOptimizer<B>, B: Backend, const D: usize> fmt::Debug for Bf16State<O, B, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bf16State")
            .field("time", &self.time)
            .field("kept", &self.kept)
            .finish_non_exhaustive()
    }
}

/// [`Bf16State`] as it is saved.
#[derive(Serialize, Deserialize, Clone)]
#[serde(bound = "")]
#[expect(missing_debug_implementations, reason = "Burn's items have none")]
pub struct Bf16Item<O, B, S, const D: usize>
where
    O: SimpleOptimizer<B>,
    B: Backend,
    S: PrecisionSettings,
{
    time: usize,
    optimizer: Option<<O::State<D> as Record<B>>::Item<S>>,
    kept: Option<MomentItem>,
}

impl<O, B, const D: usize> Record<B> for Bf16State<O, B, D>
where
    O: SimpleOptimizer<B>,
    B: Backend,
{
    type Item<S: PrecisionSettings> = Bf16Item<O, B, S, D>;

    fn into_item<S: PrecisionSettings>(self) -> Self::Item<S> {
        Bf16Item {
            time: self.time,
            optimizer: self.optimizer.map(Record::into_item),
            kept: self.kept.map(Record::into_item::<S>),
        }
    }

    fn from_item<S: PrecisionSettings>(item: Self::Item<S>, device: &B::Device) -> Self {
        Self {
            time: item.time,
            optimizer: item.optimizer.map(|state| Record::from_item(state, device)),
            kept: item.kept.map(|kept| Record::from_item::<S>(kept, device)),
        }
    }
}

impl<O, R, B> SimpleOptimizer<B> for Bf16Weights<O, R>
where
    O: SimpleOptimizer<B> + 'static,
    R: Rounding<B>,
    B: Backend,
{
    type State<const D: usize> = Bf16State<O, B, D>;

    /// # Panics
    ///
    /// If the parameter is not in bf16.
    fn step<const D: usize>(
        &self,
        lr: LearningRate,
        tensor: Tensor<B, D>,
        grad: Tensor<B, D>,
        state: Option<Bf16State<O, B, D>>,
    ) -> (Tensor<B, D>, Option<Bf16State<O, B, D>>) {
        let dtype = tensor.dtype();
        assert!(
            dtype == DType::BF16,
            "`Bf16Weights` steps parameters in BF16, and this one is in {dtype:?}: cast the model's parameters, or \
             take the optimizer by itself"
        );
        let (time, optimizer, kept) = match state {
            Some(state) => (state.time + 1, state.optimizer, state.kept),
            None => (1, None, None),
        };
        let exact = self.rounding.widen(tensor, kept);
        let (exact, optimizer) = self
            .optimizer
            .step(lr, exact, grad.cast(DType::F32), optimizer);
        let (tensor, kept) = self.rounding.round(exact, time);
        (
            tensor,
            Some(Bf16State {
                time,
                optimizer,
                kept,
            }),
        )
    }

    fn to_device<const D: usize>(
        state: Bf16State<O, B, D>,
        device: &B::Device,
    ) -> Bf16State<O, B, D> {
        Bf16State {
            time: state.time,
            optimizer: state.optimizer.map(|state| O::to_device(state, device)),
            kept: state.kept.map(|kept| kept.on_device(device)),
        }
    }
}
