//! Weights in bf16, stepped in 32 bits.

use burn::{
    module::AutodiffModule,
    optim::{LearningRate, SimpleOptimizer, adaptor::OptimizerAdaptor},
    record::{PrecisionSettings, Record},
    tensor::{
        DType, Int, Tensor, TensorData,
        backend::{AutodiffBackend, Backend},
    },
};
use lean_arithmetic::optim::{Noise, Split};

use crate::{RoundToBf16, moment::from_float};

/// An optimizer of weights in bf16, by any optimizer of weights in 32 bits.
///
/// A weight in bf16 has eight bits: a step of less than a 256th of it changes nothing if the sum is
/// rounded to the nearest. So the step is computed in 32 bits, one parameter at a time, and then
/// rounded so that nothing is lost: on average, with [noise](Stochastic), or at all, with [master
/// weights](MasterWeights).
///
/// ```
/// use burn::backend::{Autodiff, Flex};
/// use burn::{nn::Linear, optim::{AdamWConfig, adaptor::OptimizerAdaptor}};
/// use burn_gradient_release_optim::{AdamW, Bf16Weights, InOnePass, Stochastic};
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

/// Stochastic rounding to bf16, up with the probability of the share lost: exact on average, without
/// memory.
///
/// The noise is that of the seed, the step and the place in the parameter: the same in
/// every run, and after a resume.
#[derive(Clone, Copy, Debug)]
pub struct Stochastic {
    /// Chooses the noise.
    pub seed: u64,
}

/// Master weights in 32 bits, at two bytes a parameter more: the weight is the number in bf16 that
/// is nearest to its master, of which the lower sixteen bits are kept beside it. The model computes
/// with the rounded weights, and the optimizer steps their masters, bit for bit as it would weights
/// in 32 bits.
///
/// Ties round away from zero, where Burn's cast rounds them to even. Weights that are changed
/// between two steps keep their lower bits, which are at most half a step of bf16: a weight set to
/// zero is zero, or below half the smallest number.
///
/// After Kalamkar et al., "Optimizing Deep Learning Recommender Systems' Training on CPU Cluster
/// Architectures" (2020): "Split-SGD-BF16".
#[derive(Clone, Copy, Debug)]
pub struct MasterWeights;

/// The lower halves of numbers in 32 bits, two to a word: `[words]`.
pub type LowerHalves<B> = Tensor<B, 1, Int>;

/// A way to round weights to bf16.
pub trait Rounding<B: Backend>: Clone + Send + Sync {
    /// The exact weight before a step, from the rounded one and the bits that rounding kept.
    fn widen<const D: usize>(
        &self,
        weight: Tensor<B, D>,
        low: Option<LowerHalves<B>>,
    ) -> Tensor<B, D>;

    /// Rounds the weight after step number `time`. Also returns the bits to keep.
    fn round<const D: usize>(
        &self,
        exact: Tensor<B, D>,
        time: usize,
    ) -> (Tensor<B, D>, Option<LowerHalves<B>>);
}

impl<B: RoundToBf16> Rounding<B> for Stochastic {
    /// # Panics
    ///
    /// If there are bits: those of master weights.
    fn widen<const D: usize>(
        &self,
        weight: Tensor<B, D>,
        low: Option<LowerHalves<B>>,
    ) -> Tensor<B, D> {
        assert!(
            low.is_none(),
            "the state has the lower bits of master weights, which stochastic rounding does not keep: \
             go on with `MasterWeights`, or without this record"
        );
        weight.cast(DType::F32)
    }

    fn round<const D: usize>(
        &self,
        exact: Tensor<B, D>,
        time: usize,
    ) -> (Tensor<B, D>, Option<LowerHalves<B>>) {
        let noise = Noise::of_step(self.seed, time);
        let rounded = B::round_stochastically(exact.into_primitive().tensor(), noise);
        (from_float::<B, D>(rounded).cast(DType::BF16), None)
    }
}

