//! Gradients of micro-batches that go into the moments, and not into a sum.

use burn::optim::{LearningRate, Optimizer, RecordState, StateSink, StateSource, join_path};
use burn::tensor::{Device, Tensor};
use lean_arithmetic::optim::rules::{AdaptiveRule, Momentum};
use lean_arithmetic::optim::{CannotAccumulate, MicroBatches, MomentDecay};

use super::record::Field;
use super::settings::Settings;
use super::{Adaptive, Lean, Lion, Sgd};

/// An optimizer that puts the gradients of several micro-batches into its moments, and moves a
/// weight with the last of them; made by [`AccumulateInMoments::accumulating`].
///
/// No sum of gradients exists. The caller makes a step for each micro-batch: with gradient release,
/// a call of [`backward`](crate::ReleaseOptimizer::backward). The rate of the last one counts.
///
/// A parameter counts the gradients that it gets. One that a micro-batch does not use moves that
/// much later, and loses nothing. The count is part of the record, so that a run may be resumed
/// between micro-batches. It also loads a record of the plain optimizer. The plain optimizer does
/// not load its record, and would begin with new moments.
#[derive(Clone, Debug)]
pub struct AccumulatingInMoments<O> {
    optimizer: O,
    micro_batches: MicroBatches,
}

/// An optimizer whose moments can take in the gradients of micro-batches.
pub trait AccumulateInMoments: Lean {
    /// The optimizer adds each gradient to its moments. It changes a weight only with the last of
    /// `micro_batches` gradients.
    ///
    /// Gradients are added and not averaged, as in Burn's accumulator: divide the loss for a mean.
    /// Clipping looks at the gradient of each micro-batch. Weight decay acts when the weight moves.
    ///
    /// ```
    /// use burn::nn::{Linear, LinearConfig};
    /// use burn::optim::AdamWConfig;
    /// use burn::tensor::{Device, Distribution, Tensor};
    /// use burn_lean::WithGradientRelease;
    /// use burn_lean::optim::{AccumulateInMoments, InOnePass, Lean, MomentDecay};
    ///
    /// let device = Device::flex().autodiff();
    /// let mut model: Linear = LinearConfig::new(4, 2).init(&device);
    /// let adamw = AdamWConfig::new().in_one_pass();
    /// let adamw = adamw.accumulating(4, MomentDecay::EachStep)?;
    /// let mut optim = adamw.init().with_gradient_release();
    ///
    /// for _micro_batch in 0..8 {
    ///     let batch = Tensor::<2>::random([8, 4], Distribution::Default, &device);
    ///     let loss = model.forward(batch).square().mean().div_scalar(4);
    ///     // The weights move with the fourth and with the eighth.
    ///     model = optim.backward(1e-3, loss, model);
    /// }
    /// # Ok::<(), burn_lean::optim::CannotAccumulate>(())
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
    fn check_accumulating(&self, _decay: MomentDecay) -> Result<(), CannotAccumulate> {
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
pub struct AccumulatingState<S> {
    /// Number of gradients of the next step that are in the moments.
    pub gradients: usize,
    /// State of the optimizer.
    pub optimizer: Option<S>,
}

impl<S: RecordState> RecordState for AccumulatingState<S> {
    fn state_flatten(&self, prefix: &str, out: &mut StateSink) {
        self.gradients.flatten(&join_path(prefix, "gradients"), out);
        if let Some(state) = &self.optimizer {
            state.state_flatten(&join_path(prefix, "optimizer"), out);
        }
    }

    fn state_unflatten(prefix: &str, source: &mut StateSource, device: &Device) -> Option<Self> {
        let gradients = Field::unflatten(&join_path(prefix, "gradients"), source, device);
        let Some(gradients) = gradients else {
            // What the optimizer alone has saved.
            let optimizer = S::state_unflatten(prefix, source, device)?;
            return Some(Self {
                gradients: 0,
                optimizer: Some(optimizer),
            });
        };
        let prefix = join_path(prefix, "optimizer");
        let optimizer = match source.has_under(&prefix) {
            true => Some(S::state_unflatten(&prefix, source, device)?),
            false => None,
        };
        Some(Self {
            gradients,
            optimizer,
        })
    }
}

impl<O: Lean> Optimizer for AccumulatingInMoments<O> {
    type State<const D: usize> = AccumulatingState<O::State<D>>;

    fn step<const D: usize>(
        &self,
        lr: LearningRate,
        tensor: Tensor<D>,
        grad: Tensor<D>,
        state: Option<Self::State<D>>,
    ) -> (Tensor<D>, Option<Self::State<D>>) {
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

    fn to_device<const D: usize>(state: Self::State<D>, device: &Device) -> Self::State<D> {
        AccumulatingState {
            optimizer: state.optimizer.map(|state| O::to_device(state, device)),
            ..state
        }
    }
}
