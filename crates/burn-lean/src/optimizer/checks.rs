//! Checks of a model before anything is changed.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use burn::Tensor;
use burn::backend::TensorMetadata;
use burn::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::module::{Module, Param, ParamId};
use burn::tensor::{DType, Device};

use super::one_param::{Ask, ask, may_refuse, stateless};
use super::pass::Stepper;
use crate::error::ReleaseError;
use crate::path::{AnyParam, Path, PathVisitor, WithPaths, path_text};
use crate::tape::node_of;
use crate::wide::is_half;

/// A parameter of a model.
pub(super) struct Checked {
    pub(super) param: AnyParam,
    device: Device,
    dtype: DType,
    ask: Ask,
}

/// The parameters of a model that can be trained, or have an ordinary gradient.
#[derive(Default)]
pub(super) struct Survey {
    /// In the order of the model's fields.
    pub(super) params: Vec<Checked>,
    places: HashMap<ParamId, usize>,
    refused: Option<ReleaseError>,
}

impl Survey {
    /// # Errors
    ///
    /// If two parameters have one id, or one cannot be released.
    pub(super) fn of<M: Module>(model: &M) -> Result<Self, ReleaseError> {
        let mut survey = Self::default();
        model.visit(&mut WithPaths::new(&mut survey));
        match survey.refused.take() {
            Some(error) => Err(error),
            None => Ok(survey),
        }
    }

    fn trained(&self) -> impl Iterator<Item = &Checked> {
        self.params.iter().filter(|it| it.param.is_trained)
    }

    /// The path of the parameter that a walk comes to, when it has met so many others.
    pub(super) fn path_at(&self, place: usize, id: ParamId) -> Rc<str> {
        let is_it = |at: &Checked| at.param.id == id;
        let found = self.params.get(place).filter(|it| is_it(it));
        // A module of the user's may be mapped in another order than it is visited.
        let found = found.or_else(|| Some(&self.params[*self.places.get(&id)?]));
        found.map_or_else(|| "".into(), |it| it.param.path.clone())
    }

    pub(super) fn has(&self, id: ParamId) -> bool {
        self.places.contains_key(&id)
    }

    pub(super) fn ids(&self) -> Vec<ParamId> {
        self.params.iter().map(|it| it.param.id).collect()
    }

    pub(super) fn path_of(&self, id: ParamId) -> String {
        let place = self.places.get(&id);
        place.map_or_else(|| id.to_string(), |at| self.params[*at].path())
    }

