//! Checks of a model before anything is changed.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use burn::Tensor;
use burn::backend::autodiff::NodeId;
use burn::backend::{DispatchTensor, TensorMetadata};
use burn::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::module::{Module, Param, ParamId};
use burn::optim::{GradientsParams, ModuleOptimizer, OptimizerRecord};
use burn::tensor::{DType, Device, Shape};

use super::one_param::{Ask, ask, may_refuse};
use crate::backend::reading_waits;
use crate::error::ReleaseError;
use crate::gradients::Answer;
use crate::parameter::{Found, Holder, Released, find};
use crate::path::{AnyParam, Path, PathVisitor, WithPaths, path_text};
use crate::recompute::{Mode, mode};
use crate::session::{Session, Slot, some_are_armed};
use crate::tape::{Holds, is_computed_from_placeholder, is_left, is_placeholder, node_of};
use crate::wide::is_half;

/// The float parameters of a model.
#[derive(Default)]
pub(super) struct Survey {
    /// In the order of the model's fields.
    pub(super) params: Vec<Surveyed>,
    /// The armed ones, by the ids that they have now.
    pub(super) found: HashMap<ParamId, Found>,
    /// Whether a parameter has another reparameterization, such as LoRA's, which `materialize`
    /// would merge.
    pub(super) has_adapters: bool,
    /// The indices of parameters.
    places: HashMap<ParamId, usize>,
    /// Those that have a slot, in the order of the visit.
    with_slot: Vec<ParamId>,
    duplicate: Option<ReleaseError>,
}

/// A parameter of a model.
pub(super) struct Surveyed {
    pub(super) param: AnyParam,
    /// The node of its base; `None` on an unknown backend.
    leaf: Option<NodeId>,
    device: Device,
    dtype: DType,
    ask: Ask,
    is_distributed: bool,
    /// The parameter has another reparameterization, which leaves no room for ours.
    pub(super) is_adapted: bool,
    /// Dropped when the survey is complete: a weight with a second owner is not stepped in place.
    base: Option<DispatchTensor>,
    holds: Holds,
}

/// What the base of a parameter is, which may be armed.
fn holds(base: &DispatchTensor, found: Option<&Found>) -> Holds {
    match found {
        // A copy that was built anew may have taken the weight.
        Some(found) if node_of(base) == Some(found.slot.leaf_id()) => Holds::Placeholder,
        Some(found) if found.has_ended() => Holds::Weight,
        Some(_) => Holds::of_armed(base),
        None if is_placeholder(base) => Holds::Placeholder,
        // On a GPU, any NaN looks like what was computed from a placeholder.
        None if !reading_waits(base) && is_computed_from_placeholder(base) => Holds::Computed,
        None => Holds::Weight,
    }
}

impl Survey {
    pub(super) fn of<M: Module>(model: &M) -> Self {
        let mut survey = Self::default();
        let found = find(model, &mut WithPaths::new(&mut survey));
        // A record has ids of its own, and parameters keep their slots when it is loaded.
        survey.found = survey.with_slot.drain(..).zip(found).collect();
        let some_are_armed = some_are_armed();
        for surveyed in &mut survey.params {
            let found = survey.found.get(&surveyed.param.id);
            // Copies have placeholders for longer than a parameter is armed.
            let is_checked =
                |base: &DispatchTensor| some_are_armed || found.is_some() || !reading_waits(base);
            if let Some(base) = surveyed.base.take().filter(is_checked) {
                surveyed.holds = holds(&base, found);
            }
        }
        survey
    }

    /// The parameters that require gradients.
    pub(super) fn trained(&self) -> impl Iterator<Item = &Surveyed> {
        self.params
            .iter()
            .filter(|surveyed| surveyed.param.is_trained)
    }

    /// The slot of a parameter of the model itself, unless it was loaded under another id since: sums
    /// are kept by id, as Burn's.
    pub(super) fn own_slot(&self, id: ParamId) -> Option<&Arc<Slot>> {
        let found = self.found.get(&id)?;
        (!found.is_copy() && found.id == id).then_some(&found.slot)
    }

