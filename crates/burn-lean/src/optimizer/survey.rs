//! A look at a model before anything is changed.

use std::collections::HashMap;
use std::sync::Arc;

use burn::Tensor;
use burn::backend::BackendTensor;
use burn::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::tensor::DType;

use super::error::ReleaseError;
use crate::backend::{Inner, WithBackend, with_backend};
use crate::parameter::{Found, Released, find};
use crate::session::Session;
use crate::slot::{ArmedSlot, Path, path_text};
use crate::tape::is_placeholder;

/// The parameters of a model.
pub(super) struct Survey {
    /// Those that require gradients, in the order of the model's fields.
    pub(super) params: Vec<Surveyed>,
    pub(super) found: HashMap<ParamId, Found>,
    /// Whether a parameter has a reparameterization that is not ours, as LoRA's: then `materialize`
    /// would merge it.
    pub(super) has_adapters: bool,
    path: Path,
    places: HashMap<ParamId, usize>,
    /// Where the parameter visited last is in `params`.
    last: Option<usize>,
    duplicate: Option<ReleaseError>,
}

/// A parameter of a model.
pub(super) struct Surveyed {
    pub(super) id: ParamId,
    pub(super) path: Path,
    /// The node of its base; none on a backend that is not known.
    pub(super) leaf: Option<u64>,
    pub(super) device: String,
    pub(super) dtype: DType,
    pub(super) is_distributed: bool,
    /// It has a reparameterization that is not ours, and beside that none has a place.
    pub(super) is_adapted: bool,
}

impl Survey {
    pub(super) fn of<M: Module>(model: &M) -> Self {
        let mut survey = Self {
            params: Vec::new(),
            found: HashMap::new(),
            has_adapters: false,
            path: Vec::new(),
            places: HashMap::new(),
            last: None,
            duplicate: None,
        };
        let found = find(model, &mut survey);
        survey.found = found.into_iter().map(|found| (found.id, found)).collect();
        survey
    }

    /// Why the model cannot be armed.
    pub(super) fn check(&self, session: &Session) -> Result<(), ReleaseError> {
        let is_own = |found: &Found| {
            let slots = session.slots();
            slots
                .get(&found.id)
                .is_some_and(|slot| is_same(slot, &found.slot))
        };
        if let Some(duplicate) = &self.duplicate {
            return Err(duplicate.clone());
        }
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
                Some(found) if found.is_armed && !found.is_copy && !is_own(found) => {
                    return Err(ReleaseError::ArmedElsewhere { path: path() });
                }
                Some(found) if found.is_copy && self.has_adapters => {
                    return Err(ReleaseError::CopyWithAdapters { path: path() });
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Why no parameter can be stepped with these rates.
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

    /// Why the scale of a loss cannot be taken off the gradients of the model.
    pub(super) fn check_precision(&self) -> Result<(), ReleaseError> {
        let mut params = self.params.iter();
        match params.find(|param| param.dtype == DType::F16) {
            Some(param) => Err(ReleaseError::HalfPrecision {
                path: path_text(&param.path),
            }),
            None => Ok(()),
        }
    }

    /// Why the model is not the one that was armed: those of its slots that matter have to be in
    /// it.
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
                None => return Err(ReleaseError::WrongModel { path }),
                Some(found) if found.is_copy => return Err(ReleaseError::Copy { path }),
                Some(_) => {}
            }
        }
        Ok(())
    }
}

pub(super) fn is_same(one: &Arc<dyn ArmedSlot>, other: &Arc<dyn ArmedSlot>) -> bool {
    std::ptr::addr_eq(Arc::as_ptr(one), Arc::as_ptr(other))
}

struct LeafOf;

impl WithBackend for LeafOf {
    type Output = Option<u64>;

    fn run<B: Inner>(self, tensor: BackendTensor<B>) -> Option<u64> {
        match tensor {
            BackendTensor::Autodiff(leaf) => Some(leaf.id().value),
            _ => None,
        }
    }
}

/// The node of a parameter's base, on a backend that is known.
pub(super) fn leaf_of<const D: usize>(base: Tensor<D>) -> Option<u64> {
    with_backend(base.into_dispatch().kind, LeafOf).flatten()
}

/// Whether something was loaded into an armed parameter, or computed from it: its base is not the
/// placeholder any more.
pub(super) fn is_replaced<const D: usize>(slot: &dyn ArmedSlot, base: Tensor<D>) -> bool {
    leaf_of(base.clone()) != Some(slot.leaf_id()) && !is_placeholder(base)
}

impl ModuleVisitor for Survey {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
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
                    second: path_text(&self.path),
                });
        }
        self.params.push(Surveyed {
            id: param.id,
            path: self.path.clone(),
            leaf,
            device: format!("{:?}", param.device()),
            dtype: param.base().dtype(),
            is_distributed: param.is_distributed(),
            is_adapted: false,
        });
    }

    fn enter_module(&mut self, name: &str, container: &str) {
        if container == "Reparameterization" && name != Released::CONTAINER {
            self.has_adapters = true;
            if let Some(last) = self.last {
                self.params[last].is_adapted = true;
            }
        }
        self.path.push((name.into(), container.into()));
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.pop();
    }
}
