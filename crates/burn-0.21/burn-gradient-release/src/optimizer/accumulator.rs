//! Gradients summed over micro-batches.

use std::{marker::PhantomData, mem, sync::Arc};

use burn::{
    module::{AutodiffModule, list_param_ids},
    optim::GradientsParams,
};

use super::{
    arming::{self, ArmedModel, Hold},
    session::{self, Session},
};
use crate::{
    ReleaseBackend,
    error::{Refused, ReleaseError, expect},
    planner::Recompute,
    planner::trace::Tracer,
};

/// Accumulates the gradients of micro-batches, as Burn's
/// [`GradientsAccumulator`](burn::optim::GradientsAccumulator) does, without ever holding a second
/// set of them: in the backward of an armed model each gradient is added to its sum the moment it
/// is complete, and freed.
///
/// All but the last micro-batch of a window go through the accumulator; the last one is
/// [armed with the sums](crate::ReleaseOptimizer::arm_accumulated). The sums are Burn's, bit for
/// bit. At most they and one gradient exist at once, where Burn holds both in full.
///
/// # Example
///
/// ```
/// use burn::{
///     backend::{Autodiff, Flex},
///     nn::{Linear, LinearConfig},
///     optim::{AdamConfig, GradientsParams, Optimizer},
///     tensor::{Distribution, Tensor},
/// };
/// use burn_gradient_release::{GradientRelease, ReleaseAccumulator, WithGradientRelease};
///
/// type B = GradientRelease<Autodiff<Flex>>;
///
/// let device = Default::default();
/// let mut model: Linear<B> = LinearConfig::new(4, 2).init(&device);
/// let mut optim = AdamConfig::new().init().with_gradient_release();
/// let mut accumulator = ReleaseAccumulator::new();
/// let micro_batches = 4;
///
/// for micro_batch in 1..=micro_batches {
///     model = if micro_batch < micro_batches {
///         accumulator.arm(model)
///     } else {
///         optim.arm_accumulated(1e-3, model, accumulator.grads())
///     };
///     let batch = Tensor::<B, 2>::random([8, 4], Distribution::Default, &device);
///     let grads = model.forward(batch).powi_scalar(2).mean().backward();
///     let grads = GradientsParams::from_grads(grads, &model);
///     if micro_batch < micro_batches {
///         accumulator.accumulate(&model, grads);
///     } else {
///         model = optim.step(1e-3, model, grads);
///     }
/// }
/// # let _ = model;
/// ```
///
/// # Panics
///
/// A method with a `try_` twin panics with the text of the [`ReleaseError`] that the twin returns.
pub struct ReleaseAccumulator<M, B: ReleaseBackend> {
    grads: GradientsParams,
    session: Option<Session<B::InnerBackend>>,
    tracer: Option<Arc<Tracer>>,
    module: PhantomData<fn(&M)>,
}

impl<M: AutodiffModule<B>, B: ReleaseBackend> ReleaseAccumulator<M, B> {
    /// An accumulator without sums.
    pub fn new() -> Self {
        Self {
            grads: GradientsParams::new(),
            session: None,
            tracer: None,
            module: PhantomData,
        }
    }

    /// Recomputes activations in the micro-batches that this accumulator arms: see [`Recompute`].
    ///
    /// # Panics
    ///
    /// If it is a [budget](Recompute::Budget) of 0 bytes.
    pub fn with_recompute(mut self, recompute: Recompute) -> Self {
        self.tracer = Tracer::new(recompute.checked());
        self
    }

    /// Arms the model for one micro-batch: until [`accumulate`](Self::accumulate) each of its
    /// gradients is added to its sum inside backward. No weight changes.
    pub fn arm(&mut self, model: M) -> M {
        expect(self.try_arm(model))
    }

    /// [`arm`](Self::arm), handing the model back where it refuses.
    ///
    /// # Errors
    ///
    /// A [`ReleaseError`] if the last micro-batch has not [ended](Self::accumulate) or its backward
    /// panicked, or the model cannot be armed.
    pub fn try_arm(&mut self, model: M) -> Result<M, Refused<M>> {
        if let Err(error) = self.check_arm(&model) {
            return Err(Refused::new(model, error));
        }
        let (armed, model) = arming::arm(&Hold(self.tracer.as_ref()), model);
        self.begin(armed);
        Ok(model)
    }

