//! What an optimizer and its armed parameters share, and the slots of those: a slot owns the weight
//! of its parameter. From `arm` to `step`, the `Param` holds none.

mod armed;
mod gradient;
mod phase;
mod slot;
mod weight;

use std::any::Any;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use burn::Tensor;
use burn::backend::DispatchTensor;
use burn::backend::autodiff::NodeId;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::module::ParamId;
use burn::optim::{GradientsParams, ModuleOptimizer};
use burn::tensor::{DType, Device, Shape};

use crate::error::ReleaseError;
use crate::gradients::GradientTransform;
use crate::hook_orders::{FirstPass, HookKey, HookOrders};
use crate::lock::lock;
use crate::path::Path;
use crate::recompute::forget_random;
use crate::reduction::{GradientReduction, InFlight};
use crate::tape::{OnTape, node_of};
pub(crate) use phase::{Phase, Purpose, Taken};
use weight::{Open, Uses, Weight};
pub(crate) use weight::{Snapshot, some_are_armed};

/// Shared by an optimizer, its armed parameters and their hooks.
#[derive(Debug)]
pub(crate) struct Session {
    stepper: Mutex<Stepper>,
    orders: Mutex<HookOrders>,
    slots: Mutex<HashMap<ParamId, Arc<Slot>>>,
    armed: Mutex<Armed>,
    pub(crate) progress: Progress,
    /// Whether gradients in half precision are summed in f32.
    pub(crate) sums_in_f32: bool,
    /// The gradients in flight to the other replicas, if there are any.
    in_flight: Option<InFlight>,
}

/// Models may be gone before their optimizer, without a `step`.
impl Drop for Session {
    fn drop(&mut self) {
        let slots = std::mem::take(&mut *self.slots());
        slots.values().for_each(|slot| slot.leave_tape_if_unused());
    }
}

/// An armed parameter.
pub(crate) struct Slot {
    /// In the model that it was armed in last, as the path.
    id: AtomicU64,
    path: Mutex<Arc<Path>>,
    step: StepFn,
    mapper: Mutex<Arc<dyn Any + Send + Sync>>,
    state: Mutex<State>,
    /// How many parameters are the model's own: none once it is gone. Those of copies do not count.
    pub(crate) owners: AtomicU32,
}

/// Steps a weight with its gradient, if this replica has the optimizer state. Returns the weight,
/// and whether it was stepped or skipped.
pub(crate) type StepFn = fn(
    &mut Stepper,
    ParamId,
    &Path,
    weight: DispatchTensor,
    grad: DispatchTensor,
    is_owner: bool,
) -> (DispatchTensor, Taken);

/// The state of a slot in one arming.
struct State {
    session: Weak<Session>,
    leaf_id: NodeId,
    shape: Shape,
    /// The one element of the placeholder. It marks a gradient that was taken, too.
    mark: DispatchTensor,
    /// The weight has gone on, and has not had the gradient of this arming. Hooks hold it too, and
    /// outlive the slot.
    has_gone_on: Arc<AtomicBool>,
    /// The leaf of the parameter while it is armed. Burn frees no graph of which a node is held.
    leaf: Option<OnTape>,
    weight: Weight,
    purpose: Purpose,
    /// Gradients of earlier micro-batches. In a box, as most parameters have none.
    sum: Option<Box<DispatchTensor>>,
    phase: Phase,
    open: Option<Open>,
    uses: Uses,
    /// The hook is at the end of backward, where all gradients exist.
    is_late: bool,
    /// A mapper has visited the parameter.
    was_mapped: bool,
    /// The weight before and after the step, which copies of the model hold.
    snapshots: [Weak<Snapshot>; 2],
    /// The weight on other devices, which copies of the model hold.
    moved: Vec<Weak<Snapshot>>,
}

/// How far an optimizer is in its step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Armed {
    /// Its slots take no gradients.
    Not,
    /// No backward pass has reached a parameter.
    Fresh,
    Begun,
}