    /// Whether the model has sums of earlier micro-batches, also from an optimizer that is gone.
    pub(super) fn has_sums(&self) -> bool {
        let has_sum = |id: &ParamId| self.own_slot(*id).is_some_and(|slot| slot.has_sum());
        self.found.keys().any(has_sum) && !self.was_interrupted()
    }

    /// The slots of parameters that were loaded under another id.
    pub(super) fn renamed(&self) -> HashSet<*const Slot> {
        let found = self.found.iter();
        let renamed = found.filter(|(id, found)| found.id != **id && !found.is_copy());
        renamed.map(|(_, found)| Arc::as_ptr(&found.slot)).collect()
    }

    /// Whether a step over the model was interrupted. Such a model is refused until weights are loaded
    /// into it.
    pub(super) fn was_interrupted(&self) -> bool {
        let mut found = self.found.values();
        found.any(|found| found.is_open() && found.is_half())
    }

    pub(super) fn ids(&self) -> Vec<ParamId> {
        let ids = self.params.iter().map(|surveyed| surveyed.param.id);
        ids.collect()
    }

    pub(super) fn param(&self, id: ParamId) -> Option<&Surveyed> {
        Some(&self.params[*self.places.get(&id)?])
    }

    /// The path of a parameter; its id if the model does not have it.
    pub(super) fn path_of(&self, id: ParamId) -> String {
        self.param(id)
            .map_or_else(|| id.to_string(), |surveyed| surveyed.path())
    }

    /// Whether a parameter has a placeholder, and has lost the slot of its weight.
    pub(super) fn is_bare(&self, surveyed: &Surveyed) -> bool {
        let found = self.found.get(&surveyed.param.id);
        surveyed.holds == Holds::Placeholder && found.is_none_or(|found| found.has_ended())
    }

    /// Checks that the model can be armed.
    pub(super) fn check<M: Module>(
        &self,
        session: &Session,
        model: &M,
    ) -> Result<(), ReleaseError> {
        check_outside_of_scopes()?;
        self.check_duplicate()?;
        self.check_computed()?;
        self.check_bare(|_| false)?;
        self.check_abandoned(session)?;
        self.check_sums(session)?;
        self.check_elsewhere(session)?;
        for surveyed in self.trained() {
            if surveyed.is_distributed {
                return Err(ReleaseError::Distributed {
                    path: surveyed.path(),
                });
            }
            if surveyed.leaf.is_none() {
                return Err(ReleaseError::Backend {
                    path: surveyed.path(),
                    device: format!("{:?}", surveyed.device),
                });
            }
            let found = self.found.get(&surveyed.param.id);
            let is_copy = found.is_some_and(|found| matches!(found.holder, Holder::Copy(_)));
            if self.has_adapters && is_copy {
                return Err(ReleaseError::CopyWithAdapters {
                    path: surveyed.path(),
                });
            }
        }
        self.check_lost(session, model)
    }

    /// Checks that no parameter was computed from placeholders.
    pub(super) fn check_computed(&self) -> Result<(), ReleaseError> {
        self.check_placeholders(|surveyed| surveyed.holds == Holds::Computed)
    }

    /// Checks that no parameter has lost the slot of its weight, but for those that are known.
    pub(super) fn check_bare(
        &self,
        is_known: impl Fn(&ParamId) -> bool,
    ) -> Result<(), ReleaseError> {
        self.check_placeholders(|surveyed| self.is_bare(surveyed) && !is_known(&surveyed.param.id))
    }

