//! Gradients of micro-batches that go into the moments, and not into a sum.

use burn::{
    optim::{LearningRate, SimpleOptimizer},
    record::{PrecisionSettings, Record},
    tensor::{Tensor, backend::Backend},
};
use lean_arithmetic::optim::{
    CannotAccumulate, MicroBatches, MomentDecay,
    rules::{AdaptiveRule, Momentum},
};

use crate::{
    optim::{Adaptive, Lean, Lion, Sgd},
    settings::Settings,
};

/// An optimizer that puts the gradients of several micro-batches into its moments, and moves a
/// weight with the last of them; made by [`AccumulateInMoments::accumulating`].
///
/// No sum of gradients exists. Each micro-batch is a step of its own for whoever calls the
/// optimizer: with gradient release `arm` and `step`, in the Learner an iteration without
/// `grads_accumulation`. The rate that counts is that of the last.
///
/// A parameter counts the gradients that it gets. One that a micro-batch does not use moves that
/// much later, and loses nothing. The count is part of the record, so that a run may be resumed
/// between micro-batches.
#[derive(Clone, Debug)]
pub struct AccumulatingInMoments<O> {
    optimizer: O,
    micro_batches: MicroBatches,
}

/// An optimizer whose moments can take in the gradients of micro-batches.
pub trait AccumulateInMoments: Lean {
    /// The optimizer that moves a weight with every `micro_batches`-th gradient, and puts those
    /// before it into its moments.
    ///
    /// Gradients are added and not averaged, as in Burn's accumulator: divide the loss for a mean.
    /// Clipping looks at the gradient of each micro-batch. Weight decay acts when the weight moves.
    ///
    /// ```
    /// use burn::{
    ///     backend::{Autodiff, Flex},
    ///     nn::{Linear, LinearConfig},
    ///     optim::{AdamWConfig, GradientsParams, Optimizer},
    ///     tensor::{Distribution, Tensor},
    /// };
    /// use burn_gradient_release_optim::{AccumulateInMoments, InOnePass, Lean, MomentDecay};
    ///
    /// type B = Autodiff<Flex>;
    ///
    /// let device = Default::default();
    /// let mut model: Linear<B> = LinearConfig::new(4, 2).init(&device);
    /// let mut optim = AdamWConfig::new()
    ///     .in_one_pass()
    ///     .accumulating(4, MomentDecay::EachStep)?
    ///     .init();
    ///
    /// for _micro_batch in 0..8 {
    ///     let batch = Tensor::<B, 2>::random([8, 4], Distribution::Default, &device);
    ///     let loss = model.forward(batch).square().mean().div_scalar(4);
    ///     let grads = GradientsParams::from_grads(loss.backward(), &model);
    ///     model = optim.step(1e-3, model, grads); // moves with the 4th and the 8th
    /// }
    /// # let _ = model;
    /// # Ok::<(), burn_gradient_release_optim::CannotAccumulate>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`NoMicroBatches`](CannotAccumulate::NoMicroBatches): `micro_batches` is zero;
    /// - [`NoMoment`](CannotAccumulate::NoMoment): there is nothing that gradients could go into;
    /// - [`StepsWithGradient`](CannotAccumulate::StepsWithGradient): moments are to decay with each
    ///   step, and the weight does not move by them alone;
    /// - [`Bf16Moments`](CannotAccumulate::Bf16Moments): moments in bf16 are to decay with each
    ///   step.
    fn accumulating(
        mut self,
        micro_batches: usize,
        decay: MomentDecay,
    ) -> Result<AccumulatingInMoments<Self>, CannotAccumulate> {
        let micro_batches = MicroBatches::new(micro_batches, decay)?;
        self.check_accumulating(decay)?;
        let settings = self.settings_mut();
        micro_batches.check_moments(settings.moments)?;
        settings.is_burns = false;
        Ok(AccumulatingInMoments {
            optimizer: self,
            micro_batches,
        })
    }

    /// Why moments that decay so cannot take in gradients.
    #[doc(hidden)]
    fn check_accumulating(&self, decay: MomentDecay) -> Result<(), CannotAccumulate> {
        let _ = decay;
        Ok(())
    }
}

impl<R: AdaptiveRule> AccumulateInMoments for Adaptive<R> {
    fn check_accumulating(&self, decay: MomentDecay) -> Result<(), CannotAccumulate> {
        self.rule.check_accumulating(decay)
    }
}

impl AccumulateInMoments for Lion {
    fn check_accumulating(&self, decay: MomentDecay) -> Result<(), CannotAccumulate> {
        decay.steps_with_gradient("Lion")
    }
}

impl AccumulateInMoments for Sgd {
    fn check_accumulating(&self, decay: MomentDecay) -> Result<(), CannotAccumulate> {
        Momentum::check_accumulating(self.momentum, decay)
    }
}

impl<O: Lean> Lean for AccumulatingInMoments<O> {
    fn kept_shares(&self) -> Vec<(&'static str, f64)> {
        self.micro_batches.kept_shares(self.optimizer.kept_shares())
    }

    fn settings_mut(&mut self) -> &mut Settings {
        self.optimizer.settings_mut()
    }
}

/// State of [`AccumulatingInMoments`].
#[derive(Clone, Debug)]
pub struct AccumulatingState<T> {
    /// Number of gradients of the next step that are in the moments.
    pub gradients: usize,
    /// State of the optimizer.
    pub optimizer: Option<T>,
}

impl<B: Backend, T: Record<B>> Record<B> for AccumulatingState<T> {
    type Item<S: PrecisionSettings> = (usize, Option<T::Item<S>>);

    fn into_item<S: PrecisionSettings>(self) -> Self::Item<S> {
        (self.gradients, self.optimizer.map(Record::into_item))
    }

    fn from_item<S: PrecisionSettings>(
        (gradients, optimizer): Self::Item<S>,
        device: &B::Device,
    ) -> Self {
        Self {
            gradients,
            optimizer: optimizer.map(|optimizer| T::from_item(optimizer, device)),
        }
    }
}

impl<O, B> SimpleOptimizer<B> for AccumulatingInMoments<O>
where
    O: SimpleOptimizer<B> + Lean,
    B: Backend,
{
    type State<const D: usize> = AccumulatingState<O::State<D>>;

    fn step<const D: usize>(
        &self,
        lr: LearningRate,
        tensor: Tensor<B, D>,
        grad: Tensor<B, D>,
        state: Option<Self::State<D>>,
    ) -> (Tensor<B, D>, Option<Self::State<D>>) {
        let (gradients, state) = match state {
            Some(state) => (state.gradients, state.optimizer),
            None => (0, None),
        };
        let (micro_batch, gradients) = self.micro_batches.next(gradients);
        let mut optimizer = self.optimizer.clone();
        optimizer.settings_mut().micro_batch = micro_batch;
        let (tensor, optimizer) = optimizer.step(lr, tensor, grad, state);
        let state = AccumulatingState {
            gradients,
            optimizer,
        };
        (tensor, Some(state))
    }

    fn to_device<const D: usize>(state: Self::State<D>, device: &B::Device) -> Self::State<D> {
        AccumulatingState {
            optimizer: state.optimizer.map(|state| O::to_device(state, device)),
            ..state
        }
    }
}
