//! Burn's optimizer with gradient release around it.

mod measure;
mod replicas;
mod settings;
mod step;

use std::sync::Arc;

use burn::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::module::{Module, ParamGroup};
use burn::optim::{GradientsParams, ModuleOptimizer, OptimizerRecord};

use super::arming;
use super::claims::check_sums;
use super::one_param::record_of;
use super::report::StepReport;
use super::restoring::restore;
use super::survey::Survey;
use crate::error::{Refused, ReleaseError, expect};
use crate::groups::check_groups;
use crate::hook_orders::FirstPass;
use crate::reduction::own_states;
use crate::session::{Progress, Purpose, Session, Slot};

/// Adds gradient release to Burn's optimizer.
pub trait WithGradientRelease {
    /// Makes the optimizer step inside backward. It keeps its states.
    fn with_gradient_release(self) -> ReleaseOptimizer;
}

impl<O: IntoModuleOptimizer> WithGradientRelease for O {
    fn with_gradient_release(self) -> ReleaseOptimizer {
        ReleaseOptimizer::new(self.into_module_optimizer())
    }
}

/// What gradient release can be added to: Burn's [`ModuleOptimizer`].
#[diagnostic::on_unimplemented(
    message = "gradient release steps Burn's `ModuleOptimizer`, not `{Self}`",
    label = "not a `ModuleOptimizer`",
    note = "`init()` makes one from an optimizer's configuration; L-BFGS has none, as it needs all \
            gradients of a step at once, several times"
)]
pub trait IntoModuleOptimizer {
    /// The optimizer.
    fn into_module_optimizer(self) -> ModuleOptimizer;
}

impl IntoModuleOptimizer for ModuleOptimizer {
    fn into_module_optimizer(self) -> ModuleOptimizer {
        self
    }
}

impl From<ModuleOptimizer> for ReleaseOptimizer {
    fn from(optim: ModuleOptimizer) -> Self {
        Self::new(optim)
    }
}

/// An optimizer that steps each parameter inside backward, the moment its gradient is complete.
///
/// # Example
///
/// ```
/// use burn::nn::{Linear, LinearConfig};
/// use burn::optim::{AdamWConfig, GradientsParams};
/// use burn::tensor::{Device, Distribution, Tensor};
/// use burn_lean::WithGradientRelease;
///
/// let device = Device::flex().autodiff();
/// let mut model: Linear = LinearConfig::new(16, 4).init(&device);
/// let mut optim = AdamWConfig::new().init().with_gradient_release();
///
/// for step in 0..3 {
///     let lr = 1e-3 / (1.0 + step as f64);
///     model = optim.arm(lr, model);
///     let batch = Tensor::<2>::random([8, 16], Distribution::Default, &device);
///     let loss = model.forward(batch).square().mean();
///     let grads = GradientsParams::from_grads(loss.backward(), &model);
///     model = optim.step(lr, model, grads);
/// }
/// ```
///
/// # Panics
///
/// A method with a `try_` twin panics with the text of the [`ReleaseError`] that the twin returns.
#[derive(Debug)]
pub struct ReleaseOptimizer {
    pub(super) session: Arc<Session>,
    pub(super) first_pass: FirstPass,
    /// Whether no state was loaded and no step was taken; `None` if only the states of Burn's optimizer
    /// can tell.
    is_fresh: Option<bool>,
    /// Groups that must match a parameter of the model.
    pub(super) groups: Vec<ParamGroup>,
    /// Boxed, because errors return the optimizer by value.
    last_step: Option<Box<StepReport>>,
}

impl ReleaseOptimizer {
    fn new(optim: ModuleOptimizer) -> Self {
        Self {
            session: Arc::new(Session::new(Some(optim), None)),
            first_pass: FirstPass::default(),
            is_fresh: None,
            groups: Vec::new(),
            last_step: None,
        }
    }

    /// Chooses when parameters are stepped in the first pass: see [`FirstPass`].
    pub fn with_first_pass(mut self, first_pass: FirstPass) -> Self {
        self.first_pass = first_pass;
        self
    }

    /// Arms a model for one optimizer step: until [`step`](Self::step), each of its parameters that
    /// requires gradients is stepped inside backward.
    ///
    /// Weights that were never read are initialized, in the order of the model's fields. If no
    /// parameter requires gradients, `step` changes nothing, as plain Burn's.
    ///
    /// `lr` is a number, or a [`ModuleLearningRate`] with rates for groups of parameters. A model
    /// that is armed already gets the new rate.
    pub fn arm<M: Module>(&mut self, lr: impl Into<ModuleLearningRate>, model: M) -> M {
        expect(self.try_arm(lr, model))
    }

