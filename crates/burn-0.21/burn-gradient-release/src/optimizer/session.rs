//! Parameters armed together, from arming to the end of the step or of the micro-batch.

use std::{collections::HashMap, mem, sync::Arc};

use burn::{
    module::{AutodiffModule, ModuleMapper, ModuleVisitor, Param, ParamId},
    optim::GradientsParams,
    tensor::{Tensor, TensorPrimitive, backend::Backend},
};

use super::{
    gradients::Stop,
    step_plan::{Purpose, StepPlan},
    stepper::from_float,
};
use crate::{
    ReleaseBackend,
    error::ReleaseError,
    slot::Slot,
    tensor::parameter::Armed,
    tensor::{ReleaseTensor, Repr},
    util::progress::{Progress, Recomputed},
};

/// The armed parameters.
///
/// If it is dropped before it is finished, they become ordinary leaves, which any optimizer can
/// arm.
pub(super) struct Session<B: Backend> {
    pub(super) slots: HashMap<ParamId, Arc<Slot<B>>>,
    progress: Arc<Progress>,
    /// Plan of the step; `None` if gradients are only held.
    plan: Option<Arc<StepPlan<B>>>,
    /// Gradients of earlier micro-batches for parameters that have no slot.
    held: Sums,
}

impl<B: Backend> Session<B> {
    /// The parameters hold the `sums` until they are stepped.
    pub(super) fn new(
        armed: Vec<Armed<B>>,
        progress: Arc<Progress>,
        mut sums: Sums,
        plan: Option<Arc<StepPlan<B>>>,
    ) -> Self {
        if let Some(plan) = plan.as_ref().filter(|_| !sums.0.is_empty()) {
            plan.transform.note_sums();
        }
        let slots: HashMap<_, _> = armed
            .into_iter()
            .map(|armed| (armed.param(), armed.keep()))
            .collect();
        for (param, slot) in &slots {
            if let Some(sum) = sums.remove::<B, 1>(*param) {
                slot.hold(sum.into_primitive().tensor());
            }
        }
        Self {
            slots,
            progress,
            plan,
            held: sums,
        }
    }

    pub(super) fn plan(&self) -> Option<&Arc<StepPlan<B>>> {
        self.plan.as_ref()
    }

    /// Whether the gradients are only measured.
    pub(super) fn is_measuring(&self) -> bool {
        self.plan
            .as_ref()
            .is_some_and(|plan| plan.purpose == Purpose::MeasureNorm)
    }

    /// The error of a step that has stopped inside backward.
    pub(super) fn stopped(&self, path_of: impl FnOnce(ParamId) -> String) -> Option<ReleaseError> {
        Some(match self.plan.as_ref()?.transform.stop()? {
            Stop::NonFinite(param) => self.non_finite(path_of(param)),
            Stop::Refused(error) => error,
        })
    }

    /// The error of a step that stops at this parameter.
    pub(super) fn non_finite(&self, path: String) -> ReleaseError {
        ReleaseError::NonFinite {
            path,
            stepped: self.acted(),
            armed: self.armed(),
        }
    }

    pub(super) fn acted(&self) -> usize {
        self.progress.acted()
    }

    pub(super) fn recomputed(&self) -> Recomputed {
        self.progress.recomputed()
    }

    pub(super) fn armed(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn is_interrupted(&self) -> bool {
        self.progress.is_interrupted()
    }

    /// Ends the arming. Returns the sums of the gradients of earlier micro-batches.
    pub(super) fn withdraw(mut self) -> Sums {
        let mut sums = mem::take(&mut self.held);
        for (param, slot) in self.slots.drain() {
            if let Some(sum) = slot.withdraw() {
                sums.put_back(param, from_float::<B, 1>(sum));
            }
        }
        sums
    }

    /// A copy of the gradients that are held for a parameter, if they were not yet added to a new
    /// one.
    pub(super) fn still_held<const D: usize>(&self, param: ParamId) -> Option<Tensor<B, D>> {
        match self.slots.get(&param) {
            Some(slot) => slot.held().map(from_float),
            None => self.held.get(param),
        }
    }

    /// Takes the gradients held for a parameter that has no slot.
    pub(super) fn held<const D: usize>(&mut self, param: ParamId) -> Option<Tensor<B, D>> {
        self.held.remove(param)
    }
}

impl<B: Backend> Drop for Session<B> {
    fn drop(&mut self) {
        // Only marks the slots: a backend that has failed must not be called here.
        self.slots.values().for_each(|slot| slot.end());
    }
}

/// Gradients of earlier micro-batches, in the order in which they are to be added up.
#[derive(Default)]
pub(super) struct Sums(Vec<GradientsParams>);

impl Sums {
    pub(super) fn push(&mut self, grads: GradientsParams) {
        if !grads.is_empty() {
            self.0.push(grads);
        }
    }

    /// Puts back a sum that was [removed](Self::remove). Its rank may differ: Burn's container does
    /// not check it.
    fn put_back<B: Backend, const D: usize>(&mut self, param: ParamId, sum: Tensor<B, D>) {
        if self.0.is_empty() {
            self.0.push(GradientsParams::new());
        }
        self.0[0].register(param, sum);
    }

    /// The sum for each parameter of a model.
    pub(super) fn into_one<B: ReleaseBackend, M: AutodiffModule<B>>(
        self,
        model: &M,
    ) -> GradientsParams {
        let mut sums = GradientsParams::new();
        let grads = self.0.into_iter();
        grads.for_each(|grads| add::<B, M>(&mut sums, model, grads));
        sums
    }

    /// Takes the gradients that are added up first; all of them if only one set was given.
    pub(super) fn into_first(self) -> GradientsParams {
        self.0.into_iter().next().unwrap_or_default()
    }