    /// Arms a model that an owner holds: see
    /// [`ReleaseOptimizer::try_arm_by_fork`](crate::ReleaseOptimizer::try_arm_by_fork).
    ///
    /// # Errors
    ///
    /// As [`try_arm`](Self::try_arm), and [`NotForked`](ReleaseError::NotForked) if the fork left
    /// out a parameter.
    pub fn try_arm_by_fork(&mut self, copy: M, fork: impl FnOnce()) -> Result<(), ReleaseError> {
        self.check_arm(&copy)?;
        let armed = arming::arm_by_fork(&Hold(self.tracer.as_ref()), copy, fork)?;
        self.begin(armed);
        Ok(())
    }

    /// Begins a micro-batch: the sums move into the armed model.
    fn begin(&mut self, armed: ArmedModel<B::InnerBackend>) {
        let sums = mem::take(&mut self.grads);
        self.session = Some(armed.replace(self.session.take(), sums, None));
    }

    /// Ends the micro-batch: takes the sums back, and adds any gradient that backward returned.
    pub fn accumulate(&mut self, model: &M, grads: GradientsParams) {
        expect(self.try_accumulate(model, grads));
    }

    /// [`accumulate`](Self::accumulate), handing the gradients back where it refuses.
    ///
    /// # Errors
    ///
    /// A [`ReleaseError`] if the backward of this micro-batch panicked, or the model or the
    /// gradients are not those of it.
    pub fn try_accumulate(
        &mut self,
        model: &M,
        grads: GradientsParams,
    ) -> Result<(), Refused<(), GradientsParams>> {
        if let Err(error) = self.check_accumulate(model) {
            return Err(Refused::with_grads((), grads, error));
        }
        if let Some(session) = self.session.take() {
            self.grads = session.withdraw().into_first();
        }
        session::add(&mut self.grads, model, grads);
        Ok(())
    }

    /// Returns the sums, and starts over.
    pub fn grads(&mut self) -> GradientsParams {
        expect(self.try_grads())
    }

    /// [`grads`](Self::grads) with an error in place of a panic.
    ///
    /// # Errors
    ///
    /// [`NotAccumulated`](ReleaseError::NotAccumulated) between [`arm`](Self::arm) and
    /// [`accumulate`](Self::accumulate), while the sums are with the model.
    pub fn try_grads(&mut self) -> Result<GradientsParams, ReleaseError> {
        match &self.session {
            Some(session) => Err(ReleaseError::NotAccumulated {
                added: session.acted(),
                armed: session.armed(),
            }),
            None => Ok(mem::take(&mut self.grads)),
        }
    }

    fn check_whole(&self) -> Result<(), ReleaseError> {
        match &self.session {
            Some(session) if session.is_interrupted() => Err(ReleaseError::HalfAccumulated {
                added: session.acted(),
                armed: session.armed(),
            }),
            _ => Ok(()),
        }
    }

    fn check_arm(&self, model: &M) -> Result<(), ReleaseError> {
        self.check_whole()?;
        match &self.session {
            Some(session) if session.acted() > 0 => Err(ReleaseError::NotAccumulated {
                added: session.acted(),
                armed: session.armed(),
            }),
            session => arming::check_arm::<B, M>(session.as_ref(), model),
        }
    }

    /// Whether the micro-batch can be ended with this model.
    fn check_accumulate(&self, model: &M) -> Result<(), ReleaseError> {
        self.check_whole()?;
        let slots = self.session.as_ref().map(|session| &session.slots);
        let slots = || slots.into_iter().flatten();
        if let Some((param, _)) = slots().find(|(_, slot)| slot.is_unclaimed()) {
            return Err(ReleaseError::Unclaimed { param: *param });
        }
        let params = list_param_ids(model);
        match slots().find(|(param, _)| !params.contains(param)) {
            Some((param, _)) => Err(ReleaseError::WrongModel { param: *param }),
            None => Ok(()),
        }
    }
}

impl<M: AutodiffModule<B>, B: ReleaseBackend> Default for ReleaseAccumulator<M, B> {
    fn default() -> Self {
        Self::new()
    }
}

impl<M, B: ReleaseBackend> std::fmt::Debug for ReleaseAccumulator<M, B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReleaseAccumulator")
            .field("armed", &self.session.is_some())
            .field("sums", &self.grads.len())
            .finish_non_exhaustive()
    }
}
