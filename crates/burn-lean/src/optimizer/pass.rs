//! What one backward pass does with the gradients of one model.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use burn::Tensor;
use burn::backend::{DispatchAutodiffContext, DispatchTensor, TensorMetadata};
use burn::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::module::ParamId;
use burn::optim::ModuleOptimizer;
use burn::tensor::Shape;

use super::one_param::step_one;
use super::report::Outcome;
use crate::backend::{added, in_f32, plain};
use crate::backward::{Owner, Readiness};
use crate::error::ReleaseError;
use crate::gradients::{Pipeline, Transformed};
use crate::marks;
use crate::reduction::{InFlight, flat, shaped};

/// What steps parameters: Burn's optimizer, and what is done to gradients before it.
pub(crate) struct Stepper {
    pub(super) optim: ModuleOptimizer,
    pub(super) pipeline: Pipeline,
    /// Gradients in flight to the replicas of the model.
    pub(super) in_flight: Option<InFlight>,
}

impl std::fmt::Debug for Stepper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut debug = f.debug_struct("Stepper");
        debug
            .field("pipeline", &self.pipeline)
            .finish_non_exhaustive()
    }
}

impl Stepper {
    /// Whether this replica steps a parameter.
    pub(super) fn is_owner(&self, param: ParamId) -> bool {
        let in_flight = self.in_flight.as_ref();
        in_flight.is_none_or(|in_flight| in_flight.reduction().is_owner(param))
    }
}

/// What is done with complete gradients.
pub(super) enum Purpose {
    Step(ModuleLearningRate),
    /// Measures their norm. Nothing else changes.
    Measure,
    /// Adds them to the sums of micro-batches.
    Accumulate {
        in_f32: bool,
    },
}

/// A parameter in a backward pass.
pub(super) struct Entry {
    pub(super) id: ParamId,
    pub(super) path: Rc<str>,
    shape: Shape,
    pub(super) value: Value,
    pub(super) autodiff: DispatchAutodiffContext,
    pub(super) is_trained: bool,
    step: StepFn,
    /// The gradients of earlier micro-batches.
    pub(super) sum: Option<DispatchTensor>,
    /// The optimizer gets a gradient in f32 as it is, also of a weight in half precision.
    pub(super) takes_f32: bool,
    is_used: bool,
    /// Its gradient was complete when backward had nothing left but parameters.
    pub(super) is_late: bool,
    pub(super) outcome: Outcome,
}

/// The weight of a parameter that a pass has taken.
pub(super) enum Value {
    /// It is with the model.
    InModel,
    /// As the parameter had it, with its leaf.
    Base(DispatchTensor),
    /// Without autodiff.
    Weight(DispatchTensor),
    /// A step has it, or has panicked with it.
    Gone,
}

impl Value {
    fn take_weight(&mut self) -> DispatchTensor {
        match std::mem::replace(self, Self::Gone) {
            Self::Base(base) => plain(base),
            Self::Weight(weight) => weight,
            Self::InModel | Self::Gone => unreachable!("a pass that steps has the weights"),
        }
    }
}

type StepFn = fn(&mut Stepper, Step<'_>) -> (DispatchTensor, Stepped);

struct Step<'a> {
    id: ParamId,
    path: &'a str,
    weight: DispatchTensor,
    grad: DispatchTensor,
    lr: &'a ModuleLearningRate,
    takes_f32: bool,
}

enum Stepped {
    Yes,
    Overflown,
    NonFinite,
    NotMeasured,
}

impl Entry {
    /// The parameter with this base, which the model has no more.
    pub(super) fn new<const D: usize>(
        id: ParamId,
        path: Rc<str>,
        base: DispatchTensor,
        is_trained: bool,
        sum: Option<DispatchTensor>,
    ) -> Self {
        Self {
            id,
            path,
            shape: base.shape(),
            autodiff: base.autodiff,
            value: Value::Base(base),
            is_trained,
            step: step::<D>,
            sum,
            takes_f32: false,
            is_used: false,
            is_late: false,
            outcome: Outcome::Unused,
        }
    }

    fn is_done(&self) -> bool {
        self.outcome != Outcome::Unused
    }
}

/// One optimizer's part of a backward pass.
pub(super) struct Pass(RefCell<State>);

pub(super) struct State {
    /// In the order of the model's fields.
    pub(super) entries: Vec<Entry>,
    pub(super) purpose: Purpose,
    pub(super) stepper: Option<Box<Stepper>>,
    /// The places of parameters, where replicas return their gradients.
    places: HashMap<ParamId, usize>,
    pub(super) progress: Progress,
    /// Why no more parameters are stepped.
    pub(super) stop: Option<ReleaseError>,
    /// Whether backward has ended.
    has_ended: bool,
}

/// How far a pass has come.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Progress {
    pub(super) stepped: usize,
    pub(super) in_place: usize,
    /// Whether an optimizer's step has begun and not ended.
    pub(super) is_stepping: bool,
    /// Whether a sum has the gradient of this micro-batch.
    pub(super) has_added: bool,
}

