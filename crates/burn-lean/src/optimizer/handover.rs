//! A step that ends in the user's `TrainStep::optimize`, which calls Burn's `ModuleOptimizer`: that
//! gives the weights back to the model.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard};

use burn::Tensor;
use burn::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::module::{Module, Param, ParamGroup, ParamId};
use burn::optim::{
    GradientsParams, ModuleOptimizer, Optimizer, RecordState, StateSink, StateSource,
};
use burn::tensor::Device;
use burn::tensor::kind::BridgeTensor;

use super::accumulator::ReleaseAccumulator;
use super::one_param::step_one;
use super::release_optimizer::ReleaseOptimizer;
use super::report::{Outcome, StepReport};
use super::restoring::{restore, restore_mappers};
use super::survey::Survey;
use crate::backend::{plain, reading_waits};
use crate::error::{ReleaseError, expect};
use crate::lock::lock;
use crate::path::{Path, PathVisitor, WithPaths, path_text};
use crate::session::{Progress, Session, Slot, Taken};
use crate::tape::{is_placeholder, placeholder_element};

/// Parameters that the `ModuleOptimizer` of a `TrainStep` will give back.
#[derive(Clone, Default)]
pub(crate) struct Handover(Arc<Mutex<Vec<Option<Waiting>>>>);

/// A parameter that the user's `optim.step` will give back.
struct Waiting {
    path: String,
    lr: f64,
    /// Backward or an ordinary gradient has stepped it.
    is_stepped: bool,
    /// Returns the new weight for the base of the parameter in the user's model.
    give: Give,
}

type Give = Box<dyn FnOnce(BridgeTensor) -> Result<BridgeTensor, ReleaseError> + Send>;

impl Handover {
    /// The optimizer for `TrainStep::optimize`.
    pub(crate) fn optimizer(&self, like: ModuleOptimizer) -> ModuleOptimizer {
        like.with_group(ParamGroup::all(), self.clone(), None)
    }

    fn waiting(&self) -> MutexGuard<'_, Vec<Option<Waiting>>> {
        lock(&self.0)
    }

    fn give<const D: usize>(
        &self,
        lr: f64,
        base: Tensor<D>,
        mark: Tensor<D>,
    ) -> Result<Tensor<D>, ReleaseError> {
        // The first dimension of the mark is the index of the parameter, plus one.
        let index = mark.dims()[0] - 1;
        let changed = |path: String| ReleaseError::GradientChanged { path };
        let waiting = self.waiting().get_mut(index).and_then(Option::take);
        let waiting = waiting.ok_or_else(|| changed(format!("parameter {index}")))?;
        let mark = mark.into_dispatch();
        if !reading_waits(&mark) && !is_placeholder(&mark) {
            return Err(changed(waiting.path));
        }
        if lr.to_bits() != waiting.lr.to_bits() {
            return Err(ReleaseError::LearningRate {
                path: waiting.path,
                armed: waiting.lr,
                given: lr,
            });
        }
        (waiting.give)(base.into_bridge()).map(Tensor::from_bridge)
    }
}

impl Optimizer for Handover {
    type State<const D: usize> = Elsewhere;

    fn step<const D: usize>(
        &self,
        lr: f64,
        base: Tensor<D>,
        mark: Tensor<D>,
        _: Option<Elsewhere>,
    ) -> (Tensor<D>, Option<Elsewhere>) {
        let weight = expect(self.give(lr, base, mark));
        (weight, Some(Elsewhere))
    }

    fn to_device<const D: usize>(state: Elsewhere, _: &Device) -> Elsewhere {
        state
    }
}

/// Stands for the state of a parameter, which the release optimizer holds.
#[derive(Clone)]
pub(crate) struct Elsewhere;

impl RecordState for Elsewhere {
    fn state_flatten(&self, _: &str, _: &mut StateSink) {
        panic!(
            "gradient release: the optimizer that `TrainStep::optimize` is called with has no \
             states to save; they are in the checkpoints of the training"
        )
    }

    fn state_unflatten(_: &str, _: &mut StateSource, _: &Device) -> Option<Self> {
        panic!(
            "gradient release: the optimizer that `TrainStep::optimize` is called with takes no \
             states; load them into the `Learner`, before the training"
        )
    }
}