    /// Checks that nothing was computed from a part of the placeholder of a parameter that has lost its
    /// slot: one element does not tell.
    pub(super) fn check_lost<M: Module>(
        &self,
        session: &Session,
        model: &M,
    ) -> Result<(), ReleaseError> {
        struct Lost {
            ids: HashSet<ParamId>,
            computed: Option<String>,
        }
        impl PathVisitor for Lost {
            fn visit<const D: usize>(&mut self, path: &Path, param: &Param<Tensor<D>>) {
                if !self.ids.contains(&param.id) {
                    return;
                }
                let base = param.base().into_dispatch();
                // On a GPU, any NaN looks like what was computed from a placeholder.
                let tells = !base.dtype().is_float() || !reading_waits(&base);
                if tells && Holds::of_armed(&base) == Holds::Computed {
                    self.computed.get_or_insert_with(|| path_text(path));
                }
            }
        }
        let is_lost = |id: &&ParamId| !self.found.contains_key(*id);
        let ids: HashSet<_> = session.slots().keys().filter(is_lost).copied().collect();
        if ids.is_empty() {
            return Ok(());
        }
        let computed = None;
        let mut lost = Lost { ids, computed };
        model.visit(&mut WithPaths::new(&mut lost));
        lost.computed
            .map_or(Ok(()), |path| Err(ReleaseError::Placeholder { path }))
    }

    fn check_placeholders(&self, is_wrong: impl Fn(&Surveyed) -> bool) -> Result<(), ReleaseError> {
        match self.params.iter().find(|surveyed| is_wrong(surveyed)) {
            None => Ok(()),
            Some(surveyed) => Err(ReleaseError::Placeholder {
                path: surveyed.path(),
            }),
        }
    }

    /// Checks that no other optimizer or accumulator has armed a parameter.
    pub(super) fn check_elsewhere(&self, session: &Session) -> Result<(), ReleaseError> {
        let is_elsewhere =
            |found: &&Found| found.is_armed && !found.is_copy() && !is_own(session, found);
        match self.found.values().find(is_elsewhere) {
            None => Ok(()),
            Some(found) => Err(ReleaseError::ArmedElsewhere {
                path: path_text(&found.slot.path()),
            }),
        }
    }

    /// Checks that no two parameters of the model have one id.
    pub(super) fn check_duplicate(&self) -> Result<(), ReleaseError> {
        self.duplicate.clone().map_or(Ok(()), Err)
    }

    /// Checks that no sums of earlier micro-batches are with another model.
    pub(super) fn check_sums(&self, session: &Session) -> Result<(), ReleaseError> {
        self.check_own(session, |slot| slot.has_sum())
    }

    /// Whether an accumulator that has armed the model is known to have added up its gradients as plain
    /// Burn does.
    pub(super) fn has_plain_sums(&self) -> bool {
        let mut armed = self.found.values();
        armed.all(|found| !found.is_open() || found.slot.has_plain_sums())
    }

    /// Checks that no parameter was left by an optimizer in the middle of a step.
    pub(super) fn check_abandoned(&self, session: &Session) -> Result<(), ReleaseError> {
        let is_abandoned = |surveyed: &&Surveyed| {
            let found = self.found.get(&surveyed.param.id);
            // Unless a weight was loaded since.
            found.is_some_and(|found| {
                found.is_half()
                    && !found.is_armed
                    && surveyed.holds == Holds::Placeholder
                    && !is_own(session, found)
            })
        };
        match self.params.iter().find(is_abandoned) {
            None => Ok(()),
            Some(surveyed) => Err(ReleaseError::Abandoned {
                path: surveyed.path(),
            }),
        }
    }

    pub(super) fn check_rates(&self, rates: &ModuleLearningRate) -> Result<(), ReleaseError> {
        for surveyed in self.trained() {
            let path = surveyed.path();
            let rate = rates.lr_from_param(surveyed.param.id, Some(&path));
            // A rate of infinity makes NaN of a weight whose gradient is zero.
            if !rate.is_finite() || rate < 0.0 {
                return Err(ReleaseError::OutOfRange {
                    setting: format!("the learning rate of {path}"),
                    value: rate,
                });
            }
        }
        Ok(())
    }

