//! Arming: weights move from a model into slots.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use burn::Tensor;
use burn::backend::DispatchTensor;
use burn::backend::autodiff::NodeId;
use burn::module::{Module, ModuleMapper, Param, ParamId, Reparameterizer};
use burn::optim::GradientsParams;

use super::one_param;
use super::restoring::{abandon, abandon_others, mapper_of, restore_mappers, weight_for};
use super::survey::{Survey, Surveyed, is_own};
use crate::backend::added;
use crate::parameter::{Found, Holder, Released};
use crate::path::{AnyParam, Path};
use crate::recompute::without_tape;
use crate::session::{Purpose, Session, Slot};
use crate::tape::{Holds, node_of};

/// Arms a model that was checked. Takes the sums of earlier micro-batches out of `sums`, except
/// those of parameters that are not armed.
pub(super) fn arm<M: Module>(
    session: &Arc<Session>,
    purpose: Purpose,
    sums: &mut GradientsParams,
    mut model: M,
    mut survey: Survey,
) -> M {
    // The hooks of a forward pass cannot be used again after a backward that has panicked.
    let is_unused = !session.has_begun();
    let is_kept =
        |found: &Found| is_unused && is_own(session, found) && found.is_armed && !found.is_copy();
    let mut left = HashMap::new();
    let is_in_place = session
        .slots()
        .keys()
        .all(|id| survey.found.contains_key(id));
    if !survey.found.values().all(is_kept) || !is_in_place {
        session.progress.reset();
        session.orders().forget_hooks();
        left = sums_of(&survey);
        if survey.has_adapters {
            abandon_others(session, &survey);
            // A model with adapters keeps its reparameterizations from step to step.
            model = model.map(&mut ArmAgain {
                session,
                survey: &survey,
            });
            for (id, found) in &survey.found {
                // Not those of parameters that were frozen since.
                let is_open =
                    found.slot.is_of(Arc::as_ptr(session)) && !found.slot.phase().has_ended();
                if is_open && is_free(session, found) {
                    session.slots().insert(*id, found.slot.clone());
                }
                if !found.is_copy() {
                    if !found.is_armed {
                        found.slot.forget_hooks();
                    }
                    found.slot.rest();
                }
            }
        } else {
            model = settle(model, &survey);
            abandon(session);
            survey.found.clear();
        }
    }
    let free = survey.params.iter().filter(|surveyed| {
        let is_kept = survey.found.contains_key(&surveyed.param.id);
        surveyed.param.is_trained && !surveyed.is_adapted && !is_kept
    });
    let armer = Armer {
        session,
        paths: free
            .map(|surveyed| (surveyed.param.id, &surveyed.param.path))
            .collect(),
    };
    if !armer.paths.is_empty() {
        model = model.apply_reparameterization(armer);
    }
    for Surveyed { param, .. } in &survey.params {
        let left = left.remove(&param.id);
        if let Some(slot) = session.slots().get(&param.id) {
            slot.arm_for(purpose, added(left, param.take_grad(sums)));
        } else if let Some(left) = left {
            // Frozen since.
            put_after(param, left, sums);
        }
    }
    session.arm();
    model
}

/// Adds the sums that an arming has left, of parameters that it did not arm.
pub(super) fn add_left(survey: &Survey, mut left: GradientsParams, sums: &mut GradientsParams) {
    if left.is_empty() {
        return;
    }
    for Surveyed { param, .. } in &survey.params {
        if let Some(earlier) = param.take_grad(&mut left) {
            put_after(param, earlier, sums);
        }
    }
}

/// Puts the sum of a parameter after an earlier one.
fn put_after(param: &AnyParam, earlier: DispatchTensor, sums: &mut GradientsParams) {
    let sum = added(Some(earlier), param.take_grad(sums));
    param.put_grad(sums, sum.expect("there is one"));
}

/// Takes the sums of earlier micro-batches out of the slots of an arming that starts again. Those of a
/// step that was interrupted are dropped.
fn sums_of(survey: &Survey) -> HashMap<ParamId, DispatchTensor> {
    let ids = survey.found.keys().copied();
    let sums = ids.filter_map(|id| Some((id, survey.own_slot(id)?.take_sum()?)));
    let sums = sums.collect();
    match survey.was_interrupted() {
        true => HashMap::new(),
        false => sums,
    }
}

/// Takes the sums of earlier micro-batches that a model was armed with, also by an optimizer that is
/// gone.
pub(super) fn take_sums(session: &Session, survey: &Survey) -> GradientsParams {
    let mut left = std::mem::take(&mut session.stepper().sums);
    let mut sums = sums_of(survey);
    let slots = session.slots();
    let own = slots.iter();
    sums.extend(own.filter_map(|(id, slot)| Some((*id, slot.take_sum()?))));
    for Surveyed { param, .. } in &survey.params {
        if let Some(sum) = sums.remove(&param.id) {
            param.put_grad(&mut left, sum);
        }
    }
    left
}

/// Makes an ordinary model of one that another arming has left, or of a copy of an armed model.
pub(super) fn settle<M: Module>(model: M, survey: &Survey) -> M {
    let mappers = survey
        .found
        .iter()
        .map(|(id, found)| (*id, found.slot.mapper()));
    let mappers: HashMap<_, _> = mappers.collect();
    let model = restore_mappers(without_tape(|| model.materialize()), &mappers);
    let own = survey.found.values().filter(|found| !found.is_copy());
    for Found { slot, .. } in own {
        slot.go_on();
        // Not where the sum is left of a parameter that was loaded under another id: it goes by the old one.
        if slot.has_weight() && !slot.has_sum() {
            drop(slot.end());
        }
    }
    model
}