impl ReleaseOptimizer {
    /// An optimizer with the settings of this one, and with the states of another one of Burn's.
    pub(crate) fn with_optimizer(&self, optim: ModuleOptimizer) -> Self {
        let mut other = Self::from(optim);
        other.first_pass = self.first_pass;
        other.groups = self.groups.clone();
        other.session.stepper().gradients = self.session.stepper().gradients.between_steps();
        other
    }

    pub(crate) fn has_reduction(&self) -> bool {
        self.session.in_flight().is_some()
    }

    /// What Burn's optimizer does not do.
    pub(crate) fn not_burns(&self) -> Option<&'static str> {
        self.session.stepper().gradients.not_burns()
    }

    /// An accumulator of the sums that this optimizer steps with.
    pub(crate) fn accumulator(&self) -> ReleaseAccumulator {
        match self.session.stepper().gradients.gives_f32 {
            true => ReleaseAccumulator::in_f32(),
            false => ReleaseAccumulator::new(),
        }
    }

    /// The first half of `try_step`: steps all parameters, whose weights stay in the slots. Returns
    /// marks for all gradients, with which `optim.step` of [`Handover::optimizer`] gives the model
    /// its new weights.
    ///
    /// # Errors
    ///
    /// The errors of `try_step`, except `NoForward`.
    pub(crate) fn hand_over<M: Module>(
        &mut self,
        lr: &ModuleLearningRate,
        model: &M,
        mut grads: GradientsParams,
        handover: &Handover,
    ) -> Result<(GradientsParams, StepReport), ReleaseError> {
        let survey = Survey::of(model);
        self.session.wait_for_reductions()?;
        match self.check_step(lr, model, &grads, &survey) {
            Ok(()) | Err(ReleaseError::NoForward) => {}
            Err(error) => return Err(error),
        }
        let mut report = self.report(&survey, &mut grads);
        let mut hand_out = HandOut {
            session: &self.session,
            lr,
            grads,
            marks: GradientsParams::new(),
            waiting: Vec::new(),
            skipped: HashSet::new(),
        };
        model.visit(&mut WithPaths::new(&mut hand_out));
        self.session.wait_for_reductions()?;
        if let Some(in_flight) = self.session.in_flight() {
            in_flight.end_step(lr)?;
        }
        *handover.waiting() = hand_out.waiting;
        let slots = self.session.slots();
        let skipped = slots
            .iter()
            .filter(|(_, slot)| slot.phase().taken() == Some(Taken::Skipped));
        hand_out.skipped.extend(skipped.map(|(id, _)| *id));
        drop(slots);
        report.set_skipped(&hand_out.skipped);
        let has_skipped = report.count(Outcome::Skipped) > 0;
        let gradients = &mut self.session.stepper().gradients;
        report.gradients = gradients.end_step(&survey.ids(), report.stepped(), has_skipped);
        Ok((hand_out.marks, report))
    }

    /// The second half: makes an ordinary model of the one that `TrainStep::optimize` returned.
    ///
    /// # Errors
    ///
    /// - [`Unfinished`](ReleaseError::Unfinished): parameters were stepped and are still waiting;
    /// - [`Placeholder`](ReleaseError::Placeholder): something was computed from one.
    pub(crate) fn take_back<M: Module>(
        &mut self,
        model: M,
        report: StepReport,
        handover: &Handover,
    ) -> Result<M, ReleaseError> {
        let waiting = std::mem::take(&mut *handover.waiting());
        if waiting.iter().flatten().any(|waiting| waiting.is_stepped) {
            let stepped = Progress::get(&self.session.progress.stepped);
            let armed = self.session.slots().len();
            return Err(ReleaseError::Unfinished { stepped, armed });
        }
        let survey = Survey::of(&model);
        survey.check_computed()?;
        let mapper = |(id, slot): (&ParamId, &Arc<Slot>)| (*id, slot.mapper());
        let mappers = self.session.slots().iter().map(mapper).collect();
        let model = restore(&self.session, model, &survey);
        self.finish(report);
        Ok(restore_mappers(model, &mappers))
    }
}

