//! One optimizer step of an armed model: from `arm` to `step`.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use burn::{
    module::{AutodiffModule, ModuleMapper, ModuleVisitor, Param, ParamId},
    optim::{
        GradientsParams, LearningRate, MultiGradientsParams, SimpleOptimizer, adaptor::GradAdaptor,
    },
    tensor::{Tensor, TensorPrimitive, backend::Backend},
};

use super::{
    error::ReleaseError,
    report::{Outcome, StepReport},
    stepper::Stepper,
};
use crate::{
    ReleaseBackend,
    slot::{Progress, Slot, When},
    tensor::{ReleaseTensor, Repr},
};

/// At which depth of the tape each parameter should be tapped, learnt from the previous step.
pub(crate) type DepthHints = HashMap<ParamId, usize>;

/// The armed parameters of one step.
pub(crate) struct Session<B: Backend> {
    learning_rate: LearningRate,
    slots: HashMap<ParamId, Arc<Slot<B>>>,
    progress: Arc<Progress>,
}

impl<B: Backend> Session<B> {
    pub(crate) fn learning_rate(&self) -> LearningRate {
        self.learning_rate
    }

    pub(crate) fn stepped(&self) -> usize {
        self.progress.stepped()
    }

    pub(crate) fn armed(&self) -> usize {
        self.slots.len()
    }

    pub(crate) fn is_interrupted(&self) -> bool {
        self.progress.is_interrupted()
    }
}

/// Parameters whose session is gone are ordinary leaves again, for whichever optimizer is next.
impl<B: Backend> Drop for Session<B> {
    fn drop(&mut self) {
        self.slots.values().for_each(|slot| slot.disarm());
    }
}

/// Why a model cannot be armed.
///
/// `own` is the session that arming would replace.
pub(crate) fn check_arm<B: ReleaseBackend, M: AutodiffModule<B>>(
    own: Option<&Session<B::InnerBackend>>,
    model: &M,
) -> Result<(), ReleaseError> {
    struct Check<'a, B: Backend> {
        own: Option<&'a Session<B>>,
        seen: HashSet<ParamId>,
        error: Option<ReleaseError>,
    }

    impl<B: ReleaseBackend> ModuleVisitor<B> for Check<'_, B::InnerBackend> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
            if !param.is_require_grad() || self.error.is_some() {
                return;
            }
            if !self.seen.insert(param.id) {
                self.error = Some(ReleaseError::DuplicateParam { param: param.id });
            }
            let own = self.own.and_then(|session| session.slots.get(&param.id));
            let armed = float(param.val())
                .and_then(|tensor: ReleaseTensor<B::InnerBackend>| tensor.snapshot()?.armed_slot());
            if let Some(armed) = armed
                && !own.is_some_and(|own| Arc::ptr_eq(own, &armed))
            {
                self.error = Some(ReleaseError::ArmedElsewhere { param: param.id });
            }
        }
    }

    let mut check = Check {
        own,
        seen: HashSet::new(),
        error: None,
    };
    model.visit(&mut check);
    check.error.map_or(Ok(()), Err)
}

/// Arms every parameter of the model that requires gradients.
pub(crate) fn arm<O, M, B>(
    stepper: &Stepper<O, B>,
    hints: &DepthHints,
    learning_rate: LearningRate,
    model: M,
) -> (Session<B::InnerBackend>, M)
where
    O: SimpleOptimizer<B::InnerBackend> + 'static,
    M: AutodiffModule<B>,
    B: ReleaseBackend,
{
    struct Arm<'a, O, B>
    where
        O: SimpleOptimizer<B::InnerBackend>,
        B: ReleaseBackend,
    {
        stepper: &'a Stepper<O, B>,
        hints: &'a DepthHints,
        session: Session<B::InnerBackend>,
    }

    impl<O, B> ModuleMapper<B> for Arm<'_, O, B>
    where
        O: SimpleOptimizer<B::InnerBackend> + 'static,
        B: ReleaseBackend,
    {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
            let (id, tensor, mapper) = param.consume();
            if !tensor.is_require_grad() {
                return Param::from_mapped_value(id, tensor, mapper);
            }
            let device = tensor.device();
            let tensor: ReleaseTensor<B::InnerBackend> =
                float(tensor).expect("only float tensors require gradients");
            let placeholder = Tensor::<B::InnerBackend, 1>::empty([1], &device);
            let (slot, live) = Slot::arm(
                id,
                // The leaf stays: a copy of the model taken before goes on sharing it.
                tensor.into_untapped(),
                placeholder.into_primitive().tensor(),
                self.hints.get(&id).copied(),
                self.session.progress.clone(),
                self.stepper.release::<D>(self.session.learning_rate, id),
            );
            self.session.slots.insert(id, slot);
            Param::from_mapped_value(id, wrap(ReleaseTensor(Repr::Live(live))), mapper)
        }
    }

    let session = Session {
        learning_rate,
        slots: HashMap::new(),
        progress: Arc::default(),
    };
    let mut arm = Arm {
        stepper,
        hints,
        session,
    };
    let model = model.map(&mut arm);
    (arm.session, model)
}

