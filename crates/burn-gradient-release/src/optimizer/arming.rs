//! Arming: a slot for every parameter of a model that requires gradients.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use burn::{
    module::{AutodiffModule, ModuleMapper, ModuleVisitor, Param, ParamId},
    optim::{GradientsParams, LearningRate, SimpleOptimizer},
    tensor::{Device, Tensor, backend::Backend, ops::FloatTensor},
};

use super::{
    error::ReleaseError,
    session::{DepthHints, Session, float, wrap},
    stepper::Stepper,
};
use crate::{
    ReleaseBackend,
    fork::Scope,
    slot::{Action, Arming},
    tensor::{ReleaseTensor, Repr},
};

/// What the slots armed together are to do.
pub(super) trait Plan<B: ReleaseBackend> {
    fn action<const D: usize>(&self, param: ParamId) -> Action<B::InnerBackend>;
}

/// Steps the parameters.
pub(super) struct Step<'a, O, B>
where
    O: SimpleOptimizer<B::InnerBackend>,
    B: ReleaseBackend,
{
    pub(super) stepper: &'a Stepper<O, B>,
    pub(super) learning_rate: LearningRate,
}

impl<O, B> Plan<B> for Step<'_, O, B>
where
    O: SimpleOptimizer<B::InnerBackend> + 'static,
    B: ReleaseBackend,
{
    fn action<const D: usize>(&self, param: ParamId) -> Action<B::InnerBackend> {
        Action::Step(self.stepper.release::<D>(self.learning_rate, param))
    }
}

/// Holds the gradients.
pub(super) struct Hold;

impl<B: ReleaseBackend> Plan<B> for Hold {
    fn action<const D: usize>(&self, _param: ParamId) -> Action<B::InnerBackend> {
        Action::Hold
    }
}

/// Why a model cannot be armed.
///
/// `own` is the session that arming would replace.
pub(super) fn check_arm<B: ReleaseBackend, M: AutodiffModule<B>>(
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

/// Builds a session, parameter by parameter.
struct Preparation<'a, B: ReleaseBackend, P> {
    plan: &'a P,
    hints: &'a DepthHints,
    session: Session<B::InnerBackend>,
    /// One for all parameters of a device: on a GPU a tensor each would be work each.
    placeholder: Option<(Device<B>, FloatTensor<B::InnerBackend>)>,
}

impl<'a, B: ReleaseBackend, P: Plan<B>> Preparation<'a, B, P> {
    fn new(plan: &'a P, hints: &'a DepthHints, held: GradientsParams) -> Self {
        Self {
            plan,
            hints,
            session: Session {
                slots: HashMap::new(),
                progress: Arc::default(),
                held,
            },
            placeholder: None,
        }
    }

    fn placeholder(&mut self, device: &Device<B>) -> FloatTensor<B::InnerBackend> {
        match &self.placeholder {
            Some((of, placeholder)) if of == device => placeholder.clone(),
            _ => {
                let empty = Tensor::<B::InnerBackend, 1>::empty([1], device);
                let placeholder = empty.into_primitive().tensor();
                self.placeholder = Some((device.clone(), placeholder.clone()));
                placeholder
            }
        }
    }

    fn arming<const D: usize>(
        &mut self,
        param: ParamId,
        device: &Device<B>,
    ) -> Arming<B::InnerBackend> {
        let placeholder = self.placeholder(device);
        let held = self.session.held.remove::<B::InnerBackend, D>(param);
        Arming {
            param,
            placeholder,
            depth_hint: self.hints.get(&param).copied(),
            progress: self.session.progress.clone(),
            action: self.plan.action::<D>(param),
            held: held.map(|held| held.into_primitive().tensor()),
        }
    }
}

impl<B: ReleaseBackend, P: Plan<B>> ModuleMapper<B> for Preparation<'_, B, P> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        let (id, tensor, mapper) = param.consume();
        if !tensor.is_require_grad() {
            return Param::from_mapped_value(id, tensor, mapper);
        }
        let arming = self.arming::<D>(id, &tensor.device());
        let tensor: ReleaseTensor<B::InnerBackend> =
            float(tensor).expect("only float tensors require gradients");
        // The leaf stays: a copy of the model taken before goes on sharing it.
        let (slot, live) = arming.arm(tensor.into_untapped());
        self.session.slots.insert(id, slot);
        Param::from_mapped_value(id, wrap(ReleaseTensor(Repr::Live(live))), mapper)
    }
}

/// Arms a model. `held` are the sums of the gradients of earlier micro-batches.
pub(super) fn arm<B: ReleaseBackend, M: AutodiffModule<B>>(
    plan: &impl Plan<B>,
    hints: &DepthHints,
    held: GradientsParams,
    model: M,
) -> (Session<B::InnerBackend>, M) {
    let mut preparation = Preparation::new(plan, hints, held);
    let model = model.map(&mut preparation);
    (preparation.session, model)
}

/// The same for a model in the hands of an owner that gives a copy of it and can fork it.
pub(super) fn arm_by_fork<B: ReleaseBackend, M: AutodiffModule<B>>(
    plan: &impl Plan<B>,
    hints: &DepthHints,
    held: GradientsParams,
    copy: M,
    fork: impl FnOnce(),
) -> Result<Session<B::InnerBackend>, ReleaseError> {
    struct Name<'a, B: ReleaseBackend, P> {
        preparation: Preparation<'a, B, P>,
        scope: Scope<B::InnerBackend>,
        params: Vec<ParamId>,
    }

    impl<B: ReleaseBackend, P: Plan<B>> ModuleVisitor<B> for Name<'_, B, P> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
            if !param.is_require_grad() {
                return;
            }
            let arming = self.preparation.arming::<D>(param.id, &param.device());
            let leaf = float(param.val())
                .and_then(|tensor: ReleaseTensor<B::InnerBackend>| tensor.leaf_id())
                .expect("a parameter that requires gradients is a leaf");
            self.scope.push(leaf, arming);
            self.params.push(param.id);
        }
    }

    let mut name = Name {
        preparation: Preparation::new(plan, hints, held),
        scope: Scope::new(),
        params: Vec::new(),
    };
    copy.visit(&mut name);
    // A copy that lives on would keep the old weights alive during backward.
    drop(copy);
    let Name {
        preparation,
        scope,
        params,
    } = name;
    let mut session = preparation.session;
    let armed = scope.run(fork);
    session
        .slots
        .extend(armed.into_iter().map(|slot| (slot.param(), slot)));
    match params.iter().find(|id| !session.slots.contains_key(*id)) {
        Some(param) => Err(ReleaseError::NotForked { param: *param }),
        None => Ok(session),
    }
}
