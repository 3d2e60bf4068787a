//! Finishing the step that backward has begun, and what is left behind.

use burn::{
    module::AutodiffModule,
    optim::{
        GradientsParams, LearningRate, MultiGradientsParams, Optimizer, SimpleOptimizer,
        adaptor::{GradAdaptor, OptimizerAdaptor},
    },
};

use super::ReleaseOptimizer;
use crate::{
    ReleaseBackend,
    optimizer::{
        error::{Refused, ReleaseError, expect},
        finish::{self, Grads},
        rate::OwnedRate,
        session::Session,
        stepper::Records,
    },
    progress::Recomputed,
};

impl<O, M, B> ReleaseOptimizer<O, M, B>
where
    O: SimpleOptimizer<B::InnerBackend> + 'static,
    M: AutodiffModule<B>,
    B: ReleaseBackend,
{
    /// [`Optimizer::step`], handing model and gradients back where it refuses.
    ///
    /// # Errors
    ///
    /// - [`LearningRate`](ReleaseError::LearningRate): another rate than the one applied;
    /// - [`AlreadyStepped`](ReleaseError::AlreadyStepped): a gradient for a parameter that was
    ///   stepped inside an earlier backward;
    /// - [`Unclaimed`](ReleaseError::Unclaimed): nobody asked for the gradient of a parameter that
    ///   was stepped;
    /// - [`WrongModel`](ReleaseError::WrongModel): the stepped parameters are not in this model;
    /// - [`ArmedElsewhere`](ReleaseError::ArmedElsewhere), [`Abandoned`](ReleaseError::Abandoned): a
    ///   parameter was stepped by another optimizer, which has not finished;
    /// - [`DuplicateParam`](ReleaseError::DuplicateParam): the optimizer owns its rate and would arm
    ///   a model in which two parameters share an id;
    /// - [`Interrupted`](ReleaseError::Interrupted): the backward panicked half way.
    pub fn try_step(
        &mut self,
        lr: LearningRate,
        model: M,
        grads: GradientsParams,
    ) -> Result<M, Refused<M, GradientsParams>> {
        match self.check_finish(lr, &model, &grads) {
            Ok(()) => Ok(self.finish(lr, model, grads.into())),
            Err(error) => Err(Refused::with_grads(model, grads, error)),
        }
    }

    /// [`Optimizer::step_multi`], handing model and gradients back where it refuses.
    ///
    /// # Errors
    ///
    /// [`MultiDevice`](ReleaseError::MultiDevice) if a parameter was stepped inside backward, with
    /// the gradients of its own device alone; else as [`try_step`](Self::try_step).
    pub fn try_step_multi(
        &mut self,
        lr: LearningRate,
        model: M,
        grads: MultiGradientsParams,
    ) -> Result<M, Refused<M, MultiGradientsParams>> {
        match self.check_finish(lr, &model, &grads) {
            Ok(()) => Ok(self.finish(lr, model, grads.into())),
            Err(error) => Err(Refused::with_grads(model, grads, error)),
        }
    }

    fn finish(&mut self, lr: LearningRate, model: M, grads: GradAdaptor) -> M {
        let session = self.state.begin_finish();
        if let Some(session) = &session {
            session.free_discarded();
        }
        let recomputed = session.as_ref().map(Session::recomputed);
        let (mut report, model) = finish::finish(&self.stepper, lr, session, model, grads);
        let tracer = self.stepper.tracer.as_ref();
        report.set_recomputed(Recomputed {
            planned_bytes: tracer.and_then(|tracer| tracer.planned_bytes()),
            ..recomputed.unwrap_or_default()
        });
        self.state.finish(report);
        match &mut self.rate {
            Some(rate) => {
                rate.applied();
                let next = rate.upcoming();
                self.arm_checked(next, model, GradientsParams::new())
            }
            None => model,
        }
    }

    fn check_finish(
        &mut self,
        given: LearningRate,
        model: &M,
        grads: &impl Grads,
    ) -> Result<(), ReleaseError> {
        self.state.check_fault()?;
        let owned = self.rate.as_mut().map(OwnedRate::upcoming);
        for armed in self.state.armed().into_iter().chain(owned) {
            if armed.to_bits() != given.to_bits() {
                return Err(ReleaseError::LearningRate { armed, given });
            }
        }
        if owned.is_some() {
            // The model will be armed anew, which must not fail once it is stepped.
            self.check_arm_params(model)?;
        }
        self.state.with_session(|session| {
            let stepped = session.map_or(0, |session| session.acted());
            if grads.is_multi() && stepped > 0 {
                let armed = session.map_or(0, |session| session.armed());
                return Err(ReleaseError::MultiDevice { stepped, armed });
            }
            finish::check_finish::<B, M>(session, model, grads)
        })
    }

    /// [`Optimizer::to_record`], refusing states that are half old, half new.
    ///
    /// # Errors
    ///
    /// [`Unfinished`](ReleaseError::Unfinished) or [`Interrupted`](ReleaseError::Interrupted)
    /// after a backward.
    pub fn try_to_record(&self) -> Result<Records<O, B>, ReleaseError> {
        self.state.check_idle()?;
        Ok(self.stepper.records())
    }

    /// Removes gradient release: Burn's own optimizer with the states reached so far, step counts
    /// included.
    ///
    /// # Panics
    ///
    /// With the text of the [`ReleaseError`] that
    /// [`try_into_adaptor`](Self::try_into_adaptor) returns.
    pub fn into_adaptor(self) -> OptimizerAdaptor<O, M, B> {
        expect(self.try_into_adaptor())
    }

    /// [`into_adaptor`](Self::into_adaptor), refusing states that are half old, half new. A model
    /// that is still armed is disarmed: its weights can be used as they are.
    ///
    /// # Errors
    ///
    /// [`Unfinished`](ReleaseError::Unfinished) or [`Interrupted`](ReleaseError::Interrupted)
    /// after a backward.
    pub fn try_into_adaptor(self) -> Result<OptimizerAdaptor<O, M, B>, ReleaseError> {
        self.state.check_idle()?;
        drop(self.state.take_session());
        let mut adaptor = OptimizerAdaptor::from(self.stepper.optim.clone());
        if let Some(clipping) = self.stepper.grad_clipping.clone() {
            adaptor = adaptor.with_grad_clipping(clipping);
        }
        Ok(adaptor.load_record(self.stepper.records()))
    }
}