    /// Checks that the gradients of the model can be unscaled.
    pub(super) fn check_precision(&self) -> Result<(), ReleaseError> {
        let is_half = |surveyed: &&Surveyed| surveyed.dtype == DType::F16;
        match self.trained().find(is_half) {
            Some(surveyed) => Err(ReleaseError::HalfPrecision {
                path: surveyed.path(),
            }),
            None => Ok(()),
        }
    }

    /// Checks that the optimizer steps every parameter, and takes the gradients in f32 that it is given
    /// of weights in half precision. `asked` are the parameters and types of which that is known, for each
    /// device.
    pub(super) fn check_optimizer(
        &self,
        optim: &ModuleOptimizer,
        gives_f32: bool,
        asked: &mut Vec<(Device, HashSet<(ParamId, DType)>)>,
    ) -> Result<(), ReleaseError> {
        let is_new = |surveyed: &&Surveyed| {
            let known = asked.iter().find(|known| known.0 == surveyed.device);
            known.is_none_or(|(_, known)| !known.contains(&(surveyed.param.id, surveyed.dtype)))
        };
        let new: Vec<_> = self.trained().filter(is_new).collect();
        if new.is_empty() {
            return Ok(());
        }
        let has_bf16 = |surveyed: &Surveyed| surveyed.device.supports_dtype(DType::BF16);
        let params = new.iter().map(|it| (&it.param, has_bf16(it)));
        let refusing = may_refuse(optim, params);
        let mut stateless = stateless(optim);
        let mut optim = optim.clone();
        for surveyed in new {
            let Surveyed {
                param,
                device,
                dtype,
                ask,
                ..
            } = surveyed;
            let (path, needs_f32) = (surveyed.path(), gives_f32 && is_half(*dtype));
            let answer = match (refusing.contains(&param.id), needs_f32) {
                (true, _) => {
                    let asked = |optim| ask(optim, param, param.shape.clone(), device, *dtype);
                    // Burn moves the states to the device first, which may not have their type.
                    match asked(&mut stateless) {
                        refused if refused.refusal.is_some() => refused,
                        _ => asked(&mut optim),
                    }
                }
                // Not the others: their step may draw random numbers.
                (false, false) => continue,
                (false, true) => surveyed.ask_of_one(&mut stateless),
            };
            if let Some(reason) = answer.refusal {
                return Err(ReleaseError::NotSteppable { path, reason });
            }
            if needs_f32 && !answer.takes_f32 {
                return Err(ReleaseError::F32Gradients { path });
            }
        }
        for surveyed in self.trained() {
            let device = asked.iter().position(|known| known.0 == surveyed.device);
            let device = device.unwrap_or_else(|| {
                asked.push((surveyed.device.clone(), HashSet::new()));
                asked.len() - 1
            });
            asked[device].1.insert((surveyed.param.id, surveyed.dtype));
        }
        Ok(())
    }

    /// The parameters in half precision whose gradients are in f32, and whose optimizers compute in
    /// the type of the weight: Burn's would panic in the middle of the step.
    pub(super) fn without_f32(
        &self,
        optim: &ModuleOptimizer,
        grads: &GradientsParams,
    ) -> Vec<ParamId> {
        let is_wide = |surveyed: &&Surveyed| {
            let grad = surveyed.param.grad(grads);
            is_half(surveyed.dtype) && grad.is_some_and(|grad| !is_half(grad.dtype()))
        };
        let mut wide = self.params.iter().filter(is_wide).peekable();
        if wide.peek().is_none() {
            return Vec::new();
        }
        let mut stateless = stateless(optim);
        let without = wide.filter(|surveyed| !surveyed.ask_of_one(&mut stateless).takes_f32);
        without.map(|surveyed| surveyed.param.id).collect()
    }