/// Whether the slot of a model with adapters may be armed again: its arming has ended, or was left.
fn is_free(session: &Session, found: &Found) -> bool {
    match found.holder {
        Holder::Slot => !(found.is_armed || is_own(session, found)),
        Holder::Abandoned | Holder::Param => true,
        Holder::Copy(_) => false,
    }
}

/// Moves weights into the slots of existing reparameterizations.
struct ArmAgain<'a> {
    session: &'a Arc<Session>,
    survey: &'a Survey,
}

impl ModuleMapper for ArmAgain<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let found = self.survey.found.get(&param.id);
        let Some(found) = found.filter(|found| is_free(self.session, found)) else {
            return param;
        };
        let surveyed = self
            .survey
            .param(param.id)
            .filter(|_| param.is_require_grad());
        let Some(surveyed) = surveyed else {
            return param;
        };
        let (id, base, mapper) = param.consume();
        if found.has_ended() {
            // It may have got others between two steps.
            found.slot.set_mapper(Arc::new(mapper.clone()));
        }
        // Between two armings, or loaded since.
        let is_weight = found.has_ended() || surveyed.is_replaced(&found.slot);
        let base = match is_weight {
            true => base,
            false => weight_for(&found.slot, base),
        };
        let (base, known) = (base.into_dispatch(), &surveyed.param);
        let leaf = found.slot.arm_again(self.session, known, base);
        let armed = Param::from_mapped_value(id, Tensor::from_dispatch(leaf), mapper);
        saving_weight(armed, &found.slot)
    }
}

struct Armer<'a> {
    session: &'a Arc<Session>,
    /// The paths of the parameters to arm.
    paths: HashMap<ParamId, &'a Path>,
}

impl Reparameterizer for Armer<'_> {
    type Reparam = Released;

    fn reparameterize<const D: usize>(
        &mut self,
        _: &str,
        param: Param<Tensor<D>>,
    ) -> (Param<Tensor<D>>, Option<Released>) {
        let Some(path) = self.paths.remove(&param.id) else {
            return (param, None);
        };
        let (id, base, mapper) = param.consume();
        let before = Arc::new(mapper.clone());
        let step = one_param::step::<D>;
        let (slot, leaf) = Slot::arm(
            id,
            path.clone(),
            base.into_dispatch(),
            self.session,
            step,
            before,
        );
        let slot = Arc::new(slot);
        self.session.slots().insert(id, slot.clone());
        let param = Param::from_mapped_value(id, Tensor::from_dispatch(leaf), mapper);
        let param = saving_weight(param, &slot);
        (param, Some(Released::new(slot)))
    }
}

/// Lets the records of an armed parameter have its weight.
fn saving_weight<const D: usize>(param: Param<Tensor<D>>, slot: &Arc<Slot>) -> Param<Tensor<D>> {
    let (behind, leaf) = (Arc::downgrade(slot), slot.leaf_id());
    let saved = mapper_of::<D>(&slot.mapper());
    param.save_mapper(move |base| saved.on_save(weight_to_save::<D>(&behind, leaf, base)))
}

/// The weight that a record of an armed model, or of a copy of it, holds instead of the
/// placeholder. `leaf` is that of the arming in which the placeholder was made.
fn weight_to_save<const D: usize>(slot: &Weak<Slot>, leaf: NodeId, base: Tensor<D>) -> Tensor<D> {
    let placeholder = base.clone().into_dispatch();
    let node = node_of(&placeholder);
    // With adapters, the slot may be armed anew since.
    let slot = slot.upgrade().filter(|slot| slot.leaf_id() == leaf);
    let holds = match base.dtype().is_float() {
        _ if node == Some(leaf) => Holds::Placeholder,
        true => Holds::of_armed(&placeholder),
        false if is_quantized_placeholder(slot.as_deref(), base.clone()) => Holds::Computed,
        false => Holds::Weight,
    };
    assert!(
        holds != Holds::Computed,
        "gradient release: this record would be of something computed from the placeholders of an \
         armed model; compute from `copy.materialize()`, or between `step` and `arm`"
    );
    if holds == Holds::Weight {
        return base;
    }
    let weight = slot.and_then(|slot| slot.weight_behind(node));
    Tensor::from_dispatch(weight.expect(
        "gradient release: this record would be of an armed model or of a copy that was taken \
         while it was armed, and both exist with different weights; save after `step`, or save \
         `copy.materialize()`",
    ))
}

/// Whether what is quantized was a placeholder: its NaN became zeros, and a weight has others. An
/// ordinary model that was made of a copy keeps the mapper, and may be quantized.
fn is_quantized_placeholder<const D: usize>(slot: Option<&Slot>, base: Tensor<D>) -> bool {
    let is_zero = |weight: Tensor<D>| {
        let data = weight.into_data();
        let mut numbers = data.iter::<f32>();
        numbers.all(|number| number == 0.0 || number.is_nan())
    };
    let weights = slot.map_or_else(Vec::new, Slot::weights);
    let mut weights = weights.into_iter().map(Tensor::<D>::from_dispatch);
    is_zero(base.dequantize()) && !weights.all(is_zero)
}