/// Burn's optimizer and the settings of this step.
pub(crate) struct Stepper {
    /// `None` for an accumulator.
    pub(crate) optim: Option<ModuleOptimizer>,
    /// The learning rates, while parameters are armed for a step.
    pub(crate) lr: Option<ModuleLearningRate>,
    pub(crate) gradients: GradientTransform,
    /// A step is running, or has panicked.
    pub(crate) stepping: bool,
    /// Sums of earlier micro-batches of parameters that are not armed.
    pub(crate) sums: GradientsParams,
    /// The session that armed their model, if another one has loaded a record since.
    pub(crate) sums_of: Option<Weak<Session>>,
    /// Whether all sums of earlier micro-batches are known to have been added up as in plain Burn.
    pub(crate) sums_are_plain: bool,
    /// For each device, the parameters, with their types, that the optimizer is known to step there.
    pub(crate) asked: Vec<(Device, HashSet<(ParamId, DType)>)>,
}

impl Stepper {
    /// Runs a step outside of backward, and records a panic in `stepping`.
    pub(crate) fn step<R>(&mut self, step: impl FnOnce(&mut ModuleOptimizer) -> R) -> R {
        self.stepping = true;
        let result = step(
            self.optim
                .as_mut()
                .expect("a release optimizer has Burn's optimizer"),
        );
        self.stepping = false;
        result
    }
}

impl fmt::Debug for Stepper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stepper")
            .field("armed", &self.lr.is_some())
            .finish_non_exhaustive()
    }
}

/// Counters of one armed step.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// Parameters stepped inside backward.
    pub(crate) stepped: AtomicUsize,
    /// Parameters stepped in place, because nothing else held the weight.
    pub(crate) in_place: AtomicUsize,
    /// Gradients added to a sum inside backward.
    pub(crate) held: AtomicUsize,
}

impl Progress {
    pub(crate) fn reset(&self) {
        for counter in [&self.stepped, &self.in_place, &self.held] {
            counter.store(0, Ordering::Relaxed);
        }
    }

    pub(crate) fn count(counter: &AtomicUsize) {
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn get(counter: &AtomicUsize) -> usize {
        counter.load(Ordering::Relaxed)
    }
}

impl Session {
    pub(crate) fn new(
        optim: Option<ModuleOptimizer>,
        reduction: Option<Arc<dyn GradientReduction>>,
    ) -> Self {
        Self {
            stepper: Mutex::new(Stepper {
                optim,
                lr: None,
                gradients: GradientTransform::default(),
                stepping: false,
                sums: GradientsParams::new(),
                sums_of: None,
                sums_are_plain: true,
                asked: Vec::new(),
            }),
            orders: Mutex::new(HookOrders::new()),
            slots: Mutex::default(),
            armed: Mutex::new(Armed::Not),
            progress: Progress::default(),
            sums_in_f32: false,
            in_flight: reduction.map(InFlight::new),
        }
    }

    pub(crate) fn in_flight(&self) -> Option<&InFlight> {
        self.in_flight.as_ref()
    }

    /// Whether this replica steps a parameter.
    pub(crate) fn is_owner(&self, param: ParamId) -> bool {
        let reduction = self.in_flight().map(InFlight::reduction);
        reduction.is_none_or(|reduction| reduction.is_owner(param))
    }

    /// The weight of a parameter after the step of its owner.
    pub(crate) fn weight_from_owner(
        &self,
        param: ParamId,
        weight: DispatchTensor,
    ) -> Result<DispatchTensor, ReleaseError> {
        match &self.in_flight {
            Some(in_flight) => in_flight.weight_from_owner(param, weight),
            None => Ok(weight),
        }
    }

