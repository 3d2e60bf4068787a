//! Optimizer states in host memory.

use std::convert::Infallible;
use std::fmt;

use burn::optim::{LearningRate, ModuleOptimizer, Optimizer, RecordState, StateSink, StateSource};
use burn::tensor::{Device, Tensor, TensorData};

use super::record::by_way_of_record;
use super::{AdaLomo, Bf16Weights, Came, Lean, Rounding};

/// An optimizer of this module, whose states may be kept in host memory.
///
/// States go there by way of their record. Burn's own optimizers read one in f32, whatever the type of
/// the weights. Of those, take [`in_one_pass`](super::InOnePass), or [`Bf16Weights`] around one, which
/// steps in f32:
///
/// ```compile_fail
/// use burn::optim::AdamWConfig;
/// use burn_lean::optim::Offload;
///
/// let adamw = AdamWConfig::new().build().offloaded();
/// # let _ = adamw;
/// ```
pub trait Offload: Optimizer {
    /// Keeps the states in host memory, on Flex, while the model is on another device: for AdamW 8
    /// bytes a parameter, or 2.06 [in 8 bits](super::EightBitMoments), that the device has free.
    ///
    /// The states of a parameter are on its device for its step only. The steps are the same. Each
    /// step moves all states there and back, and waits for the device once for each parameter. With
    /// gradient release this happens inside the backward pass. Records are those of the optimizer.
    ///
    /// ```
    /// use burn::optim::AdamWConfig;
    /// use burn_lean::WithGradientRelease;
    /// use burn_lean::optim::{InOnePass, Offload};
    ///
    /// let adamw = AdamWConfig::new().in_one_pass().offloaded();
    /// let optim = adamw.init().with_gradient_release();
    /// # let _ = optim;
    /// ```
    fn offloaded(self) -> Offloaded<Self>
    where
        Self: Sized,
    {
        Offloaded(self)
    }
}

impl<O: Lean> Offload for O {}

impl Offload for AdaLomo {}

impl Offload for Came {}

impl<O: Optimizer, R: Rounding> Offload for Bf16Weights<O, R> {}

/// An optimizer [whose states are in host memory](Offload::offloaded).
#[derive(Clone, Debug)]
pub struct Offloaded<O>(O);

impl<O: Optimizer> Offloaded<O> {
    /// The optimizer for all parameters of a module.
    pub fn init(self) -> ModuleOptimizer {
        ModuleOptimizer::from(self)
    }
}

/// State of [`Offloaded`]: the state of its optimizer, with the same record.
#[derive(Clone)]
pub struct OffloadedState<O: Optimizer, const D: usize>(O::State<D>);

impl<O: Optimizer, const D: usize> fmt::Debug for OffloadedState<O, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OffloadedState").finish_non_exhaustive()
    }
}

impl<O: Optimizer, const D: usize> RecordState for OffloadedState<O, D> {
    fn state_flatten(&self, prefix: &str, out: &mut StateSink) {
        self.0.state_flatten(prefix, out);
    }

    fn state_unflatten(prefix: &str, source: &mut StateSource, _: &Device) -> Option<Self> {
        RecordState::state_unflatten(prefix, source, &Device::flex()).map(Self)
    }
}

/// The state in memory of its own, by way of its record. A tensor that moves from a device to the host
/// stays in memory that the device has read it into, which is part of the device's pool.
fn on_host<S: RecordState>(state: S) -> S {
    let copied = by_way_of_record(state, |data| {
        let (bytes, shape, dtype) = (data.as_bytes().to_vec(), data.shape().clone(), data.dtype());
        Ok::<_, Infallible>(TensorData::from_bytes_vec(bytes, shape, dtype))
    });
    let Ok(state) = copied;
    state
}

impl<O: Optimizer> Optimizer for Offloaded<O> {
    type State<const D: usize> = OffloadedState<O, D>;

    fn step<const D: usize>(
        &self,
        lr: LearningRate,
        tensor: Tensor<D>,
        grad: Tensor<D>,
        state: Option<OffloadedState<O, D>>,
    ) -> (Tensor<D>, Option<OffloadedState<O, D>>) {
        let state = state.map(|OffloadedState(state)| O::to_device(state, &tensor.device()));
        let (tensor, state) = self.0.step(lr, tensor, grad, state);
        let state = state.map(|state| match tensor.device() == Device::flex() {
            true => state,
            false => on_host(state),
        });
        (tensor, state.map(OffloadedState))
    }

    /// The state stays where it is: [`step`](Self::step) takes it to the device.
    fn to_device<const D: usize>(state: OffloadedState<O, D>, _: &Device) -> OffloadedState<O, D> {
        state
    }
}