/// Steps the parameters with ordinary gradients, and makes a mark for each parameter that is armed
/// or has a gradient.
struct HandOut<'a> {
    session: &'a Arc<Session>,
    lr: &'a ModuleLearningRate,
    grads: GradientsParams,
    marks: GradientsParams,
    waiting: Vec<Option<Waiting>>,
    /// Parameters whose ordinary gradients have overflowed.
    skipped: HashSet<ParamId>,
}

impl PathVisitor for HandOut<'_> {
    fn visit<const D: usize>(&mut self, path: &Path, param: &Param<Tensor<D>>) {
        let slot = self.session.slots().get(&param.id).cloned();
        let grad = self.grads.remove::<D>(param.id);
        let is_stepped =
            grad.is_some() || slot.as_ref().is_some_and(|slot| slot.phase().is_taken());
        let text = path_text(path);
        let give = match (slot, grad) {
            (Some(slot), grad) => {
                let is_dropped = self.session.stepper().gradients.is_dropped(param.id);
                // A step that is skipped is that of a model armed to measure.
                if let Some(grad) = grad.filter(|_| !is_dropped) {
                    slot.step_now(grad.into_dispatch());
                }
                if is_dropped {
                    self.skipped.insert(param.id);
                }
                give_slot::<D>(slot, text.clone())
            }
            (None, Some(grad)) => self.give_stepped(path, param, grad),
            (None, None) => return,
        };
        self.waiting.push(Some(Waiting {
            lr: self.lr.lr_from_param(param.id, Some(&text)),
            path: text,
            is_stepped,
            give,
        }));
        let mark = placeholder_element(&plain(param.base().into_dispatch()));
        let mut shape = [1; D];
        shape[0] = self.waiting.len();
        let mark = Tensor::<D>::from_dispatch(mark).expand(shape);
        self.marks.register(param.id, mark);
    }
}

/// Gives the weight in a slot for the placeholder in the model.
fn give_slot<const D: usize>(slot: Arc<Slot>, path: String) -> Give {
    slot.watch();
    Box::new(move |base| {
        if slot.phase().is_taken() && slot.has_stepped_copy() {
            return Err(ReleaseError::SteppedCopy { path });
        }
        // A change of the parameter maps it or drops its reparameterization. The bits alone do not
        // tell: a clamped NaN keeps them, and on a GPU reading waits for the device.
        let is_touched = slot.was_mapped() || slot.is_dropped();
        let base = Tensor::<D>::from_bridge(base);
        // Without elements, there are no bits to tell it by.
        let is_empty = base.shape().num_elements() == 0;
        let base = base.into_dispatch();
        if is_touched || !(is_empty || reading_waits(&base) || is_placeholder(&base)) {
            return Err(ReleaseError::ChangedBeforeStep { path });
        }
        let weight = slot.end();
        Ok(Tensor::<D>::from_dispatch(weight).into_bridge())
    })
}

impl HandOut<'_> {
    /// Steps a parameter that is not armed, where plain Burn would step it.
    fn give_stepped<const D: usize>(
        &mut self,
        path: &Path,
        param: &Param<Tensor<D>>,
        grad: Tensor<D>,
    ) -> Give {
        let (id, path, lr) = (param.id, path.clone(), self.lr.clone());
        let grad = match self.session.in_flight() {
            None => grad,
            Some(in_flight) => {
                let mean = expect(in_flight.mean(id, grad.into_dispatch()));
                self.session.stepper().gradients.note_widened([id]);
                Tensor::from_dispatch(mean)
            }
        };
        let gradients = &mut self.session.stepper().gradients;
        let Some(grad) = gradients.apply(id, &param.base().inner(), grad) else {
            self.skipped.insert(id);
            return Box::new(Ok);
        };
        let session = self.session.clone();
        Box::new(move |weight| {
            let mut weight = Tensor::<D>::from_bridge(weight);
            if session.is_owner(id) {
                let mut stepper = session.stepper();
                weight = stepper.step(|optim| step_one(optim, lr, id, &path, weight, grad));
            }
            let weight = session.weight_from_owner(id, weight.into_dispatch())?;
            Ok(Tensor::<D>::from_dispatch(weight).into_bridge())
        })
    }
}