    /// Sends a gradient to the other replicas. Its slot receives the mean.
    pub(crate) fn reduce(
        &self,
        in_flight: &InFlight,
        param: ParamId,
        grad: Tensor<1>,
    ) -> Result<(), ReleaseError> {
        let recipients = self.stepper().gradients.recipients();
        let mut receiver = |param, grad| self.reduced(param, grad);
        let is_used = |param| {
            let slot = self.slots().get(&param).cloned();
            slot.is_some_and(|slot| slot.is_used())
        };
        in_flight.push(param, grad, recipients, is_used, &mut receiver)
    }

    /// Waits for the gradients in flight, and steps with them.
    pub(crate) fn wait_for_reductions(&self) -> Result<(), ReleaseError> {
        match &self.in_flight {
            Some(in_flight) => in_flight.wait_for_all(&mut |param, grad| self.reduced(param, grad)),
            None => Ok(()),
        }
    }

    /// Measures the norm of a complete gradient.
    pub(crate) fn measure(&self, param: ParamId, grad: DispatchTensor) {
        // Any rank will do.
        let grad = Tensor::<1>::from_dispatch(grad);
        self.stepper().gradients.measure(param, grad);
    }

    fn reduced(&self, param: ParamId, grad: Option<Tensor<1>>) -> Result<(), ReleaseError> {
        let slot = self.slots().get(&param).cloned();
        slot.map_or(Ok(()), |slot| slot.reduced(grad))
    }

    pub(crate) fn is_armed(&self) -> bool {
        *lock(&self.armed) != Armed::Not
    }

    /// Whether a backward pass has reached a parameter since the last arming.
    pub(crate) fn has_begun(&self) -> bool {
        *lock(&self.armed) == Armed::Begun
    }

    /// The slots take gradients from now on.
    pub(crate) fn arm(&self) {
        *lock(&self.armed) = Armed::Fresh;
    }

    /// A backward pass has reached a parameter.
    pub(crate) fn begin(&self) {
        let mut armed = lock(&self.armed);
        if *armed == Armed::Fresh {
            *armed = Armed::Begun;
        }
    }

    /// The slots take no gradient until they are armed again.
    pub(crate) fn disarm(&self) {
        *lock(&self.armed) = Armed::Not;
    }

    pub(crate) fn slots(&self) -> MutexGuard<'_, HashMap<ParamId, Arc<Slot>>> {
        lock(&self.slots)
    }

    /// Whether a slot is one of those that are armed here. Those of a window that is over are not: another
    /// model may be armed since.
    pub(crate) fn has(&self, slot: &Slot) -> bool {
        let slots = self.slots();
        let own = slots.get(&slot.id());
        own.is_some_and(|own| std::ptr::eq(&**own, slot))
    }

    /// Ignores poisoning: `stepping` records a panic in a step.
    pub(crate) fn stepper(&self) -> MutexGuard<'_, Stepper> {
        lock(&self.stepper)
    }

    pub(crate) fn orders(&self) -> MutexGuard<'_, HookOrders> {
        lock(&self.orders)
    }

    /// Begins a pass over newly armed parameters, which may go on with the sums of earlier ones.
    pub(crate) fn begin_pass(&self, first_pass: FirstPass, goes_on: bool) {
        forget_random();
        if let Some(in_flight) = &self.in_flight {
            in_flight.begin_pass();
        }
        let hooks_stay = *lock(&self.armed) == Armed::Fresh;
        self.orders().begin_pass(first_pass, hooks_stay, goes_on);
    }

    pub(crate) fn hook_made(&self, hook: &DispatchTensor, key: HookKey, order: usize) {
        let hook = node_of(hook).expect("a hook is on the tape");
        self.orders().hook_made(hook, key, order);
    }

    /// Learns from the pass that has reached a hook: [`HookOrders::learn`].
    pub(crate) fn learn(&self, hook: NodeId, key: HookKey, checkpointer: &Checkpointer) {
        self.begin();
        self.orders().learn(hook, key, checkpointer);
    }
}
