//! Arming: a slot for every parameter of a model that requires gradients.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use burn::{
    module::{AutodiffModule, ModuleMapper, ModuleVisitor, Param, ParamId},
    optim::{GradientsParams, SimpleOptimizer},
    tensor::{Device, Tensor, backend::Backend, ops::FloatTensor},
};

use super::{
    mark::check_unmarked,
    session::{Session, check_params, float, wrap},
    step_plan::{Purpose, StepPlan, Stepping},
};
use crate::{
    ReleaseBackend,
    error::ReleaseError,
    fork::Scope,
    planner::trace::Tracer,
    slot::armed_set::ArmedSet,
    slot::reduction::InFlight,
    slot::{Action, Claim, Slot},
    subgraph::Origins,
    tape::AdTensor,
    tensor::parameter::{Armed, Arming, Site},
    tensor::{ReleaseTensor, Repr},
    util::progress::Progress,
};

/// The actions of the slots of one armed set.
pub(super) trait Actions<B: ReleaseBackend> {
    /// The tracer that splits forward passes into segments, if any.
    fn tracer(&self) -> Option<&Arc<Tracer>>;

    /// The queue that reduces gradients over the replicas, if there are any.
    fn in_flight(&self) -> Option<Arc<InFlight<B::InnerBackend>>>;

    fn action<const D: usize>(&self, param: ParamId) -> Action<B::InnerBackend>;
}

impl<O, B> Actions<B> for Arc<Stepping<O, B>>
where
    O: SimpleOptimizer<B::InnerBackend> + 'static,
    B: ReleaseBackend,
{
    fn tracer(&self) -> Option<&Arc<Tracer>> {
        self.plan.tracer.as_ref()
    }

    fn in_flight(&self) -> Option<Arc<InFlight<B::InnerBackend>>> {
        self.plan.in_flight()
    }

    fn action<const D: usize>(&self, param: ParamId) -> Action<B::InnerBackend> {
        match self.plan.purpose {
            _ if self.plan.is_frozen(param) => Action::Drop,
            Purpose::Step => Action::Step(self.release::<D>(param)),
            Purpose::MeasureNorm => Action::Inspect(self.measure::<D>(param)),
        }
    }
}

/// Actions that hold the gradients, for an accumulator.
pub(super) struct Hold<'a>(pub(super) Option<&'a Arc<Tracer>>);

impl<B: ReleaseBackend> Actions<B> for Hold<'_> {
    fn tracer(&self) -> Option<&Arc<Tracer>> {
        self.0
    }

    fn in_flight(&self) -> Option<Arc<InFlight<B::InnerBackend>>> {
        None
    }

    fn action<const D: usize>(&self, _param: ParamId) -> Action<B::InnerBackend> {
        Action::Hold
    }
}

/// Checks that the parameters of a model can be armed.
///
/// `own` is the session that arming would replace.
pub(super) fn check_arm<B: ReleaseBackend, M: AutodiffModule<B>>(
    own: Option<&Session<B::InnerBackend>>,
    model: &M,
) -> Result<(), ReleaseError> {
    let mut params = HashSet::new();
    let mut leaves = HashMap::new();
    check_params::<B, M>(model, |param, tensor| {
        if !params.insert(param) {
            return Some(ReleaseError::DuplicateParam { param });
        }
        let first = leaves.insert(tensor.leaf_id()?, param)?;
        let second = param;
        Some(ReleaseError::SharedTensor { first, second })
    })?;
    check_unmarked::<B, M>(model)?;
    check_own(own, model)
}

/// Checks that no session but `own` has armed a parameter.
pub(super) fn check_own<B: ReleaseBackend, M: AutodiffModule<B>>(
    own: Option<&Session<B::InnerBackend>>,
    model: &M,
) -> Result<(), ReleaseError> {
    check_params::<B, M>(model, |param, tensor| {
        let slot = tensor.snapshot()?.slot()?;
        let own = own.and_then(|session| session.slots.get(&param));
        match own {
            Some(own) if Arc::ptr_eq(own, &slot) => None,
            _ => check_foreign(&slot),
        }
    })
}

/// The error for a parameter that another session has armed.
pub(super) fn check_foreign<B: Backend>(slot: &Slot<B>) -> Option<ReleaseError> {
    let param = slot.param();
    match slot.claim() {
        Claim::Free => None,
        Claim::Open => Some(ReleaseError::ArmedElsewhere { param }),
        Claim::Abandoned => Some(ReleaseError::Abandoned { param }),
    }
}

/// The slot that the tensor of a parameter was read from, if it was armed.
pub(super) fn slot_of<B: ReleaseBackend, const D: usize>(
    tensor: Tensor<B, D>,
) -> Option<Arc<Slot<B::InnerBackend>>> {
    float(tensor)?.snapshot()?.slot()
}

/// Makes the armings of a model, parameter by parameter.
struct Preparation<'a, B: ReleaseBackend, A> {
    actions: &'a A,
    progress: Arc<Progress>,
    in_flight: Option<Arc<InFlight<B::InnerBackend>>>,
    armed_set: Arc<ArmedSet<B::InnerBackend>>,
    origins: Origins<B::InnerBackend>,
    /// Shared by all parameters of a device: on a GPU each tensor costs work.
    placeholder: Option<(Device<B>, FloatTensor<B::InnerBackend>)>,
}

