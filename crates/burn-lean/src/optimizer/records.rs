//! Records, and replicas that share them.

use std::sync::Arc;

use burn::optim::{ModuleOptimizer, OptimizerRecord};

use super::pass::Stepper;
use super::{HERE, ReleaseOptimizer};
use crate::error::{Refused, ReleaseError, expect};
use crate::gradients::GradientRecord;
use crate::reduction::{GradientReduction, InFlight, own_states};

impl ReleaseOptimizer {
    /// The states of the optimizer: Burn's record.
    pub fn to_record(&self) -> OptimizerRecord {
        expect(self.try_to_record())
    }

    /// [`to_record`](Self::to_record), refusing states that are half old, half new.
    ///
    /// # Errors
    ///
    /// - [`Interrupted`](ReleaseError::Interrupted): a step was;
    /// - [`Sharded`](ReleaseError::Sharded): this replica has only a part of the states.
    pub fn try_to_record(&self) -> Result<OptimizerRecord, ReleaseError> {
        self.check_all_states()?;
        self.own_record()
    }

    /// The states of this replica.
    pub(crate) fn own_record(&self) -> Result<OptimizerRecord, ReleaseError> {
        Ok(self.own_optimizer()?.to_record())
    }

    /// A copy of Burn's optimizer, with the states that are here. It shares their tensors: a step
    /// beside it would not go in place.
    pub(crate) fn own_optimizer(&self) -> Result<ModuleOptimizer, ReleaseError> {
        self.check_whole()?;
        Ok(self.stepper().optim.clone())
    }

    /// Loads states that this optimizer, or plain Burn's, has saved. The sums of micro-batches stay;
    /// after a step that was interrupted, they are dropped. With a [sharded
    /// reduction](GradientReduction::is_sharded), each replica loads the states of all, and keeps its own.
    ///
    /// Burn loads the states of its own optimizers in f32. For weights in half precision, the next step
    /// would panic ("dtype mismatch"): use those of feature `optim`, such as `in_one_pass`.
    ///
    /// # Panics
    ///
    /// If a sharded reduction does not know the owner of a state.
    pub fn load_record(self, record: OptimizerRecord) -> Self {
        let record = own_states(record, self.reduction());
        self.load_own(record)
    }

    /// Loads the states that this replica keeps.
    pub(crate) fn load_own(mut self, record: OptimizerRecord) -> Self {
        let Stepper {
            optim,
            mut pipeline,
            in_flight,
        } = *self.stepper.take().expect(HERE);
        pipeline.forget_measured();
        let in_flight = in_flight.map(|it| InFlight::new(it.reduction().clone()));
        self.stepper = Some(Box::new(Stepper {
            optim: optim.load_record(record),
            pipeline,
            in_flight,
        }));
        if self.interrupted.take().is_some() {
            self.sums.clear();
        }
        // States that were loaded may be of other types.
        self.asked = Default::default();
        self.last_step = None;
        self
    }

    /// Burn's optimizer, with its states.
    pub fn into_optimizer(self) -> ModuleOptimizer {
        expect(self.try_into_optimizer().map_err(ReleaseError::from))
    }

    /// [`into_optimizer`](Self::into_optimizer), handing the optimizer back where it refuses.
    ///
    /// # Errors
    ///
    /// As [`try_to_record`](Self::try_to_record), and [`NotBurns`](ReleaseError::NotBurns) with what would
    /// be lost: clipping by norms, a loss scaler, a stop at gradients that are not finite, gradients in
    /// f32, or the sums of micro-batches.
    pub fn try_into_optimizer(mut self) -> Result<ModuleOptimizer, Refused<Self>> {
        let not_burns = match self.sums.is_empty() {
            true => self.stepper().pipeline.not_burns(),
            false => Some("sums of micro-batches"),
        };
        let checked = self.check_whole().and(self.check_all_states());
        let checked = checked.and(match not_burns {
            Some(what) => Err(ReleaseError::NotBurns { what: what.into() }),
            None => Ok(()),
        });
        match checked {
            Ok(()) => Ok(self.stepper.take().expect(HERE).optim),
            Err(error) => Err(Refused::new(self, error)),
        }
    }

    /// An optimizer with the settings of this one, and with the states of another one of Burn's.
    #[cfg(feature = "train")]
    pub(crate) fn with_optimizer(&self, optim: ModuleOptimizer) -> Self {
        let mut other = Self::from(optim);
        other.groups.clone_from(&self.groups);
        other.sums_in_f32 = self.sums_in_f32;
        other.stepper_mut().pipeline = self.stepper().pipeline.between_steps();
        other
    }

    /// What Burn's optimizer does not do.
    #[cfg(feature = "train")]
    pub(crate) fn not_burns(&self) -> Option<&'static str> {
        self.stepper().pipeline.not_burns()
    }

    /// The state of the gradient transforms: save it beside the optimizer's record.
    pub fn gradient_record(&self) -> GradientRecord {
        expect(self.try_gradient_record())
    }

    /// [`gradient_record`](Self::gradient_record), refusing one of half a step.
    ///
    /// # Errors
    ///
    /// [`Interrupted`](ReleaseError::Interrupted).
    pub fn try_gradient_record(&self) -> Result<GradientRecord, ReleaseError> {
        self.check_whole()?;
        Ok(self.stepper().pipeline.to_record())
    }

    /// Loads a saved state. The scale goes to the loss scaler that the optimizer has when this is
    /// called.
    pub fn load_gradient_record(mut self, record: GradientRecord) -> Self {
        self.stepper_mut().pipeline.load_record(record);
        self
    }

    /// Reduces each gradient over the replicas of a model before it is stepped with. If the reduction is
    /// [sharded](GradientReduction::is_sharded), the states of other replicas' parameters are dropped, now
    /// and by [`load_record`](Self::load_record).
    ///
    /// Clipping, loss scaling and the norm in the report see the reduced gradients. In a step of
    /// [two passes](Self::two_passes) gradients are reduced twice.
    ///
    /// # Panics
    ///
    /// If the optimizer has states whose owners the reduction does not know.
    pub fn with_reduction(mut self, reduction: Arc<dyn GradientReduction>) -> Self {
        let mut stepper = *self.stepper.take().expect(HERE);
        if reduction.is_sharded() {
            let record = stepper.optim.to_record();
            if !record.is_empty() {
                let own = own_states(record, Some(&reduction));
                stepper.optim = stepper.optim.load_record(own);
            }
        }
        stepper.in_flight = Some(InFlight::new(reduction));
        self.stepper = Some(Box::new(stepper));
        self
    }

    #[cfg(feature = "train")]
    pub(crate) fn has_reduction(&self) -> bool {
        self.reduction().is_some()
    }

    fn reduction(&self) -> Option<&Arc<dyn GradientReduction>> {
        self.stepper().in_flight.as_ref().map(InFlight::reduction)
    }

    pub(super) fn check_all_states(&self) -> Result<(), ReleaseError> {
        match self.reduction() {
            Some(reduction) if reduction.is_sharded() => Err(ReleaseError::Sharded),
            _ => Ok(()),
        }
    }
}
