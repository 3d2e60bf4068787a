//! The end of an arming: weights move from slots back into the model.

use std::any::Any;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use burn::Tensor;
use burn::module::{Module, ModuleMapper, Param, ParamId, ParamMapper};
use burn::tensor::GradientCheckpointingStrategy;

use super::survey::Survey;
use crate::parameter::Found;
use crate::session::{Session, Slot};
use crate::tape::is_replaced;

/// Ends the arming of a model.
pub(super) fn restore<M: Module>(session: &Session, model: M, survey: &Survey) -> M {
    let mut slots = std::mem::take(&mut *session.slots());
    if survey.has_adapters {
        // Others that an accumulator, or an optimizer that is gone, has left; and those of parameters
        // that were loaded under another id. Without adapters, `materialize` gives back their weights.
        let open = survey.found.iter().filter(|(_, found)| found.is_open());
        slots.extend(open.map(|(id, found)| (*id, found.slot.clone())));
    }
    let model = model.map(&mut Restore {
        slots: &slots,
        survey,
    });
    for slot in slots.values().filter(|slot| !slot.phase().has_ended()) {
        // Its parameter is not in the model, or is that of a copy, or something else was loaded into it.
        slot.abandon();
    }
    session.disarm();
    match survey.has_adapters {
        // `materialize` would merge them. So our reparameterizations stay, and return the base of
        // the `Param`.
        true => model,
        false => model.materialize(),
    }
}

/// Ends the arming of a model in whose place another is armed. Who still has it reads its weights.
pub(super) fn abandon(session: &Session) {
    for slot in session.slots().drain().map(|(_, slot)| slot) {
        slot.abandon();
    }
    session.disarm();
}

/// Lets go of the parameters that are not of this model, which keep their weights.
pub(super) fn abandon_others(session: &Session, survey: &Survey) {
    let found = survey.found.values();
    let found: HashSet<_> = found.map(|found| Arc::as_ptr(&found.slot)).collect();
    session.slots().retain(|_, slot| {
        let is_found = found.contains(&Arc::as_ptr(slot));
        if !is_found {
            slot.abandon();
        }
        is_found
    });
}

struct Restore<'a> {
    slots: &'a HashMap<ParamId, Arc<Slot>>,
    survey: &'a Survey,
}

impl ModuleMapper for Restore<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let Some(slot) = self
            .slots
            .get(&param.id)
            .filter(|slot| !slot.phase().has_ended())
        else {
            return param;
        };
        let is_active = param.is_require_grad();
        let (id, base, _) = param.consume();
        let mapper = mapper_of::<D>(&slot.mapper());
        let found = self.survey.found.get(&id);
        let found = found.filter(|found| Arc::ptr_eq(slot, &found.slot));
        let base = if is_replaced(slot.leaf_id(), &base.clone().into_dispatch()) {
            // Loaded since: it stays. Another model with this id, or a copy, leaves its weight to the slot.
            if found.is_some_and(|found| !found.is_copy()) {
                slot.drop_weight();
            }
            base
        } else if let Some(weight) = found.and_then(Found::copied) {
            let strategy = base.gradient_checkpointing_strategy();
            as_param(Tensor::from_dispatch(weight), strategy, is_active)
        } else {
            weight_for(slot, base).set_require_grad(is_active)
        };
        with_mapper(id, base, mapper)
    }
}

/// Ends the arming of a parameter: its weight, with autodiff as the placeholder has it.
pub(super) fn weight_for<const D: usize>(slot: &Slot, placeholder: Tensor<D>) -> Tensor<D> {
    let strategy = placeholder.gradient_checkpointing_strategy();
    drop(placeholder);
    with_autodiff(Tensor::from_dispatch(slot.end()), strategy)
}

/// A parameter with the mapper that it had before it was armed.
fn with_mapper<const D: usize>(
    id: ParamId,
    base: Tensor<D>,
    mapper: ParamMapper<Tensor<D>>,
) -> Param<Tensor<D>> {
    let param = Param::from_mapped_value(id, base, mapper);
    // The mapper was made when the model was armed: it would unfreeze parameters frozen since.
    match param.is_autodiff() && !param.is_require_grad() {
        true => param.set_require_grad(false),
        false => param,
    }
}

/// A weight as autodiff had it: with this strategy, or without autodiff if there is none.
fn with_autodiff<const D: usize>(
    weight: Tensor<D>,
    strategy: Option<GradientCheckpointingStrategy>,
) -> Tensor<D> {
    let weight = weight.autodiff();
    match strategy {
        Some(strategy) => weight.with_gradient_checkpointing_strategy(strategy),
        None => weight.inner(),
    }
}

/// The weight of a parameter as autodiff had it.
pub(crate) fn as_param<const D: usize>(
    weight: Tensor<D>,
    strategy: Option<GradientCheckpointingStrategy>,
    is_active: bool,
) -> Tensor<D> {
    with_autodiff(weight, strategy).set_require_grad(is_active)
}

/// Changes the value of a parameter, apart from autodiff.
pub(crate) fn with_value<const D: usize>(
    param: Param<Tensor<D>>,
    change: impl FnOnce(Tensor<D>) -> Tensor<D>,
) -> Param<Tensor<D>> {
    let is_trained = param.is_require_grad();
    let (id, tensor, mapper) = param.consume();
    let strategy = tensor.gradient_checkpointing_strategy();
    let tensor = as_param(change(tensor.inner()), strategy, is_trained);
    Param::from_mapped_value(id, tensor, mapper)
}

pub(super) fn mapper_of<const D: usize>(
    mapper: &Arc<dyn Any + Send + Sync>,
) -> ParamMapper<Tensor<D>> {
    let mapper = mapper.downcast_ref::<ParamMapper<Tensor<D>>>();
    mapper.expect("a parameter keeps its rank").clone()
}

/// Gives parameters the mappers that they had before they were armed.
pub(super) fn restore_mappers<M: Module>(
    model: M,
    mappers: &HashMap<ParamId, Arc<dyn Any + Send + Sync>>,
) -> M {
    struct Mappers<'a>(&'a HashMap<ParamId, Arc<dyn Any + Send + Sync>>);
    impl ModuleMapper for Mappers<'_> {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            let Some(mapper) = self.0.get(&param.id) else {
                return param;
            };
            let (id, base, _) = param.consume();
            with_mapper(id, base, mapper_of::<D>(mapper))
        }
    }
    model.map(&mut Mappers(mappers))
}