impl<B: RoundToBf16> Rounding<B> for MasterWeights {
    /// # Panics
    ///
    /// If the bits kept belong to a parameter of another size.
    fn widen<const D: usize>(
        &self,
        weight: Tensor<B, D>,
        low: Option<LowerHalves<B>>,
    ) -> Tensor<B, D> {
        let weight = weight.cast(DType::F32);
        let Some(low) = low else { return weight };
        let ([words], needed) = (
            low.dims(),
            Split::Bf16In32.words(weight.shape().num_elements()),
        );
        assert!(
            words == needed,
            "the lower halves of a weight are {words} words and not the {needed} of its size: its state is that of \
             another parameter"
        );
        let nearest = weight.into_primitive().tensor();
        from_float(B::rejoin(nearest, low.into_primitive()))
    }

    fn round<const D: usize>(
        &self,
        exact: Tensor<B, D>,
        _time: usize,
    ) -> (Tensor<B, D>, Option<LowerHalves<B>>) {
        let (nearest, low) = B::split(exact.into_primitive().tensor());
        let nearest = from_float::<B, D>(nearest).cast(DType::BF16);
        (nearest, Some(Tensor::from_primitive(low)))
    }
}

/// State of [`Bf16Weights`].
#[derive(Clone, Debug)]
pub struct Bf16State<T, B: Backend> {
    /// Number of steps taken.
    pub time: usize,
    /// State of the optimizer in 32 bits.
    pub optimizer: Option<T>,
    /// The lower halves that [`MasterWeights`] keeps.
    pub low: Option<LowerHalves<B>>,
}

impl<B: Backend, T: Record<B>> Record<B> for Bf16State<T, B> {
    type Item<S: PrecisionSettings> = (usize, Option<T::Item<S>>, Option<TensorData>);

    fn into_item<S: PrecisionSettings>(self) -> Self::Item<S> {
        let optimizer = self.optimizer.map(Record::into_item);
        (self.time, optimizer, self.low.map(Tensor::into_data))
    }

    fn from_item<S: PrecisionSettings>(
        (time, optimizer, low): Self::Item<S>,
        device: &B::Device,
    ) -> Self {
        Self {
            time,
            optimizer: optimizer.map(|state| T::from_item(state, device)),
            low: low.map(|low| Tensor::from_data(low, (device, DType::I32))),
        }
    }
}

impl<O, R, B> SimpleOptimizer<B> for Bf16Weights<O, R>
where
    O: SimpleOptimizer<B> + 'static,
    R: Rounding<B>,
    B: Backend,
{
    type State<const D: usize> = Bf16State<O::State<D>, B>;

    /// # Panics
    ///
    /// If the parameter is not in bf16, or the state has bits that this rounding does not keep.
    fn step<const D: usize>(
        &self,
        lr: LearningRate,
        tensor: Tensor<B, D>,
        grad: Tensor<B, D>,
        state: Option<Self::State<D>>,
    ) -> (Tensor<B, D>, Option<Self::State<D>>) {
        let dtype = tensor.dtype();
        assert!(
            dtype == DType::BF16,
            "`Bf16Weights` steps parameters in BF16, and this one is in {dtype:?}: cast the model's parameters, or \
             take the optimizer by itself"
        );
        let (time, optimizer, low) = match state {
            Some(state) => (state.time + 1, state.optimizer, state.low),
            None => (1, None, None),
        };
        let exact = self.rounding.widen(tensor, low);
        let (exact, optimizer) = self
            .optimizer
            .step(lr, exact, grad.cast(DType::F32), optimizer);
        let (tensor, low) = self.rounding.round(exact, time);
        (
            tensor,
            Some(Bf16State {
                time,
                optimizer,
                low,
            }),
        )
    }

    fn to_device<const D: usize>(state: Self::State<D>, device: &B::Device) -> Self::State<D> {
        Bf16State {
            time: state.time,
            optimizer: state.optimizer.map(|state| O::to_device(state, device)),
            low: state.low.map(|low| low.to_device(device)),
        }
    }
}