    fn get<B: Backend, const D: usize>(&self, param: ParamId) -> Option<Tensor<B, D>> {
        let grads = self.0.iter();
        grads.fold(None, |held, grads| sum(held, grads.get(param)))
    }

    pub(super) fn remove<B: Backend, const D: usize>(
        &mut self,
        param: ParamId,
    ) -> Option<Tensor<B, D>> {
        let grads = self.0.iter_mut();
        grads.fold(None, |held, grads| sum(held, grads.remove(param)))
    }
}

pub(super) fn add<B: ReleaseBackend, M: AutodiffModule<B>>(
    sums: &mut GradientsParams,
    model: &M,
    grads: GradientsParams,
) {
    struct Add<'a> {
        grads: GradientsParams,
        sums: &'a mut GradientsParams,
    }

    impl<B: ReleaseBackend> ModuleVisitor<B> for Add<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
            let held = self.sums.remove::<B::InnerBackend, D>(param.id);
            let grad = self.grads.remove::<B::InnerBackend, D>(param.id);
            if let Some(sum) = sum(held, grad) {
                self.sums.register::<B::InnerBackend, D>(param.id, sum);
            }
        }
    }

    model.visit(&mut Add { grads, sums });
}

/// Adds a new gradient to the held one, in the order in which Burn's accumulator adds.
pub(super) fn sum<B: Backend, const D: usize>(
    held: Option<Tensor<B, D>>,
    grad: Option<Tensor<B, D>>,
) -> Option<Tensor<B, D>> {
    match (held, grad) {
        (Some(held), Some(grad)) => Some(held.add(grad)),
        (held, grad) => held.or(grad),
    }
}

/// Turns the parameters of a model whose session was cancelled into ordinary leaves. Earlier
/// forward passes stay known, in case the model is armed again before they run backward.
pub(super) fn disarm<B: ReleaseBackend, M: AutodiffModule<B>>(model: M) -> M {
    struct Disarm;

    impl<B: ReleaseBackend> ModuleMapper<B> for Disarm {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
            let (id, tensor, mapper) = param.consume();
            Param::from_mapped_value(id, map(tensor, disarmed), mapper)
        }
    }

    /// Forward passes that can still run backward find their leaf. If there are none, the leaf is
    /// replaced: Burn forgets in which graph a leaf is once a backward pass has visited it.
    fn disarmed<B: Backend>(tensor: ReleaseTensor<B>) -> ReleaseTensor<B> {
        match tensor.read().0 {
            Repr::Snapshot(snapshot) if !snapshot.is_on_tape() => {
                ReleaseTensor::plain(snapshot.into_ordinary_leaf())
            }
            other => ReleaseTensor(other),
        }
    }

    model.map(&mut Disarm)
}

/// The first error that `check` finds in a parameter that requires gradients.
pub(super) fn check_params<B: ReleaseBackend, M: AutodiffModule<B>>(
    model: &M,
    check: impl FnMut(ParamId, ReleaseTensor<B::InnerBackend>) -> Option<ReleaseError>,
) -> Result<(), ReleaseError> {
    struct Check<F> {
        check: F,
        error: Option<ReleaseError>,
    }

    impl<B, F> ModuleVisitor<B> for Check<F>
    where
        B: ReleaseBackend,
        F: FnMut(ParamId, ReleaseTensor<B::InnerBackend>) -> Option<ReleaseError>,
    {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
            if self.error.is_none() && param.is_require_grad() {
                let tensor = float(param.val()).expect("only float tensors require gradients");
                self.error = (self.check)(param.id, tensor);
            }
        }
    }

    let mut visitor = Check { check, error: None };
    model.visit(&mut visitor);
    visitor.error.map_or(Ok(()), Err)
}

/// Whether an optimizer or an accumulator waits for the gradient.
pub(super) fn is_awaited<B: ReleaseBackend, const D: usize>(tensor: &Tensor<B, D>) -> bool {
    let tensor = float(tensor.clone());
    let snapshot = tensor.and_then(|tensor: ReleaseTensor<B::InnerBackend>| tensor.snapshot());
    snapshot.is_some_and(|snapshot| snapshot.is_awaited())
}

/// Turns an armed parameter into an ordinary leaf; other tensors stay as they are.
pub(super) fn leaf<B: ReleaseBackend, const D: usize>(tensor: Tensor<B, D>) -> Tensor<B, D> {
    map(tensor, |tensor| match tensor.read().0 {
        Repr::Snapshot(snapshot) => ReleaseTensor::plain(snapshot.into_ordinary_leaf()),
        other => ReleaseTensor(other),
    })
}

fn map<B: ReleaseBackend, const D: usize>(
    tensor: Tensor<B, D>,
    map: impl FnOnce(ReleaseTensor<B::InnerBackend>) -> ReleaseTensor<B::InnerBackend>,
) -> Tensor<B, D> {
    match tensor.into_primitive() {
        TensorPrimitive::Float(tensor) => wrap(map(B::into_release(tensor))),
        quantized => Tensor::from_primitive(quantized),
    }
}

pub(super) fn float<B: ReleaseBackend, const D: usize>(
    tensor: Tensor<B, D>,
) -> Option<ReleaseTensor<B::InnerBackend>> {
    match tensor.into_primitive() {
        TensorPrimitive::Float(tensor) => Some(B::into_release(tensor)),
        TensorPrimitive::QFloat(_) => None,
    }
}

pub(super) fn wrap<B: ReleaseBackend, const D: usize>(
    tensor: ReleaseTensor<B::InnerBackend>,
) -> Tensor<B, D> {
    Tensor::from_primitive(TensorPrimitive::Float(B::from_release(tensor)))
}
