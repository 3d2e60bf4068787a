//! Gradients summed over micro-batches.

use std::sync::Arc;

use burn::module::Module;
use burn::optim::GradientsParams;

use super::arming;
use super::claims::check_claims;
#[cfg(feature = "train")]
use super::restoring::restore;
use super::survey::{Survey, Surveyed};
use crate::backend::{added, in_f32};
use crate::error::{Refused, ReleaseError, expect};
use crate::hook_orders::FirstPass;
use crate::path::path_text;
use crate::session::{Progress, Purpose, Session};

/// Accumulates the gradients of micro-batches like Burn's
/// [`GradientsAccumulator`](burn::optim::GradientsAccumulator), without a second set of gradients:
/// the backward of an armed model adds each gradient to its sum the moment it is complete, and
/// frees it.
///
/// All but the last micro-batch of a window go through the accumulator; the last one is [armed with
/// the sums](crate::ReleaseOptimizer::arm_accumulated). The sums are Burn's, bit for bit. At most
/// the sums and one gradient exist at once, where Burn holds two full sets. The first micro-batch after
/// a [record](Self::load_record) was loaded holds both, too.
///
/// The model is armed from the first `arm` to the optimizer's `step`. Mappers and visitors see
/// placeholders; `val()`, clones and records see the weights.
///
/// # Example
///
/// ```
/// use burn::nn::{Linear, LinearConfig};
/// use burn::optim::{AdamConfig, GradientsParams};
/// use burn::tensor::{Device, Distribution, Tensor};
/// use burn_lean::{ReleaseAccumulator, WithGradientRelease};
///
/// let device = Device::flex().autodiff();
/// let mut model: Linear = LinearConfig::new(4, 2).init(&device);
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
///     let batch = Tensor::<2>::random([8, 4], Distribution::Default, &device);
///     let grads = model.forward(batch).square().mean().backward();
///     let grads = GradientsParams::from_grads(grads, &model);
///     if micro_batch < micro_batches {
///         accumulator.accumulate(&model, grads);
///     } else {
///         model = optim.step(1e-3, model, grads);
///     }
/// }
/// ```
///
/// # Panics
///
/// A method with a `try_` twin panics with the text of the [`ReleaseError`] that the twin returns.
#[derive(Debug)]
pub struct ReleaseAccumulator {
    session: Arc<Session>,
    grads: GradientsParams,
}

impl Default for ReleaseAccumulator {
    fn default() -> Self {
        Self::new()
    }
}

/// The sums go with their accumulator, as those of Burn's, also where a model was armed with them.
impl Drop for ReleaseAccumulator {
    fn drop(&mut self) {
        for slot in self.session.slots().values() {
            slot.take_sum();
        }
    }
}

impl ReleaseAccumulator {
    /// An accumulator without sums.
    pub fn new() -> Self {
        Self::with(Session::new(None, None))
    }

    /// One that sums gradients in half precision in f32: in bf16, a gradient of less than a 256th of
    /// the sum is lost. Four bytes a parameter, where those of [`new`](Self::new) take two; of
    /// gradients in f32 the sums are the same. An optimizer that is [armed with
    /// them](crate::ReleaseOptimizer::arm_accumulated) gets the sum rounded to the type of the weight, or
    /// in f32 [if it computes so](crate::ReleaseOptimizer::with_f32_gradients). In an ordinary step it
    /// gets them as they are, if it computes in f32.
    pub fn in_f32() -> Self {
        let mut session = Session::new(None, None);
        session.sums_in_f32 = true;
        Self::with(session)
    }

    fn with(session: Session) -> Self {
        Self {
            session: Arc::new(session),
            grads: GradientsParams::new(),
        }
    }

    /// Arms the model for one micro-batch: until [`accumulate`](Self::accumulate) each of its
    /// gradients is added to its sum inside backward. No weight changes.
    pub fn arm<M: Module>(&mut self, model: M) -> M {
        expect(self.try_arm(model))
    }

    /// [`arm`](Self::arm), handing the model back where it refuses.
    ///
    /// # Errors
    ///
    /// A [`ReleaseError`] if the last micro-batch has not [ended](Self::accumulate), the sums are
    /// with another model, or this one cannot be armed.
    pub fn try_arm<M: Module>(&mut self, model: M) -> Result<M, Refused<M>> {
        let survey = Survey::of(&model);
        let checked = self
            .check_accumulated()
            .and_then(|()| survey.check(&self.session, &model));
        if let Err(error) = checked {
            return Err(Refused::new(model, error));
        }
        let has_sums = self.session.slots().values().any(|slot| slot.has_sum());
        let goes_on = has_sums || !self.grads.is_empty();
        // The first sums are the first gradients. A later pass that keeps new ones to its end would hold
        // both: only the first after a record does, for its bits.
        let first_pass = match goes_on && self.session.orders().has_learned() {
            true => FirstPass::Small,
            false => FirstPass::Exact,
        };
        self.session.begin_pass(first_pass, goes_on);
        Ok(arming::arm(
            &self.session,
            Purpose::Hold,
            &mut self.grads,
            model,
            survey,
        ))
    }

    fn check_accumulated(&self) -> Result<(), ReleaseError> {
        match Progress::get(&self.session.progress.held) {
            0 => Ok(()),
            _ => Err(self.not_accumulated()),
        }
    }

