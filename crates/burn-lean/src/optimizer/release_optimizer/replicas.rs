//! Gradients and states of an optimizer whose model has replicas.

use std::sync::{Arc, Weak};

use burn::optim::{GradientsParams, ModuleOptimizer};

use super::ReleaseOptimizer;
use crate::error::ReleaseError;
use crate::optimizer::survey::Survey;
use crate::reduction::{GradientReduction, InFlight, own_states};
use crate::session::{Progress, Session};

impl ReleaseOptimizer {
    /// Reduces each gradient over the replicas of a model before it is stepped with. Ends any
    /// arming. If the reduction is [sharded](GradientReduction::is_sharded), the states of other
    /// replicas' parameters are dropped, now and by [`load_record`](Self::load_record).
    ///
    /// Clipping, loss scaling and the norm in the report see the reduced gradients. In a step of
    /// [two passes](Self::two_passes) gradients are reduced twice.
    ///
    /// # Panics
    ///
    /// If the optimizer has states whose owners the reduction does not know.
    pub fn with_reduction(self, reduction: Arc<dyn GradientReduction>) -> Self {
        let (mut optim, mut is_fresh) = (self.take(), self.is_fresh);
        if reduction.is_sharded() && is_fresh != Some(true) {
            let record = optim.to_record();
            // On all replicas the same, whatever is whose.
            is_fresh = Some(record.is_empty());
            optim = optim.load_record(own_states(record, Some(&reduction)));
        }
        Self {
            session: self.next_session(optim, Some(reduction)),
            is_fresh,
            ..self
        }
    }

    pub(super) fn reduction(&self) -> Option<&Arc<dyn GradientReduction>> {
        self.session.in_flight().map(InFlight::reduction)
    }

    /// A new session with the gradient transform of the old one, and with its sums of parameters that
    /// are not armed, unless a step was interrupted.
    pub(super) fn next_session(
        &self,
        optim: ModuleOptimizer,
        reduction: Option<Arc<dyn GradientReduction>>,
    ) -> Arc<Session> {
        let session = Session::new(Some(optim), reduction);
        let (mut before, mut stepper) = (self.session.stepper(), session.stepper());
        stepper.gradients = std::mem::take(&mut before.gradients);
        stepper.gradients.forget_step();
        if !before.stepping && Progress::get(&self.session.progress.stepped) == 0 {
            stepper.sums = std::mem::take(&mut before.sums);
            stepper.sums_of = match self.session.slots().is_empty() {
                true => before.sums_of.clone(),
                false => Some(Arc::downgrade(&self.session)),
            };
            stepper.sums_are_plain = before.sums_are_plain;
        }
        drop(stepper);
        Arc::new(session)
    }

    /// Takes the sums of parameters that are not armed, if they are of another model.
    pub(super) fn take_sums_of_others(&self, survey: &Survey) -> GradientsParams {
        let mut stepper = self.session.stepper();
        let is_theirs = |of: &Weak<Session>| {
            let mut found = survey.found.values();
            found.any(|found| !found.is_copy() && found.slot.is_of(of.as_ptr()))
        };
        match stepper.sums_of.as_ref().is_none_or(is_theirs) {
            true => GradientsParams::new(),
            false => std::mem::take(&mut stepper.sums),
        }
    }

    pub(super) fn check_whole(&self) -> Result<(), ReleaseError> {
        match self.reduction() {
            Some(reduction) if reduction.is_sharded() => Err(ReleaseError::Sharded),
            _ => Ok(()),
        }
    }
}