impl Pass {
    pub(super) fn new(entries: Vec<Entry>, purpose: Purpose, stepper: Box<Stepper>) -> Self {
        let places = match stepper.in_flight {
            Some(_) => entries
                .iter()
                .enumerate()
                .map(|(at, entry)| (entry.id, at))
                .collect(),
            None => HashMap::new(),
        };
        Self(RefCell::new(State {
            entries,
            purpose,
            stepper: Some(stepper),
            places,
            progress: Progress::default(),
            stop: None,
            has_ended: false,
        }))
    }

    pub(super) fn state(&self) -> std::cell::RefMut<'_, State> {
        self.0.borrow_mut()
    }
}

impl Owner for Pass {
    fn readiness(&self, place: usize) -> Readiness {
        let Ok(state) = self.0.try_borrow() else {
            return Readiness::Busy;
        };
        match &state.entries[place].value {
            Value::Weight(weight) if !weight.can_mut() => Readiness::WeightIsShared,
            _ => Readiness::Ready,
        }
    }

    fn is_in_graph(&self, place: usize) {
        self.state().entries[place].is_used = true;
    }

    fn is_refused(&self) -> bool {
        !self.state().entries.iter().any(|entry| entry.is_used)
    }

    fn begins(&self, is_refused: bool) {
        let state = &mut *self.state();
        if is_refused {
            state.stop = Some(ReleaseError::NotInGraph);
            return;
        }
        for entry in state.entries.iter_mut().filter(|entry| entry.is_used) {
            // Without its leaf, the weight has no second owner. A parameter that is not in the graph
            // keeps it, as with plain Burn.
            if let Value::Base(_) = entry.value {
                entry.value = Value::Weight(entry.value.take_weight());
            }
        }
        let State {
            entries,
            stepper,
            places,
            ..
        } = state;
        let in_flight = stepper.as_ref().and_then(|it| it.in_flight.as_ref());
        if let Some(in_flight) = in_flight {
            let place = |param| places.get(&param);
            in_flight.skip_unused(|param| place(param).is_some_and(|at| entries[*at].is_used));
        }
    }

    fn complete(&self, place: usize, grad: DispatchTensor) {
        self.state().complete(place, Some(grad));
    }

    fn is_late(&self, place: usize) {
        self.state().entries[place].is_late = true;
    }

    fn is_left(&self, place: usize, grad: Option<DispatchTensor>) {
        if grad.is_some() {
            let state = &mut *self.state();
            state.has_ended = true;
            state.complete(place, grad);
        }
    }

    fn is_added_to(&self, place: usize) {
        let state = &mut *self.state();
        let path = state.entries[place].path.clone();
        state.stop.get_or_insert_with(|| ReleaseError::Tape {
            reason: format!(
                "an operation has registered the gradient of {path} more often than it uses the \
                 parameter, when its gradient was complete already; register the sum once, or give \
                 the operation the parameter as often (if a parameter was stepped, load the last \
                 checkpoint into the model and the optimizer)"
            ),
        });
    }
}

impl State {
    pub(super) fn stepper(&mut self) -> &mut Stepper {
        self.stepper
            .as_mut()
            .expect("it is here until the pass is over")
    }

    /// A gradient of this pass is complete, or there is none but the sum of earlier micro-batches.
    pub(super) fn complete(&mut self, place: usize, grad: Option<DispatchTensor>) {
        if self.stop.is_some() {
            return;
        }
        let entry = &mut self.entries[place];
        let sum = match self.purpose {
            Purpose::Accumulate { in_f32: is_wide } => {
                let grad = grad.map(|grad| if is_wide { in_f32(grad) } else { grad });
                entry.sum = added(entry.sum.take(), grad);
                entry.outcome = Outcome::Released;
                self.progress.has_added = true;
                return;
            }
            // It stays for the pass that steps, or until the step is known to be taken.
            Purpose::Measure => entry.sum.clone(),
            Purpose::Step(_) => match self.stepper().pipeline.may_stop() {
                true => self.entries[place].sum.clone(),
                false => self.entries[place].sum.take(),
            },
        };
        self.send(place, added(sum, grad));
    }

    /// Sends a gradient to the other replicas, if there are any. Else it has arrived.
    fn send(&mut self, place: usize, grad: Option<DispatchTensor>) {
        let Some(grad) = grad else { return };
        let Some(in_flight) = self.stepper().in_flight.take() else {
            return self.arrived(place, Some(grad));
        };
        let is_measuring = matches!(self.purpose, Purpose::Measure);
        let recipients = self.stepper().pipeline.recipients(is_measuring);
        self.entries[place].outcome = self.outcome_now();
        let id = self.entries[place].id;
        let mut receiver = |param, mean| self.received(&in_flight, param, mean);
        let sent = in_flight.push(id, flat(grad), recipients, &mut receiver);
        self.returned(in_flight, sent);
    }

