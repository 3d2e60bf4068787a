//! Walks over a model: what a pass needs to know of its parameters, and how their weights leave it for
//! the time of a backward pass.

use std::collections::HashMap;
use std::iter::Peekable;
use std::rc::Rc;
use std::vec::IntoIter;

use burn::Tensor;
use burn::backend::DispatchTensor;
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::tensor::GradientCheckpointingStrategy;

use super::checks::Survey;
use super::pass::{Entry, Value};
use crate::backward::{TakeGradient, take_gradient};
use crate::tape::{constant, leaf, node_of};

/// Gradients by parameter: sums of micro-batches, or those of an ordinary step.
pub(super) type Sums = HashMap<ParamId, DispatchTensor>;

/// The parameters of a pass, in the order of the model's fields, and the leaves of those that require
/// gradients.
#[derive(Default)]
pub(super) struct Found {
    pub(super) entries: Vec<Entry>,
    pub(super) leaves: Vec<Leaf>,
}

pub(super) struct Leaf {
    pub(super) node: u64,
    pub(super) place: usize,
    pub(super) take: TakeGradient,
}

impl Found {
    fn add<const D: usize>(
        &mut self,
        id: ParamId,
        path: Rc<str>,
        base: Tensor<D>,
        is_trained: bool,
        sum: Option<DispatchTensor>,
    ) -> &mut Entry {
        let base = base.into_dispatch();
        if is_trained {
            self.leaves.push(Leaf {
                node: node_of(&base).expect("a trained parameter is a leaf").value,
                place: self.entries.len(),
                take: take_gradient(&base),
            });
        }
        self.entries
            .push(Entry::new::<D>(id, path, base, is_trained, sum));
        self.entries.last_mut().expect("it was pushed")
    }
}

struct Walk<'a> {
    survey: &'a Survey,
    found: Found,
    sums: &'a mut Sums,
    /// How many parameters were met.
    met: usize,
}

impl<'a> Walk<'a> {
    fn new(survey: &'a Survey, sums: &'a mut Sums) -> Self {
        Self {
            survey,
            found: Found::default(),
            sums,
            met: 0,
        }
    }

    fn path_of_next(&mut self, id: ParamId) -> Rc<str> {
        self.met += 1;
        self.survey.path_at(self.met - 1, id)
    }
}

/// Looks at the parameters that require gradients or have a sum. The weights stay in the model.
pub(super) fn look<M: Module>(model: &M, survey: &Survey, sums: &mut Sums) -> Found {
    struct Look<'a>(Walk<'a>);
    impl ModuleVisitor for Look<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let path = self.0.path_of_next(param.id);
            let (is_trained, sum) = (param.is_require_grad(), self.0.sums.remove(&param.id));
            if is_trained || sum.is_some() {
                let found = &mut self.0.found;
                let entry = found.add(param.id, path, param.base(), is_trained, sum);
                entry.value = Value::InModel;
            }
        }
    }
    let mut look = Look(Walk::new(survey, sums));
    model.visit(&mut look);
    look.0.found
}

/// Takes the weights of these parameters out of a model.
pub(super) fn take<M: Module>(model: M, survey: &Survey, sums: &mut Sums) -> (M, Found) {
    struct Take<'a>(Walk<'a>);
    impl ModuleMapper for Take<'_> {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            let path = self.0.path_of_next(param.id);
            let (is_trained, sum) = (param.is_require_grad(), self.0.sums.remove(&param.id));
            if !is_trained && sum.is_none() {
                return param;
            }
            let (id, base, mapper) = param.consume();
            let empty = Tensor::empty([0; D], &base.device());
            self.0.found.add(id, path, base, is_trained, sum);
            Param::from_mapped_value(id, empty, mapper)
        }
    }
    let mut take = Take(Walk::new(survey, sums));
    let model = model.map(&mut take);
    (model, take.0.found)
}

/// Puts the weights back into the model that they were taken from.
pub(super) fn put<M: Module>(model: M, entries: Vec<Entry>) -> M {
    struct Put(Peekable<IntoIter<Entry>>);
    impl ModuleMapper for Put {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            let Some(entry) = self.0.next_if(|entry| entry.id == param.id) else {
                return param;
            };
            let base = match entry.value {
                Value::Base(base) => base,
                Value::Weight(weight) if entry.is_trained => leaf(weight, entry.autodiff),
                Value::Weight(weight) => constant(weight, entry.autodiff),
                Value::InModel | Value::Gone => unreachable!("a step gives the weight back"),
            };
            let (id, _, mapper) = param.consume();
            Param::from_mapped_value(id, Tensor::from_dispatch(base), mapper)
        }
    }
    model.map(&mut Put(entries.into_iter().peekable()))
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