    /// [`arm`](Self::arm), handing the model back where it refuses.
    ///
    /// # Errors
    ///
    /// A [`ReleaseError`] if the model cannot be armed, an earlier step is not finished, the global
    /// norm to clip by was not measured ([`two_passes`](Self::two_passes)), or no step can be taken
    /// with these settings.
    pub fn try_arm<M: Module>(
        &mut self,
        lr: impl Into<ModuleLearningRate>,
        model: M,
    ) -> Result<M, Refused<M>> {
        let (lr, sums) = (lr.into(), GradientsParams::new());
        match self.check_arm_to_step(&lr, &model, &sums) {
            Ok(survey) => Ok(self.arm_checked(lr, model, sums, survey)),
            Err(error) => Err(Refused::new(model, error)),
        }
    }

    /// [`arm`](Self::arm) for the last micro-batch of a window: each parameter is stepped with the
    /// sum of its gradient and that of the earlier ones, as a
    /// [`ReleaseAccumulator`](crate::ReleaseAccumulator) or Burn's accumulator has them.
    pub fn arm_accumulated<M: Module>(
        &mut self,
        lr: impl Into<ModuleLearningRate>,
        model: M,
        grads: GradientsParams,
    ) -> M {
        expect(self.try_arm_accumulated(lr, model, grads))
    }

    /// [`arm_accumulated`](Self::arm_accumulated), handing model and gradients back where it
    /// refuses.
    ///
    /// # Errors
    ///
    /// As [`try_arm`](Self::try_arm), and [`Taken`](ReleaseError::Taken): a sum has the mark of a
    /// gradient that was taken inside a backward. With clipping by the global norm, the sums of
    /// earlier micro-batches go to the pass that measures
    /// ([`try_two_passes`](Self::try_two_passes)).
    pub fn try_arm_accumulated<M: Module>(
        &mut self,
        lr: impl Into<ModuleLearningRate>,
        model: M,
        grads: GradientsParams,
    ) -> Result<M, Refused<M, GradientsParams>> {
        let lr = lr.into();
        match self.check_arm_to_step(&lr, &model, &grads) {
            Ok(survey) => Ok(self.arm_checked(lr, model, grads, survey)),
            Err(error) => Err(Refused::with_grads(model, grads, error)),
        }
    }

    fn check_arm_to_step<M: Module>(
        &self,
        lr: &ModuleLearningRate,
        model: &M,
        sums: &GradientsParams,
    ) -> Result<Survey, ReleaseError> {
        let survey = self.check_arm(model)?;
        survey.check_rates(lr)?;
        check_sums(&survey, sums)?;
        let gradients = &self.session.stepper().gradients;
        gradients.check_arm()?;
        if gradients.measured().is_some() {
            survey.check_own(&self.session, |_| true)?;
            if !sums.is_empty() {
                return Err(ReleaseError::NotMeasured);
            }
        }
        Ok(survey)
    }

    fn check_arm<M: Module>(&self, model: &M) -> Result<Survey, ReleaseError> {
        self.check_unfinished()?;
        let survey = Survey::of(model);
        survey.check(&self.session, model)?;
        self.check_settings(model, &survey)?;
        Ok(survey)
    }

    fn check_settings<M: Module>(&self, model: &M, survey: &Survey) -> Result<(), ReleaseError> {
        let stepper = &mut *self.session.stepper();
        stepper.gradients.check_settings()?;
        if stepper.gradients.has_scaler() && !stepper.gradients.gives_f32 {
            survey.check_precision()?;
        }
        if let Some(optim) = &stepper.optim {
            let gives_f32 = stepper.gradients.gives_f32;
            survey.check_optimizer(optim, gives_f32, &mut stepper.asked)?;
        }
        check_groups(model, &self.groups)
    }

    fn check_unfinished(&self) -> Result<(), ReleaseError> {
        self.session.wait_for_reductions()?;
        let armed = self.session.slots().len();
        let stepped = Progress::get(&self.session.progress.stepped);
        if self.session.stepper().stepping {
            return Err(ReleaseError::Interrupted { stepped, armed });
        }
        match stepped {
            0 => Ok(()),
            stepped => Err(ReleaseError::Unfinished { stepped, armed }),
        }
    }