    fn not_accumulated(&self) -> ReleaseError {
        ReleaseError::NotAccumulated {
            added: Progress::get(&self.session.progress.held),
            armed: self.session.slots().len(),
        }
    }

    /// Ends a micro-batch, and adds its ordinary gradients to the sums.
    pub fn accumulate<M: Module>(&mut self, model: &M, grads: GradientsParams) {
        expect(
            self.try_accumulate(model, grads)
                .map_err(ReleaseError::from),
        );
    }

    /// [`accumulate`](Self::accumulate), handing the gradients back where it refuses.
    ///
    /// # Errors
    ///
    /// A [`ReleaseError`] if the model or the gradients are not those of this micro-batch, or a
    /// parameter has got two gradients in it.
    pub fn try_accumulate<M: Module>(
        &mut self,
        model: &M,
        grads: GradientsParams,
    ) -> Result<(), Refused<(), GradientsParams>> {
        let survey = Survey::of(model);
        if let Err(error) = self.check(model, &survey, &grads) {
            return Err(Refused::with_grads((), grads, error));
        }
        self.end(&survey, grads);
        Ok(())
    }

    /// [`accumulate`](Self::accumulate), which allows a model without a forward pass.
    #[cfg(feature = "train")]
    pub(crate) fn accumulate_if_any<M: Module>(&mut self, model: &M, grads: GradientsParams) {
        let survey = Survey::of(model);
        match self.check(model, &survey, &grads) {
            Ok(()) | Err(ReleaseError::NoForward) => self.end(&survey, grads),
            Err(error) => expect(Err(error)),
        }
    }

    fn end(&mut self, survey: &Survey, mut grads: GradientsParams) {
        let mut sums = std::mem::take(&mut self.grads);
        for Surveyed { param, .. } in &survey.params {
            let slot = self.session.slots().get(&param.id).cloned();
            let is_taken = slot.as_ref().is_some_and(|slot| slot.phase().is_taken());
            let mut grad = param.take_grad(&mut grads).filter(|_| !is_taken);
            if self.session.sums_in_f32 {
                grad = grad.map(in_f32);
            }
            let earlier = param.take_grad(&mut sums);
            let sum = slot.and_then(|slot| slot.take_sum()).or(earlier);
            if let Some(sum) = added(sum, grad) {
                param.put_grad(&mut sums, sum);
            }
        }
        self.grads = sums;
        self.session.progress.reset();
        for slot in self.session.slots().values() {
            slot.rest();
        }
        // The slots keep the weights, and take no gradient until the model is armed again.
        self.session.disarm();
    }

    fn check<M: Module>(
        &self,
        model: &M,
        survey: &Survey,
        grads: &GradientsParams,
    ) -> Result<(), ReleaseError> {
        for slot in self.session.slots().values() {
            if slot.phase().is_taken_twice() {
                let path = path_text(&slot.path());
                return Err(ReleaseError::AccumulatedTwice { path });
            }
        }
        survey.check_own(&self.session, |slot| slot.phase().is_taken())?;
        survey.check_lost(&self.session, model)?;
        check_claims(&self.session, survey, grads)
    }

    /// Ends the window, and returns its sums.
    pub fn grads(&mut self) -> GradientsParams {
        expect(self.try_grads())
    }

    /// [`grads`](Self::grads), refusing sums that are with the model.
    ///
    /// # Errors
    ///
    /// [`NotAccumulated`](ReleaseError::NotAccumulated): a micro-batch has begun and was not ended.
    pub fn try_grads(&mut self) -> Result<GradientsParams, ReleaseError> {
        self.check_ended()?;
        // Only the model holds its weights from now on, so they can be written in place.
        self.session.slots().clear();
        Ok(std::mem::take(&mut self.grads))
    }

    /// Drops the sums of a window that is not over, and makes an ordinary model of one that was armed
    /// for it.
    #[cfg(feature = "train")]
    pub(crate) fn cancel<M: Module>(&mut self, model: M) -> M {
        self.grads = GradientsParams::new();
        if self.session.slots().is_empty() {
            return model;
        }
        let survey = Survey::of(&model);
        restore(&self.session, model, &survey)
    }

    pub(super) fn check_ended(&self) -> Result<(), ReleaseError> {
        match self.session.is_armed() {
            false => Ok(()),
            true => Err(self.not_accumulated()),
        }
    }

    /// Refuses sums that are still in their slots, as `accumulate` was given a part of the model.
    pub(super) fn check_no_sum_is_left(&self) -> Result<(), ReleaseError> {
        let slots = self.session.slots();
        let left = slots.values().find(|slot| slot.has_sum());
        left.map_or(Ok(()), |slot| {
            let path = path_text(&slot.path());
            Err(ReleaseError::WrongModel { path })
        })
    }

    pub(super) fn sums(&self) -> &GradientsParams {
        &self.grads
    }

    /// Goes on with these sums, and arms nothing.
    pub(super) fn restart(&mut self, sums: GradientsParams) {
        *self = match self.session.sums_in_f32 {
            true => Self::in_f32(),
            false => Self::new(),
        };
        self.grads = sums;
    }
}