    fn returned(&mut self, in_flight: InFlight, sent: Result<(), ReleaseError>) {
        self.stepper().in_flight = Some(in_flight);
        if let Err(error) = sent {
            self.stop.get_or_insert(error);
        }
    }

    /// Waits for the gradients that are in flight.
    pub(super) fn wait_for_all(&mut self) {
        let Some(in_flight) = self.stepper().in_flight.take() else {
            return;
        };
        let mut receiver = |param, mean| self.received(&in_flight, param, mean);
        let waited = in_flight.wait_for_all(&mut receiver);
        self.returned(in_flight, waited);
    }

    /// A mean over the replicas; `None` where another replica steps.
    fn received(
        &mut self,
        in_flight: &InFlight,
        param: ParamId,
        mean: Option<Tensor<1>>,
    ) -> Result<(), ReleaseError> {
        let Some(place) = self.places.get(&param).copied() else {
            return Ok(());
        };
        let shape = self.entries[place].shape.clone();
        self.arrived(place, mean.map(|mean| shaped(mean, shape)));
        if matches!(self.purpose, Purpose::Step(_)) && in_flight.reduction().is_sharded() {
            let weight = self.entries[place].value.take_weight();
            let weight = in_flight.weight_from_owner(param, weight)?;
            self.entries[place].value = Value::Weight(weight);
        }
        Ok(())
    }

    fn outcome_now(&self) -> Outcome {
        match self.has_ended {
            false => Outcome::Released,
            true => Outcome::AtEnd,
        }
    }

    /// A gradient that is the sum over micro-batches and the mean over replicas; `None` if another
    /// replica steps with it.
    fn arrived(&mut self, place: usize, grad: Option<DispatchTensor>) {
        if self.stop.is_some() {
            return;
        }
        let outcome = self.outcome_now();
        let Self {
            entries,
            purpose,
            stepper,
            progress,
            stop,
            ..
        } = self;
        let entry = &mut entries[place];
        let stepper = stepper.as_mut().expect("it is here until the pass is over");
        entry.outcome = outcome;
        let Some(grad) = grad else {
            progress.stepped += 1;
            return;
        };
        let lr = match purpose {
            Purpose::Step(lr) => lr,
            _ => {
                // Any rank will do.
                stepper
                    .pipeline
                    .measure(entry.id, Tensor::from_dispatch(grad));
                return;
            }
        };
        let weight = entry.value.take_weight();
        let is_in_place = weight.can_mut() && stepper.is_owner(entry.id);
        progress.is_stepping = true;
        let run = |weight, grad| {
            let step = Step {
                id: entry.id,
                path: &entry.path,
                weight,
                grad,
                lr,
                takes_f32: entry.takes_f32,
            };
            (entry.step)(stepper, step)
        };
        let (weight, stepped) = marks::step(weight, grad, run, |(weight, _)| Some(weight));
        progress.is_stepping = false;
        entry.value = Value::Weight(weight);
        match stepped {
            Stepped::Yes => {
                entry.sum = None;
                progress.stepped += 1;
                progress.in_place += usize::from(is_in_place);
            }
            Stepped::Overflown => entry.outcome = Outcome::Skipped,
            Stepped::NonFinite => {
                *stop = Some(ReleaseError::NonFinite {
                    path: entry.path.to_string(),
                    stepped: progress.stepped,
                    of: entries.len(),
                });
            }
            Stepped::NotMeasured => *stop = Some(ReleaseError::NotMeasured),
        }
    }

    /// Steps with what backward has left: sums of earlier micro-batches, and gradients in flight.
    pub(super) fn end_backward(&mut self) {
        self.has_ended = true;
        if matches!(self.purpose, Purpose::Accumulate { .. }) {
            return;
        }
        for place in 0..self.entries.len() {
            let entry = &self.entries[place];
            if !entry.is_done() && entry.sum.is_some() {
                self.complete(place, None);
            }
        }
        self.wait_for_all();
    }
}

fn step<const D: usize>(stepper: &mut Stepper, step: Step<'_>) -> (DispatchTensor, Stepped) {
    let is_owner = stepper.is_owner(step.id);
    let weight = Tensor::<D>::from_dispatch(step.weight);
    let grad = Tensor::<D>::from_dispatch(step.grad);
    let pipeline = &mut stepper.pipeline;
    let (weight, stepped) = match pipeline.transform(step.id, &weight, grad, step.takes_f32) {
        Transformed::Gradient(grad) if is_owner => {
            let optim = &mut stepper.optim;
            let weight = step_one(optim, step.lr.clone(), step.id, step.path, weight, grad);
            (weight, Stepped::Yes)
        }
        // Its owner steps it, and decides alike whether to skip it.
        Transformed::Gradient(_) => (weight, Stepped::Yes),
        Transformed::Overflown => (weight, Stepped::Overflown),
        Transformed::NonFinite => (weight, Stepped::NonFinite),
        Transformed::NotMeasured => (weight, Stepped::NotMeasured),
    };
    (weight.into_dispatch(), stepped)
}