impl<'a, B: ReleaseBackend, A: Actions<B>> Preparation<'a, B, A> {
    fn new(actions: &'a A) -> Self {
        let armed_set = Arc::new(ArmedSet::default());
        if let Some(tracer) = actions.tracer() {
            tracer.begin();
        }
        Self {
            actions,
            progress: Arc::default(),
            in_flight: actions.in_flight(),
            origins: Origins::of(armed_set.clone()),
            armed_set,
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

    /// Makes the arming of a parameter. Also returns its leaf.
    fn arming<const D: usize>(
        &mut self,
        param: ParamId,
        tensor: Tensor<B, D>,
    ) -> (Arming<B::InnerBackend>, AdTensor<B::InnerBackend>) {
        let device = tensor.device();
        let tensor: ReleaseTensor<B::InnerBackend> =
            float(tensor).expect("only float tensors require gradients");
        let pending = tensor
            .snapshot()
            .and_then(|snapshot| snapshot.pending_site());
        // The leaf stays: earlier copies of the model still share it.
        let leaf = tensor.into_autodiff();
        let tracer = self.actions.tracer().cloned();
        let site = match pending {
            // Forward passes that have run keep the tracer that they had.
            Some(site) => Site { tracer, ..site },
            None => {
                let placeholder = self.placeholder(&device);
                let (armed_set, origins) = (&self.armed_set, self.origins.clone());
                Site::new(&leaf, placeholder, armed_set, origins, tracer)
            }
        };
        let arming = Arming {
            param,
            site,
            progress: self.progress.clone(),
            in_flight: self.in_flight.clone(),
            action: self.actions.action::<D>(param),
        };
        (arming, leaf)
    }
}

pub(super) struct ArmedModel<B: Backend> {
    pub(super) armed: Vec<Armed<B>>,
    pub(super) progress: Arc<Progress>,
}

pub(super) fn arm<B: ReleaseBackend, M: AutodiffModule<B>>(
    actions: &impl Actions<B>,
    model: M,
) -> (ArmedModel<B::InnerBackend>, M) {
    struct Arm<'a, B: ReleaseBackend, A> {
        preparation: Preparation<'a, B, A>,
        armed: Vec<Armed<B::InnerBackend>>,
    }

    impl<B: ReleaseBackend, A: Actions<B>> ModuleMapper<B> for Arm<'_, B, A> {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
            let (id, tensor, mapper) = param.consume();
            if !tensor.is_require_grad() {
                return Param::from_mapped_value(id, tensor, mapper);
            }
            let (arming, leaf) = self.preparation.arming::<D>(id, tensor);
            let (armed, live) = arming.arm(leaf);
            self.armed.push(armed);
            Param::from_mapped_value(id, wrap(ReleaseTensor(Repr::Live(live))), mapper)
        }
    }

    let mut arm = Arm {
        preparation: Preparation::new(actions),
        armed: Vec::new(),
    };
    let model = model.map(&mut arm);
    let armed = ArmedModel {
        armed: arm.armed,
        progress: arm.preparation.progress,
    };
    (armed, model)
}

/// Arms a model whose owner hands out a copy of it and can fork it.
pub(super) fn arm_by_fork<B: ReleaseBackend, M: AutodiffModule<B>>(
    actions: &impl Actions<B>,
    copy: M,
    fork: impl FnOnce(),
) -> Result<ArmedModel<B::InnerBackend>, ReleaseError> {
    struct Name<'a, B: ReleaseBackend, A> {
        preparation: Preparation<'a, B, A>,
        scope: Scope<B::InnerBackend>,
        params: Vec<ParamId>,
    }

    impl<B: ReleaseBackend, A: Actions<B>> ModuleVisitor<B> for Name<'_, B, A> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
            if !param.is_require_grad() {
                return;
            }
            let (arming, leaf) = self.preparation.arming::<D>(param.id, param.val());
            self.scope.push(leaf.node.id, arming);
            self.params.push(param.id);
        }
    }

    let mut name = Name {
        preparation: Preparation::new(actions),
        scope: Scope::default(),
        params: Vec::new(),
    };
    copy.visit(&mut name);
    // A copy would keep the old weights alive during backward.
    drop(copy);
    let armed = name.scope.run(fork);
    let found: HashSet<_> = armed.iter().map(Armed::param).collect();
    match name.params.iter().find(|id| !found.contains(*id)) {
        Some(param) => Err(ReleaseError::NotForked { param: *param }),
        None => Ok(ArmedModel {
            armed,
            progress: name.preparation.progress,
        }),
    }
}

impl<B: Backend> ArmedModel<B> {
    /// The session of the armed model, which replaces the previous one.
    pub(super) fn replace(
        self,
        before: Option<Session<B>>,
        grads: GradientsParams,
        plan: Option<Arc<StepPlan<B>>>,
    ) -> Session<B> {
        let mut sums = before.map(Session::withdraw).unwrap_or_default();
        sums.push(grads);
        Session::new(self.armed, self.progress, sums, plan)
    }
}