    fn arm_checked<M: Module>(
        &mut self,
        lr: ModuleLearningRate,
        model: M,
        sums: GradientsParams,
        survey: Survey,
    ) -> M {
        self.begin_pass(&survey);
        let mut stepper = self.session.stepper();
        stepper.lr = Some(lr);
        stepper.gradients.begin_step();
        drop(stepper);
        self.arm_for(Purpose::Step, sums, model, survey)
    }

    fn arm_for<M: Module>(
        &self,
        purpose: Purpose,
        mut sums: GradientsParams,
        model: M,
        survey: Survey,
    ) -> M {
        self.take_sums_of_others(&survey);
        let mut stepper = self.session.stepper();
        stepper.sums_are_plain &= survey.has_plain_sums();
        let left = std::mem::take(&mut stepper.sums);
        stepper.sums_of = None;
        drop(stepper);
        arming::add_left(&survey, left, &mut sums);
        let model = arming::arm(&self.session, purpose, &mut sums, model, survey);
        self.session.stepper().sums = sums;
        let has_sums = self.has_sums();
        self.session.stepper().gradients.set_has_sums(has_sums);
        model
    }

    fn has_sums(&self) -> bool {
        let has_left = !self.session.stepper().sums.is_empty();
        has_left || self.session.slots().values().any(|slot| slot.has_sum())
    }

    fn begin_pass(&mut self, survey: &Survey) {
        let chosen = self.first_pass;
        let first_pass = match chosen {
            // After the first pass, only parameters that were not in it wait for the end of
            // backward.
            FirstPass::Auto if self.session.orders().has_learned() => FirstPass::Exact,
            FirstPass::Auto if self.is_fresh(survey) => FirstPass::Exact,
            FirstPass::Auto => FirstPass::Small,
            FirstPass::Exact | FirstPass::Small => chosen,
        };
        self.session.begin_pass(first_pass, false);
    }

    /// Whether Burn's optimizer has no states of a model.
    fn is_fresh(&mut self, survey: &Survey) -> bool {
        let stepper = self.session.stepper();
        let optim = stepper.optim.as_ref();
        // One at a time, as a record copies the states.
        let has_states = |id| optim.is_some_and(|optim| !record_of(optim, id).is_empty());
        *self
            .is_fresh
            .get_or_insert_with(|| !survey.ids().into_iter().any(has_states))
    }

    /// Ends the arming without a step. Returns an ordinary model.
    ///
    /// # Panics
    ///
    /// With the text of the [`ReleaseError`] that [`try_disarm`](Self::try_disarm) returns. A later
    /// backward panics if its forward pass was made while the model was armed, since its gradients
    /// would be lost.
    pub fn disarm<M: Module>(&mut self, model: M) -> M {
        expect(self.try_disarm(model))
    }

    /// [`disarm`](Self::disarm), handing the model back where it refuses.
    ///
    /// # Errors
    ///
    /// A [`ReleaseError`] if a backward has stepped parameters, the model is not the one that was
    /// armed, or it has the sums of earlier micro-batches.
    pub fn try_disarm<M: Module>(&mut self, model: M) -> Result<M, Refused<M>> {
        let survey = Survey::of(&model);
        match self.check_disarm(&survey) {
            Ok(()) if self.has_sums() || survey.has_sums() => {
                Err(Refused::new(model, ReleaseError::Accumulated))
            }
            Ok(()) => Ok(self.disarm_checked(model, &survey)),
            Err(error) => Err(Refused::new(model, error)),
        }
    }

    /// [`try_disarm`](Self::try_disarm), handing back the sums of earlier micro-batches that the
    /// model was armed with, too.
    ///
    /// # Errors
    ///
    /// As [`try_disarm`](Self::try_disarm), except for the sums.
    pub fn try_disarm_accumulated<M: Module>(
        &mut self,
        model: M,
    ) -> Result<(M, GradientsParams), Refused<M>> {
        let survey = Survey::of(&model);
        match self.check_disarm(&survey) {
            Ok(()) => {
                let sums = arming::take_sums(&self.session, &survey);
                Ok((self.disarm_checked(model, &survey), sums))
            }
            Err(error) => Err(Refused::new(model, error)),
        }
    }

