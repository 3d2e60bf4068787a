//! Checks of a model before anything is changed.

use std::collections::HashMap;
use std::sync::Arc;

use burn::Tensor;
use burn::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::module::{Module, Param, ParamId};
use burn::tensor::DType;

use crate::armed_slot::ArmedSlot;
use crate::backend::reading_waits;
use crate::error::ReleaseError;
use crate::parameter::{Found, Released, find};
use crate::path::{Path, PathVisitor, WithPaths, path_text};
use crate::session::Session;
use crate::slot::{Rearm, some_are_armed};
use crate::tape::{is_computed_from_placeholder, is_left, is_placeholder, is_replaced, leaf_of};

/// The parameters of a model.
pub(super) struct Survey {
    /// The parameters that require gradients, in the order of the model's fields.
    pub(super) params: Vec<Surveyed>,
    pub(super) found: HashMap<ParamId, Found>,
    /// Parameters that have a placeholder, and have lost the slot of their weight.
    bare: HashMap<ParamId, Path>,
    /// Parameters that were computed from placeholders.
    computed: HashMap<ParamId, Path>,
    /// Whether a parameter has another reparameterization, such as LoRA's, which `materialize`
    /// would merge.
    pub(super) has_adapters: bool,
    places: HashMap<ParamId, usize>,
    /// The index in `params` of the parameter visited last.
    last: Option<usize>,
    duplicate: Option<ReleaseError>,
}

/// A parameter of a model.
pub(super) struct Surveyed {
    pub(super) id: ParamId,
    pub(super) path: Path,
    /// The node of its base; `None` on an unknown backend.
    pub(super) leaf: Option<u64>,
    pub(super) device: String,
    pub(super) dtype: DType,
    pub(super) is_distributed: bool,
    /// The parameter has another reparameterization, which leaves no room for ours.
    pub(super) is_adapted: bool,
}

impl Survey {
    pub(super) fn of<M: Module>(model: &M) -> Self {
        let mut survey = Self {
            params: Vec::new(),
            found: HashMap::new(),
            bare: HashMap::new(),
            computed: HashMap::new(),
            has_adapters: false,
            places: HashMap::new(),
            last: None,
            duplicate: None,
        };
        let found = find(model, &mut WithPaths::new(&mut survey));
        survey.found = found.into_iter().map(|found| (found.id, found)).collect();
        if some_are_armed() {
            model.visit(&mut WithPaths::new(&mut Placeholders(&mut survey)));
        }
        survey
    }

    /// Whether a parameter has a placeholder, and has lost the slot of its weight.
    pub(super) fn is_bare(&self, param: ParamId) -> bool {
        self.bare.contains_key(&param)
    }

