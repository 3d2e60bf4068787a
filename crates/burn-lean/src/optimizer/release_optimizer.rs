//! Burn's optimizer with gradient release around it.

use std::sync::Arc;

use burn::Tensor;
use burn::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::{GradientsParams, ModuleOptimizer, OptimizerRecord};

use super::arming;
use super::claims::{check_bases, check_claims};
use super::error::{Refused, ReleaseError, expect};
use super::reducing::{reduce, weights_from_owners};
use super::report::{Outcome, StepReport};
use super::restoring::restore;
use super::survey::Survey;
use crate::reduction::{Flight, GradientReduction};
use crate::session::{FirstPass, Progress, Session};
use crate::slot::{Ended, Purpose, path_text};

/// Adds gradient release to Burn's optimizer.
#[diagnostic::on_unimplemented(
    message = "gradient release steps Burn's `ModuleOptimizer`, not `{Self}`",
    note = "`init()` makes one from an optimizer's configuration; L-BFGS has none, as it needs all \
            gradients of a step at once, several times"
)]
pub trait WithGradientRelease {
    /// The optimizer, stepping inside backward. States it has already stay.
    fn with_gradient_release(self) -> ReleaseOptimizer;
}

impl WithGradientRelease for ModuleOptimizer {
    fn with_gradient_release(self) -> ReleaseOptimizer {
        ReleaseOptimizer::new(self)
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
#[derive(Debug)]
pub struct ReleaseOptimizer {
    session: Arc<Session>,
    first_pass: FirstPass,
    /// No state was loaded, and no step was taken.
    is_fresh: bool,
    last_step: Option<StepReport>,
}

impl ReleaseOptimizer {
    fn new(optim: ModuleOptimizer) -> Self {
        let is_fresh = optim.to_record().is_empty();
        Self {
            session: Arc::new(Session::new(Some(optim), None)),
            first_pass: FirstPass::default(),
            is_fresh,
            last_step: None,
        }
    }

    /// Chooses when parameters are stepped in the first pass: see [`FirstPass`].
    pub fn with_first_pass(mut self, first_pass: FirstPass) -> Self {
        self.first_pass = first_pass;
        self
    }

    /// Reduces each gradient over the replicas of a model before it is stepped with. What was armed
    /// is no longer. Where the reduction is [sharded](GradientReduction::is_sharded), the states
    /// of other replicas' parameters are dropped, now and by [`load_record`](Self::load_record).
    ///
    /// # Panics
    ///
    /// If the optimizer has states, and the reduction does not know whose they are.
    pub fn with_reduction(self, reduction: Arc<dyn GradientReduction>) -> Self {
        let optim = self.take();
        let optim = match reduction.is_sharded() && !self.is_fresh {
            true => {
                let record = optim.to_record();
                with_states(optim, record, Some(&reduction))
            }
            false => optim,
        };
        Self {
            session: Arc::new(Session::new(Some(optim), Some(reduction))),
            ..self
        }
    }

    fn reduction(&self) -> Option<&Arc<dyn GradientReduction>> {
        self.session.flight().map(Flight::reduction)
    }

    /// Arms a model for one optimizer step: until [`step`](Self::step), each of its parameters that
    /// requires gradients is stepped inside backward.
    ///
    /// `lr` is a number, or a [`ModuleLearningRate`] with rates for groups of parameters. A model
    /// that is armed already gets the new rate.
    ///
    /// # Panics
    ///
    /// With the text of the [`ReleaseError`] that [`try_arm`](Self::try_arm) returns.
    pub fn arm<M: Module>(&mut self, lr: impl Into<ModuleLearningRate>, model: M) -> M {
        expect(self.try_arm(lr, model))
    }

    /// [`arm`](Self::arm), handing the model back where it refuses.
    ///
    /// # Errors
    ///
    /// - [`Unfinished`](ReleaseError::Unfinished), [`Interrupted`](ReleaseError::Interrupted): a
    ///   backward has stepped parameters, and its [`step`](Self::step) has not run;
    /// - [`DuplicateParam`](ReleaseError::DuplicateParam): two parameters share an id;
    /// - [`ArmedElsewhere`](ReleaseError::ArmedElsewhere): another optimizer armed a parameter;
    /// - [`CopyWithAdapters`](ReleaseError::CopyWithAdapters),
    ///   [`Distributed`](ReleaseError::Distributed), [`Backend`](ReleaseError::Backend): a
    ///   parameter cannot be armed.
    pub fn try_arm<M: Module>(
        &mut self,
        lr: impl Into<ModuleLearningRate>,
        model: M,
    ) -> Result<M, Refused<M>> {
        match self.check_arm(&model) {
            Ok(survey) => Ok(self.arm_checked(lr.into(), model, GradientsParams::new(), survey)),
            Err(error) => Err(Refused::new(model, error)),
        }
    }

    /// [`arm`](Self::arm) for the last micro-batch of a window: each parameter is stepped with the
    /// sum of its gradient and that of the earlier ones, as a
    /// [`ReleaseAccumulator`](crate::ReleaseAccumulator) or Burn's accumulator has them.
    ///
    /// # Panics
    ///
    /// With the text of the [`ReleaseError`] that
    /// [`try_arm_accumulated`](Self::try_arm_accumulated) returns.
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
    /// As [`try_arm`](Self::try_arm).
    pub fn try_arm_accumulated<M: Module>(
        &mut self,
        lr: impl Into<ModuleLearningRate>,
        model: M,
        grads: GradientsParams,
    ) -> Result<M, Refused<M, GradientsParams>> {
        match self.check_arm(&model) {
            Ok(survey) => Ok(self.arm_checked(lr.into(), model, grads, survey)),
            Err(error) => Err(Refused::with_grads(model, grads, error)),
        }
    }

    fn check_arm<M: Module>(&self, model: &M) -> Result<Survey, ReleaseError> {
        self.check_unfinished()?;
        let survey = Survey::of(model);
        survey.check(&self.session)?;
        Ok(survey)
    }

    fn check_unfinished(&self) -> Result<(), ReleaseError> {
        self.session.land()?;
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
        let first_pass = match self.first_pass {
            // Of a pass that is not the first, only what is new in it waits for the end of
            // backward.
            FirstPass::Auto if self.is_fresh || self.session.has_learned() => FirstPass::Exact,
            FirstPass::Auto => FirstPass::Small,
            chosen => chosen,
        };
        self.session.begin_pass(first_pass);
        self.session.stepper().lr = Some(lr);
        arming::arm(&self.session, Purpose::Step, sums, model, survey)
    }

    /// Takes back the arming: the model is an ordinary one.
    ///
    /// # Panics
    ///
    /// With the text of the [`ReleaseError`] that [`try_disarm`](Self::try_disarm) returns. Later,
    /// if backward runs from a forward pass that was made while the model was armed: its gradients
    /// have nowhere to go.
    pub fn disarm<M: Module>(&mut self, model: M) -> M {
        expect(self.try_disarm(model))
    }

    /// [`disarm`](Self::disarm), handing the model back where it refuses.
    ///
    /// # Errors
    ///
    /// - [`Unfinished`](ReleaseError::Unfinished), [`Interrupted`](ReleaseError::Interrupted): a
    ///   backward has stepped parameters;
    /// - [`WrongModel`](ReleaseError::WrongModel), [`Copy`](ReleaseError::Copy): it is not the
    ///   model that was armed.
    pub fn try_disarm<M: Module>(&mut self, model: M) -> Result<M, Refused<M>> {
        let survey = Survey::of(&model);
        let checked = self.check_unfinished().and_then(|()| {
            survey.check_own(&self.session, |_| true)?;
            check_bases(&self.session, &model)?;
            let slots = self.session.slots();
            match slots.values().any(|slot| slot.has_sum()) {
                true => Err(ReleaseError::Accumulated),
                false => Ok(()),
            }
        });
        match checked {
            Ok(()) => Ok(restore(
                &self.session,
                Ended::Disarmed,
                model,
                survey.has_adapters,
            )),
            Err(error) => Err(Refused::new(model, error)),
        }
    }

    /// Finishes the step: parameters that were stepped inside backward are ordinary ones again, and
    /// what has an ordinary gradient is stepped with it. A model that is not armed is stepped as by
    /// Burn's optimizer.
    ///
    /// # Panics
    ///
    /// With the text of the [`ReleaseError`] that [`try_step`](Self::try_step) returns.
    pub fn step<M: Module>(
        &mut self,
        lr: impl Into<ModuleLearningRate>,
        model: M,
        grads: GradientsParams,
    ) -> M {
        expect(self.try_step(lr, model, grads))
    }

    /// [`step`](Self::step), handing model and gradients back where it refuses.
    ///
    /// # Errors
    ///
    /// - [`LearningRate`](ReleaseError::LearningRate): not the rate that `arm` was given;
    /// - [`AlreadyStepped`](ReleaseError::AlreadyStepped): a gradient for a parameter that was
    ///   stepped inside an earlier backward;
    /// - [`Unclaimed`](ReleaseError::Unclaimed): nobody asked for the gradient of a parameter that
    ///   was stepped;
    /// - [`WrongModel`](ReleaseError::WrongModel), [`Copy`](ReleaseError::Copy): the stepped
    ///   parameters are not in this model;
    /// - [`ArmedElsewhere`](ReleaseError::ArmedElsewhere): another optimizer has armed a parameter
    ///   that has a gradient here;
    /// - [`Interrupted`](ReleaseError::Interrupted): the optimizer panicked half way;
    /// - [`Reduction`](ReleaseError::Reduction): the replicas of the model do not do the same. The
    ///   model is half old, half new.
    pub fn try_step<M: Module>(
        &mut self,
        lr: impl Into<ModuleLearningRate>,
        model: M,
        mut grads: GradientsParams,
    ) -> Result<M, Refused<M, GradientsParams>> {
        let lr = lr.into();
        let survey = Survey::of(&model);
        let landed = self.session.land();
        if let Err(error) = landed.and_then(|()| self.check_step(&lr, &model, &grads, &survey)) {
            return Err(Refused::with_grads(model, grads, error));
        }
        let model = match self.is_armed() || survey.has_adapters || survey.found.is_empty() {
            true => model,
            // An accumulator has left it as it was in the last micro-batch.
            false => arming::settle(model, &survey),
        };
        let mut report = StepReport {
            in_place: Progress::get(&self.session.progress.in_place),
            is_plain: self.session.is_plain(),
            ..StepReport::default()
        };
        model.visit(&mut Finish {
            session: &self.session,
            grads: &mut grads,
            report: &mut report,
        });
        let reduced = match self.session.flight() {
            Some(flight) => reduce(flight, &model, &mut grads),
            None => Ok(Vec::new()),
        };
        let reduced = match reduced {
            Ok(reduced) => reduced,
            Err(error) => return Err(Refused::with_grads(model, grads, error)),
        };
        let mut model = restore(&self.session, Ended::Finished, model, survey.has_adapters);
        self.session.progress.reset();
        let mut stepper = self.session.stepper();
        stepper.lr = None;
        if !grads.is_empty() {
            stepper.stepping = true;
            let optim = stepper.optim.as_mut().expect("an optimizer has one");
            model = optim.step(lr.clone(), model, grads);
            stepper.stepping = false;
        }
        drop(stepper);
        if let Some(flight) = self.session.flight() {
            let ended = weights_from_owners(flight, model, &reduced).and_then(|model| match flight
                .end_step(&lr)
            {
                Ok(()) => Ok(model),
                Err(error) => Err((model, error)),
            });
            model = match ended {
                Ok(model) => model,
                Err((model, error)) => {
                    return Err(Refused::with_grads(model, GradientsParams::new(), error));
                }
            };
        }
        self.is_fresh &= report
            .outcomes
            .iter()
            .all(|(_, outcome)| *outcome == Outcome::Unused);
        self.last_step = Some(report);
        Ok(model)
    }

    fn check_step<M: Module>(
        &self,
        lr: &ModuleLearningRate,
        model: &M,
        grads: &GradientsParams,
        survey: &Survey,
    ) -> Result<(), ReleaseError> {
        let stepper = self.session.stepper();
        let slots = self.session.slots();
        if stepper.stepping {
            let stepped = Progress::get(&self.session.progress.stepped);
            let armed = slots.len();
            return Err(ReleaseError::Interrupted { stepped, armed });
        }
        for (id, slot) in slots.iter() {
            let path = path_text(slot.path());
            if let Some(armed) = &stepper.lr {
                let armed = armed.lr_from_param(*id, Some(&path));
                let given = lr.lr_from_param(*id, Some(&path));
                if armed.to_bits() != given.to_bits() {
                    return Err(ReleaseError::LearningRate { path, armed, given });
                }
            }
            if slot.fate().second {
                return Err(ReleaseError::AlreadyStepped { path });
            }
        }
        drop((slots, stepper));
        survey.check_own(&self.session, |slot| slot.fate().taken)?;
        check_claims(&self.session, survey, model, grads)
    }

    /// Whether a model is armed.
    pub fn is_armed(&self) -> bool {
        self.session.is_armed()
    }

    /// What the last step did.
    pub fn last_step(&self) -> Option<&StepReport> {
        self.last_step.as_ref()
    }

    /// The states of the optimizer: Burn's record.
    ///
    /// # Panics
    ///
    /// With the text of the [`ReleaseError`] that [`try_to_record`](Self::try_to_record) returns.
    pub fn to_record(&self) -> OptimizerRecord {
        expect(self.try_to_record())
    }

    /// [`to_record`](Self::to_record), refusing states that are half old, half new.
    ///
    /// # Errors
    ///
    /// - [`Unfinished`](ReleaseError::Unfinished), [`Interrupted`](ReleaseError::Interrupted);
    /// - [`Sharded`](ReleaseError::Sharded): this replica has a part of the states.
    pub fn try_to_record(&self) -> Result<OptimizerRecord, ReleaseError> {
        self.check_whole()?;
        self.own_record()
    }

    /// The states that are here.
    pub(crate) fn own_record(&self) -> Result<OptimizerRecord, ReleaseError> {
        self.check_unfinished()?;
        Ok(self
            .session
            .stepper()
            .optim
            .as_ref()
            .expect("an optimizer has one")
            .to_record())
    }

    fn check_whole(&self) -> Result<(), ReleaseError> {
        match self.reduction() {
            Some(reduction) if reduction.is_sharded() => Err(ReleaseError::Sharded),
            _ => Ok(()),
        }
    }

    /// Loads states that this optimizer, or plain Burn's, has saved. What was armed is no longer; a
    /// step that was interrupted is forgotten. Of replicas with a [sharded
    /// reduction](GradientReduction::is_sharded), each loads the states of all, and keeps its own.
    ///
    /// # Panics
    ///
    /// If a sharded reduction does not know whose a state is.
    pub fn load_record(self, record: OptimizerRecord) -> Self {
        // On all replicas the same, whatever is whose.
        let is_fresh = record.is_empty();
        let reduction = self.reduction().cloned();
        let optim = with_states(self.take(), record, reduction.as_ref());
        Self {
            session: Arc::new(Session::new(Some(optim), reduction)),
            first_pass: self.first_pass,
            is_fresh,
            last_step: None,
        }
    }

    /// Burn's optimizer, with its states.
    ///
    /// # Panics
    ///
    /// With the text of the [`ReleaseError`] that [`try_into_optimizer`](Self::try_into_optimizer)
    /// returns.
    pub fn into_optimizer(self) -> ModuleOptimizer {
        expect(self.try_into_optimizer().map_err(ReleaseError::from))
    }

    /// [`into_optimizer`](Self::into_optimizer), handing the optimizer back where it refuses.
    ///
    /// # Errors
    ///
    /// As [`try_to_record`](Self::try_to_record).
    pub fn try_into_optimizer(self) -> Result<ModuleOptimizer, Refused<Self>> {
        match self.check_unfinished().and_then(|()| self.check_whole()) {
            Ok(()) => Ok(self.take()),
            Err(error) => Err(Refused::new(self, error)),
        }
    }

    fn take(&self) -> ModuleOptimizer {
        self.session.set_armed(false);
        self.session
            .stepper()
            .optim
            .take()
            .expect("an optimizer has one")
    }
}

/// The optimizer with these states, or with those of them that this replica owns.
fn with_states(
    optim: ModuleOptimizer,
    record: OptimizerRecord,
    reduction: Option<&Arc<dyn GradientReduction>>,
) -> ModuleOptimizer {
    optim.load_record(match reduction {
        Some(reduction) if reduction.is_sharded() => expect(reduction.own_states(record)),
        _ => record,
    })
}

/// Takes out of the gradients what was stepped with, and reports.
struct Finish<'a> {
    session: &'a Session,
    grads: &'a mut GradientsParams,
    report: &'a mut StepReport,
}

impl ModuleVisitor for Finish<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let id: ParamId = param.id;
        let slot = self.session.slots().get(&id).cloned();
        // What was frozen since was stepped all the same.
        if slot.is_none() && !param.is_require_grad() {
            return;
        }
        let fate = slot.as_ref().map(|slot| slot.fate());
        if let Some(fate) = fate.filter(|fate| fate.taken) {
            self.grads.remove::<D>(id);
            let outcome = if fate.late {
                Outcome::ReleasedLate
            } else {
                Outcome::Released
            };
            self.report.outcomes.push((id, outcome));
            return;
        }
        let mut grad = self.grads.remove::<D>(id);
        if let Some(sum) = slot.and_then(|slot| slot.take_sum()) {
            let sum = Tensor::from_dispatch(sum);
            grad = Some(match grad {
                Some(grad) => sum.add(grad),
                None => sum,
            });
        }
        let outcome = if grad.is_some() {
            Outcome::Ordinary
        } else {
            Outcome::Unused
        };
        if let Some(grad) = grad {
            self.grads.register(id, grad);
        }
        self.report.outcomes.push((id, outcome));
    }
}