    /// Checks that the model is the one that was armed: it must hold every slot that `matters`.
    pub(super) fn check_own(
        &self,
        session: &Session,
        matters: impl Fn(&Slot) -> bool,
    ) -> Result<(), ReleaseError> {
        for (id, slot) in session.slots().iter() {
            if !matters(slot) {
                continue;
            }
            let path = path_text(&slot.path());
            match self
                .found
                .get(id)
                .filter(|found| Arc::ptr_eq(slot, &found.slot))
            {
                None if self.param(*id).is_some_and(|param| self.is_bare(param)) => {}
                None => return Err(ReleaseError::WrongModel { path }),
                Some(found) if found.is_copy() => return Err(ReleaseError::Copy { path }),
                Some(_) => {}
            }
        }
        Ok(())
    }
}

pub(super) fn check_outside_of_scopes() -> Result<(), ReleaseError> {
    match mode() {
        Mode::Tape => Ok(()),
        Mode::Recording | Mode::Replaying => Err(ReleaseError::InScope),
    }
}

/// The settings and the groups of an optimizer, and none of its states.
pub(crate) fn stateless(optim: &ModuleOptimizer) -> ModuleOptimizer {
    optim.clone().load_record(OptimizerRecord::default())
}

/// Whether a slot that was found in a model is of a session.
pub(super) fn is_own(session: &Session, found: &Found) -> bool {
    let slots = session.slots();
    let own = slots.get(&found.id);
    own.is_some_and(|own| Arc::ptr_eq(own, &found.slot))
}

impl Surveyed {
    pub(super) fn path(&self) -> String {
        path_text(&self.param.path)
    }

    /// Asks an optimizer without states, of one element of the parameter.
    fn ask_of_one(&self, stateless: &mut ModuleOptimizer) -> Answer {
        let one = Shape::from(vec![1; self.param.shape.num_dims()]);
        (self.ask)(stateless, &self.param, one, &self.device, self.dtype)
    }

    /// Whether something was loaded into the base, or computed from it, while the parameter has
    /// this slot.
    pub(super) fn is_replaced(&self, slot: &Slot) -> bool {
        self.leaf != Some(slot.leaf_id()) && self.holds != Holds::Placeholder
    }

    /// Checks that a gradient is not what an earlier backward has left of one that it took.
    pub(super) fn check_gradient(&self, grad: Option<&DispatchTensor>) -> Result<(), ReleaseError> {
        match grad.is_some_and(|grad| is_left(&self.param.shape, grad)) {
            false => Ok(()),
            true => Err(ReleaseError::Taken { path: self.path() }),
        }
    }
}

impl PathVisitor for Survey {
    fn visit<const D: usize>(&mut self, path: &Path, param: &Param<Tensor<D>>) {
        let is_trained = param.is_require_grad();
        let place = self.params.len();
        match self.places.entry(param.id) {
            Entry::Vacant(entry) => drop(entry.insert(place)),
            // Burn has one gradient for both, also if it trains one of them only.
            Entry::Occupied(entry) => {
                let before = &self.params[*entry.get()];
                if is_trained || before.param.is_trained {
                    let (first, second) = (before.path(), path_text(path));
                    self.duplicate
                        .get_or_insert(ReleaseError::DuplicateParam { first, second });
                }
            }
        }
        let base = param.base().into_dispatch();
        self.params.push(Surveyed {
            param: AnyParam::new(path, param),
            leaf: node_of(&base),
            device: param.lazy_device(),
            dtype: base.dtype(),
            ask: ask::<D>,
            is_distributed: is_trained && param.is_distributed(),
            is_adapted: false,
            base: Some(base),
            holds: Holds::Weight,
        });
    }

    fn enter(&mut self, _: &Path, name: &str, container: &str) {
        let Some(last) = self.params.last_mut() else {
            return;
        };
        match (container, name) {
            ("Reparameterization", Released::CONTAINER) => self.with_slot.push(last.param.id),
            ("Reparameterization", _) => {
                self.has_adapters = true;
                last.is_adapted = true;
            }
            _ => {}
        }
    }
}