    /// Checks that the model can be armed.
    pub(super) fn check(&self, session: &Session) -> Result<(), ReleaseError> {
        if let Some(duplicate) = &self.duplicate {
            return Err(duplicate.clone());
        }
        self.check_computed()?;
        self.check_bare(|_| false)?;
        self.check_abandoned(session)?;
        self.check_sums(session)?;
        self.check_elsewhere(session)?;
        for param in &self.params {
            let path = || path_text(&param.path);
            if param.is_distributed {
                return Err(ReleaseError::Distributed { path: path() });
            }
            if param.leaf.is_none() {
                return Err(ReleaseError::Backend {
                    path: path(),
                    device: param.device.clone(),
                });
            }
            match self.found.get(&param.id) {
                Some(found) if found.is_copy && self.has_adapters => {
                    return Err(ReleaseError::CopyWithAdapters { path: path() });
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Checks that no parameter was computed from placeholders.
    pub(super) fn check_computed(&self) -> Result<(), ReleaseError> {
        match self.computed.values().next() {
            None => Ok(()),
            Some(path) => Err(ReleaseError::Placeholder {
                path: path_text(path),
            }),
        }
    }

    /// Checks that no parameter has lost the slot of its weight, but for those that are known.
    pub(super) fn check_bare(
        &self,
        is_known: impl Fn(&ParamId) -> bool,
    ) -> Result<(), ReleaseError> {
        match self.bare.iter().find(|(id, _)| !is_known(id)) {
            None => Ok(()),
            Some((_, path)) => Err(ReleaseError::Placeholder {
                path: path_text(path),
            }),
        }
    }

    /// Checks that no other optimizer or accumulator has armed a parameter.
    pub(super) fn check_elsewhere(&self, session: &Session) -> Result<(), ReleaseError> {
        let is_elsewhere =
            |found: &&Found| found.is_armed && !found.is_copy && !is_own(session, found);
        match self.found.values().find(is_elsewhere) {
            None => Ok(()),
            Some(found) => Err(ReleaseError::ArmedElsewhere {
                path: path_text(found.slot.path()),
            }),
        }
    }

    /// Checks that no sums of earlier micro-batches are with another model.
    pub(super) fn check_sums(&self, session: &Session) -> Result<(), ReleaseError> {
        self.check_own(session, |slot| slot.has_sum())
    }

    /// Checks that no parameter was left by an optimizer in the middle of a step.
    pub(super) fn check_abandoned(&self, session: &Session) -> Result<(), ReleaseError> {
        let is_abandoned = |param: &&Surveyed| {
            let found = self.found.get(&param.id).filter(|found| !found.is_copy);
            // A weight that was loaded since has another leaf.
            found.is_some_and(|found| {
                !found.is_armed
                    && param.leaf == Some(found.slot.leaf_id())
                    && found.slot.is_stepped()
                    && !is_own(session, found)
            })
        };
        match self.params.iter().find(is_abandoned) {
            None => Ok(()),
            Some(param) => Err(ReleaseError::Abandoned {
                path: path_text(&param.path),
            }),
        }
    }

    /// Checks the learning rate of each parameter.
    pub(super) fn check_rates(&self, rates: &ModuleLearningRate) -> Result<(), ReleaseError> {
        for param in &self.params {
            let path = path_text(&param.path);
            let rate = rates.lr_from_param(param.id, Some(&path));
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
        let mut params = self.params.iter();
        match params.find(|param| param.dtype == DType::F16) {
            Some(param) => Err(ReleaseError::HalfPrecision {
                path: path_text(&param.path),
            }),
            None => Ok(()),
        }
    }

    /// Checks that a gradient is not what an earlier backward has left of one that it took.
    pub(super) fn check_gradient<const D: usize>(
        &self,
        param: &Param<Tensor<D>>,
        grad: Option<Tensor<D>>,
    ) -> Result<(), ReleaseError> {
        match grad.is_some_and(|grad| is_left(param.base().dims(), grad)) {
            false => Ok(()),
            true => Err(ReleaseError::Taken {
                path: self.path_of(param.id),
            }),
        }
    }

    fn path_of(&self, param: ParamId) -> String {
        let place = self.places.get(&param);
        place.map_or_else(
            || format!("parameter {param}"),
            |place| path_text(&self.params[*place].path),
        )
    }

    /// Checks that the model is the one that was armed: it must hold every slot that `matters`.
    pub(super) fn check_own(
        &self,
        session: &Session,
        matters: impl Fn(&dyn ArmedSlot) -> bool,
    ) -> Result<(), ReleaseError> {
        for (id, slot) in session.slots().iter() {
            if !matters(slot.as_ref()) {
                continue;
            }
            let path = path_text(slot.path());
            match self
                .found
                .get(id)
                .filter(|found| is_same(slot, &found.slot))
            {
                None if self.is_bare(*id) => {}
                None => return Err(ReleaseError::WrongModel { path }),
                Some(found) if found.is_copy => return Err(ReleaseError::Copy { path }),
                Some(_) => {}
            }
        }
        Ok(())
    }
}

/// Whether a slot of a session is the one that was found in a model.
pub(super) fn is_same(own: &Arc<dyn ArmedSlot>, found: &Arc<dyn Rearm>) -> bool {
    std::ptr::addr_eq(Arc::as_ptr(own), Arc::as_ptr(found))
}

/// Whether a slot that was found in a model is of a session.
pub(super) fn is_own(session: &Session, found: &Found) -> bool {
    let slots = session.slots();
    let own = slots.get(&found.id);
    own.is_some_and(|own| is_same(own, &found.slot))
}

/// Looks at the placeholders of armed parameters, and for such where no slot was found.
struct Placeholders<'a>(&'a mut Survey);

impl PathVisitor for Placeholders<'_> {
    fn visit<const D: usize>(&mut self, path: &Path, param: &Param<Tensor<D>>) {
        let Survey {
            found,
            bare,
            computed,
            ..
        } = &mut *self.0;
        if !param.is_initialized() {
            return;
        }
        // Elsewhere, any NaN looks like what was computed from a placeholder.
        let keeps_bits = || !reading_waits(&param.base().into_dispatch().kind);
        match found.get(&param.id) {
            None if is_placeholder(param.base()) => {
                bare.insert(param.id, path.clone());
            }
            None if keeps_bits() && is_computed_from_placeholder(param.base()) => {
                computed.insert(param.id, path.clone());
            }
            Some(found)
                if !found.has_ended
                    && is_replaced(found.slot.leaf_id(), param.base())
                    && is_computed_from_placeholder(param.base()) =>
            {
                computed.insert(param.id, path.clone());
            }
            _ => {}
        }
    }
}

impl PathVisitor for Survey {
    fn visit<const D: usize>(&mut self, path: &Path, param: &Param<Tensor<D>>) {
        self.last = None;
        if !param.is_require_grad() {
            return;
        }
        let leaf = leaf_of(param.base());
        self.last = Some(self.params.len());
        if let Some(before) = self.places.insert(param.id, self.params.len()) {
            self.duplicate
                .get_or_insert_with(|| ReleaseError::DuplicateParam {
                    first: path_text(&self.params[before].path),
                    second: path_text(path),
                });
        }
        self.params.push(Surveyed {
            id: param.id,
            path: path.clone(),
            leaf,
            device: format!("{:?}", param.device()),
            dtype: param.base().dtype(),
            is_distributed: param.is_distributed(),
            is_adapted: false,
        });
    }

    fn enter(&mut self, name: &str, container: &str) {
        if container == "Reparameterization" && name != Released::CONTAINER {
            self.has_adapters = true;
            if let Some(last) = self.last {
                self.params[last].is_adapted = true;
            }
        }
    }
}