    fn check_disarm(&self, survey: &Survey) -> Result<(), ReleaseError> {
        self.check_unfinished()?;
        let renamed = survey.renamed();
        let matters = |slot: &Slot| slot.has_sum() || !renamed.contains(&std::ptr::from_ref(slot));
        survey.check_own(&self.session, matters)?;
        survey.check_elsewhere(&self.session)?;
        survey.check_computed()
    }

    fn disarm_checked<M: Module>(&mut self, model: M, survey: &Survey) -> M {
        let mut stepper = self.session.stepper();
        stepper.gradients.forget_step();
        stepper.sums_are_plain = true;
        drop(stepper);
        restore(&self.session, model, survey)
    }

    /// Whether a model is armed.
    pub fn is_armed(&self) -> bool {
        self.session.is_armed()
    }

    /// The report of the last step.
    pub fn last_step(&self) -> Option<&StepReport> {
        self.last_step.as_deref()
    }

    /// The states of the optimizer: Burn's record.
    pub fn to_record(&self) -> OptimizerRecord {
        expect(self.try_to_record())
    }

    /// [`to_record`](Self::to_record), refusing states that are half old, half new.
    ///
    /// # Errors
    ///
    /// A [`ReleaseError`] in the middle of a step, or if this replica has only a part of the
    /// states.
    pub fn try_to_record(&self) -> Result<OptimizerRecord, ReleaseError> {
        self.check_whole()?;
        self.own_record()
    }

    /// The states of this replica.
    pub(crate) fn own_record(&self) -> Result<OptimizerRecord, ReleaseError> {
        Ok(self.own_optimizer()?.to_record())
    }

    /// A copy of Burn's optimizer, with the states that are here. It shares their tensors: a step
    /// beside it would not go in place.
    pub(crate) fn own_optimizer(&self) -> Result<ModuleOptimizer, ReleaseError> {
        self.check_unfinished()?;
        let stepper = self.session.stepper();
        Ok(stepper.optim.clone().expect("an optimizer has one"))
    }

    /// Loads states that this optimizer, or plain Burn's, has saved. Ends any arming, and drops an
    /// interrupted step. With a [sharded reduction](crate::GradientReduction::is_sharded), each
    /// replica loads the states of all, and keeps its own.
    ///
    /// # Panics
    ///
    /// If a sharded reduction does not know the owner of a state.
    pub fn load_record(self, record: OptimizerRecord) -> Self {
        // On all replicas the same, whatever is whose.
        let has_states = !record.is_empty();
        let reduction = self.reduction().cloned();
        let record = own_states(record, reduction.as_ref());
        self.load_own(record, has_states)
    }

    /// Loads the states that this replica keeps; whether there are any on some replica.
    pub(crate) fn load_own(self, record: OptimizerRecord, has_states: bool) -> Self {
        let is_fresh = Some(!has_states);
        let reduction = self.reduction().cloned();
        let optim = self.take().load_record(record);
        let session = self.next_session(optim, reduction);
        Self {
            session,
            is_fresh,
            last_step: None,
            ..self
        }
    }

    /// Burn's optimizer, with its states.
    pub fn into_optimizer(self) -> ModuleOptimizer {
        expect(self.try_into_optimizer().map_err(ReleaseError::from))
    }

    /// [`into_optimizer`](Self::into_optimizer), handing the optimizer back where it refuses.
    ///
    /// # Errors
    ///
    /// As [`try_to_record`](Self::try_to_record), and:
    ///
    /// - [`NotBurns`](ReleaseError::NotBurns) with clipping by norms, a loss scaler, a stop at
    ///   gradients that are not finite or gradients in f32;
    /// - [`Accumulated`](ReleaseError::Accumulated): it has sums of parameters that were frozen since.
    pub fn try_into_optimizer(self) -> Result<ModuleOptimizer, Refused<Self>> {
        let stepper = self.session.stepper();
        let (not_burns, has_sums) = (stepper.gradients.not_burns(), !stepper.sums.is_empty());
        drop(stepper);
        let checked = self.check_unfinished().and_then(|()| self.check_whole());
        let checked = checked.and(match not_burns {
            Some(what) => Err(ReleaseError::NotBurns { what: what.into() }),
            None if has_sums => Err(ReleaseError::Accumulated),
            None => Ok(()),
        });
        match checked {
            Ok(()) => Ok(self.take()),
            Err(error) => Err(Refused::new(self, error)),
        }
    }

    fn take(&self) -> ModuleOptimizer {
        self.session.disarm();
        self.session
            .stepper()
            .optim
            .take()
            .expect("a release optimizer has Burn's optimizer")
    }
}