/// The gradients given to `step`.
pub(crate) enum Grads {
    /// Of one device.
    Single(GradientsParams),
    /// Of several devices.
    Multi(MultiGradientsParams),
}

impl Grads {
    fn contains<B: Backend, const D: usize>(&self, param: ParamId) -> bool {
        match self {
            Self::Single(grads) => grads.get::<B, D>(param).is_some(),
            Self::Multi(multi) => multi
                .grads
                .iter()
                .any(|(grads, _)| grads.get::<B, D>(param).is_some()),
        }
    }
}

impl From<Grads> for GradAdaptor {
    fn from(grads: Grads) -> Self {
        match grads {
            Grads::Single(grads) => grads.into(),
            Grads::Multi(grads) => grads.into(),
        }
    }
}

/// Why the step of an armed model cannot be finished with this model and these gradients.
pub(crate) fn check_finish<B: ReleaseBackend, M: AutodiffModule<B>>(
    session: &Session<B::InnerBackend>,
    model: &M,
    grads: &Grads,
) -> Result<(), ReleaseError> {
    struct Check<'a, B: Backend> {
        session: &'a Session<B>,
        grads: &'a Grads,
        found: HashSet<ParamId>,
        error: Option<ReleaseError>,
    }

    impl<B: ReleaseBackend> ModuleVisitor<B> for Check<'_, B::InnerBackend> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
            let slot = match self.session.slots.get(&param.id) {
                Some(slot) if slot.stepped().is_some() => slot,
                _ => return,
            };
            let is_of_slot = float(param.val())
                .and_then(|tensor: ReleaseTensor<B::InnerBackend>| tensor.snapshot())
                .and_then(|snapshot| snapshot.slot.upgrade())
                .is_some_and(|found| Arc::ptr_eq(&found, slot));
            if !is_of_slot {
                return;
            }
            self.found.insert(param.id);
            if self.grads.contains::<B::InnerBackend, D>(param.id) {
                self.error = Some(ReleaseError::AlreadyStepped { param: param.id });
            }
        }
    }

    let mut check = Check {
        session,
        grads,
        found: HashSet::new(),
        error: None,
    };
    model.visit(&mut check);
    let Check { found, error, .. } = check;
    if let Some(error) = error {
        return Err(error);
    }
    let lost = session
        .slots
        .iter()
        .find(|(id, slot)| slot.stepped().is_some() && !found.contains(*id));
    match lost {
        Some((param, _)) => Err(ReleaseError::WrongModel { param: *param }),
        None => Ok(()),
    }
}