    pub(super) fn check_rates(&self, rates: &ModuleLearningRate) -> Result<(), ReleaseError> {
        for checked in self.trained() {
            let path = &checked.param.path;
            let rate = rates.lr_from_param(checked.param.id, Some(path));
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

    /// Checks that the optimizer steps every parameter, and takes the gradients in f32 that it is given
    /// of weights in half precision.
    pub(super) fn check_optimizer(
        &self,
        stepper: &Stepper,
        asked: &mut Asked,
    ) -> Result<(), ReleaseError> {
        let gives_f32 = stepper.pipeline.gives_f32;
        if stepper.pipeline.has_scaler() && !gives_f32 {
            let in_f16 = self.trained().find(|it| it.dtype == DType::F16);
            if let Some(checked) = in_f16 {
                let path = checked.path();
                return Err(not_steppable(path, HALF_PRECISION));
            }
        }
        let new: Vec<_> = self.trained().filter(|it| !asked.has(it)).collect();
        if new.is_empty() {
            return Ok(());
        }
        let has_bf16 = |it: &Checked| it.device.supports_dtype(DType::BF16);
        let params = new.iter().map(|it| (&it.param, has_bf16(it)));
        let refusing = may_refuse(&stepper.optim, params);
        let mut without_states = stateless(&stepper.optim);
        let mut optim = stepper.optim.clone();
        for checked in &new {
            let Checked {
                param,
                device,
                dtype,
                ask,
            } = checked;
            let needs_f32 = gives_f32 && is_half(*dtype);
            let answer = match (refusing.contains(&param.id), needs_f32) {
                (true, _) => {
                    let asked = |optim| ask(optim, param, param.shape.clone(), device, *dtype);
                    // Burn moves the states to the device first, which may not have their type.
                    match asked(&mut without_states) {
                        refused if refused.refusal.is_some() => refused,
                        _ => asked(&mut optim),
                    }
                }
                // Not the others: their step may draw random numbers.
                (false, false) => continue,
                (false, true) => checked.ask_of_one(&mut without_states),
            };
            if let Some(reason) = answer.refusal {
                return Err(not_steppable(checked.path(), &reason));
            }
            if needs_f32 && !answer.takes_f32 {
                return Err(not_steppable(checked.path(), NO_F32_GRADIENTS));
            }
        }
        new.into_iter().for_each(|checked| asked.insert(checked));
        Ok(())
    }

    /// Whether the optimizer of a weight in half precision takes a gradient in f32.
    pub(super) fn takes_f32(&self, stepper: &Stepper, id: ParamId) -> bool {
        let place = self.places.get(&id);
        place.is_some_and(|at| {
            let checked = &self.params[*at];
            is_half(checked.dtype) && checked.ask_of_one(&mut stateless(&stepper.optim)).takes_f32
        })
    }
}

impl Checked {
    pub(super) fn path(&self) -> String {
        self.param.path.to_string()
    }

    /// Asks an optimizer without states, of one element of the parameter.
    fn ask_of_one(
        &self,
        without_states: &mut burn::optim::ModuleOptimizer,
    ) -> crate::gradients::Answer {
        let one = vec![1; self.param.shape.num_dims()].into();
        (self.ask)(without_states, &self.param, one, &self.device, self.dtype)
    }
}

fn not_steppable(path: String, reason: &str) -> ReleaseError {
    let reason = reason.into();
    ReleaseError::NotSteppable { path, reason }
}

const HALF_PRECISION: &str = "it is in fp16, and so is its gradient, in which small numbers vanish \
when the scale of the loss is taken off; take an optimizer that computes in fp32 (`in_five_bytes`) and \
give it gradients in fp32 (`with_f32_gradients`), or keep the weights in fp32";

const NO_F32_GRADIENTS: &str = "its optimizer computes in the type of the weight, and takes no gradient \
in f32; take one that computes in f32, as `in_five_bytes` of `burn_lean::optim`, or leave out \
`with_f32_gradients`";

const DISTRIBUTED: &str = "it is marked as distributed, so Burn reduces its gradient over the devices, \
as soon as it is complete; train this model with Burn's optimizer";

/// For each device, the parameters, with their types, that the optimizer is known to step there.
#[derive(Debug, Default)]
pub(super) struct Asked(Vec<(Device, HashSet<(ParamId, DType)>)>);

impl Asked {
    fn has(&self, checked: &Checked) -> bool {
        let known = self.0.iter().find(|(device, _)| *device == checked.device);
        known.is_some_and(|(_, known)| known.contains(&(checked.param.id, checked.dtype)))
    }

    fn insert(&mut self, checked: &Checked) {
        let place = self
            .0
            .iter()
            .position(|(device, _)| *device == checked.device);
        let place = place.unwrap_or_else(|| {
            self.0.push((checked.device.clone(), Default::default()));
            self.0.len() - 1
        });
        self.0[place].1.insert((checked.param.id, checked.dtype));
    }
}

impl PathVisitor for Survey {
    fn visit<const D: usize>(&mut self, path: &Path, param: &Param<Tensor<D>>) {
        let is_trained = param.is_require_grad();
        match self.places.entry(param.id) {
            Entry::Vacant(entry) => drop(entry.insert(self.params.len())),
            // Burn has one gradient for both, also if it trains one of them only.
            Entry::Occupied(entry) => {
                let before = &self.params[*entry.get()];
                if is_trained || before.param.is_trained {
                    let (first, second) = (before.path(), path_text(path));
                    self.refused
                        .get_or_insert(ReleaseError::DuplicateParam { first, second });
                }
            }
        }
        let base = param.base().into_dispatch();
        if is_trained && node_of(&base).is_none() {
            self.refused.get_or_insert_with(|| {
                let device = param.lazy_device();
                let reason = format!(
                    "it is on {device:?}, a backend that burn-lean was not compiled for; switch its \
                     feature on (flex, ndarray, wgpu or cuda, or cube for other devices of CubeCL)"
                );
                not_steppable(path_text(path), &reason)
            });
        }
        if is_trained && param.is_distributed() {
            let path = path_text(path);
            self.refused.get_or_insert(not_steppable(path, DISTRIBUTED));
        }
        self.params.push(Checked {
            param: AnyParam::new(path, param),
            device: param.lazy_device(),
            dtype: base.dtype(),
            ask: ask::<D>,
        });
    }
}