/// Finishes a step: promotes what was stepped inside backward, applies the ordinary step to what
/// has a gradient. Without a session that is Burn's own step.
pub(crate) fn finish<O, M, B>(
    stepper: &Stepper<O, B>,
    hints: &mut DepthHints,
    learning_rate: LearningRate,
    session: Option<Session<B::InnerBackend>>,
    model: M,
    grads: Grads,
) -> (StepReport, M)
where
    O: SimpleOptimizer<B::InnerBackend> + 'static,
    M: AutodiffModule<B>,
    B: ReleaseBackend,
{
    struct Finish<'a, O, B>
    where
        O: SimpleOptimizer<B::InnerBackend>,
        B: ReleaseBackend,
    {
        stepper: &'a Stepper<O, B>,
        hints: &'a mut DepthHints,
        session: Option<Session<B::InnerBackend>>,
        grads: GradAdaptor,
        report: StepReport,
    }

    impl<O, B> Finish<'_, O, B>
    where
        O: SimpleOptimizer<B::InnerBackend> + 'static,
        B: ReleaseBackend,
    {
        fn finish<const D: usize>(
            &mut self,
            id: ParamId,
            tensor: Tensor<B, D>,
        ) -> (Outcome, Tensor<B, D>) {
            let slot = self
                .session
                .as_mut()
                .and_then(|session| session.slots.remove(&id));
            if let Some(slot) = slot {
                if let Some(depth) = slot.next_depth() {
                    self.hints.insert(id, depth);
                }
                if let Some(when) = slot.stepped() {
                    drop(tensor);
                    let outcome = match when {
                        When::Complete => Outcome::Released,
                        When::Late => Outcome::ReleasedLate,
                    };
                    let value = TensorPrimitive::Float(slot.close());
                    let value = Tensor::<B::InnerBackend, D>::from_primitive(value);
                    return (outcome, Tensor::from_inner(value).require_grad());
                }
                slot.disarm();
            }
            match self.grads.remove::<B::InnerBackend, D>(id) {
                Some((grad, _)) => {
                    let require_grad = tensor.is_require_grad();
                    let lr = self.report.learning_rate();
                    let tensor = self.stepper.step(lr, id, tensor.inner(), grad);
                    let tensor = Tensor::from_inner(tensor).set_require_grad(require_grad);
                    (Outcome::Ordinary, tensor)
                }
                None => (Outcome::Unused, disarmed(tensor)),
            }
        }
    }

    impl<O, B> ModuleMapper<B> for Finish<'_, O, B>
    where
        O: SimpleOptimizer<B::InnerBackend> + 'static,
        B: ReleaseBackend,
    {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
            let (id, tensor, mapper) = param.consume();
            let trains = tensor.is_require_grad();
            let (outcome, tensor) = self.finish(id, tensor);
            if trains {
                self.report.push(id, outcome);
            }
            Param::from_mapped_value(id, tensor, mapper)
        }
    }

    let mut finish = Finish {
        stepper,
        hints,
        session,
        grads: grads.into(),
        report: StepReport::new(learning_rate),
    };
    let model = model.map(&mut finish);
    (finish.report, model)
}

/// Turns the parameters of a model whose session was cancelled into ordinary leaves.
pub(crate) fn disarm<B: ReleaseBackend, M: AutodiffModule<B>>(model: M) -> M {
    struct Disarm;

    impl<B: ReleaseBackend> ModuleMapper<B> for Disarm {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
            let (id, tensor, mapper) = param.consume();
            Param::from_mapped_value(id, disarmed(tensor), mapper)
        }
    }

    model.map(&mut Disarm)
}

/// The leaf behind a snapshot; everything else as it is.
fn disarmed<B: ReleaseBackend, const D: usize>(tensor: Tensor<B, D>) -> Tensor<B, D> {
    match tensor.into_primitive() {
        TensorPrimitive::Float(tensor) => {
            let tensor = B::into_release(tensor);
            wrap(match tensor.snapshot() {
                Some(snapshot) => ReleaseTensor::plain(snapshot.leaf),
                None => tensor,
            })
        }
        quantized => Tensor::from_primitive(quantized),
    }
}

fn float<B: ReleaseBackend, const D: usize>(
    tensor: Tensor<B, D>,
) -> Option<ReleaseTensor<B::InnerBackend>> {
    match tensor.into_primitive() {
        TensorPrimitive::Float(tensor) => Some(B::into_release(tensor)),
        TensorPrimitive::QFloat(_) => None,
    }
}

fn wrap<B: ReleaseBackend, const D: usize>(tensor: ReleaseTensor<B::InnerBackend>) -> Tensor<B, D> {
    Tensor::from_primitive(TensorPrimitive::Float(B::from_release(tensor)))
}
