//! What an optimizer and the parameters it has armed share.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use burn::Tensor;
use burn::backend::autodiff::NodeId;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::module::ParamId;
use burn::optim::{GradientsParams, ModuleOptimizer};

use crate::gradients::GradientTransform;
use crate::lock::lock;
use crate::optimizer::ReleaseError;
use crate::recompute;
use crate::reduction::{GradientReduction, InFlight};
use crate::slot::ArmedSlot;
use crate::tape::{Clock, Reached};

/// Where backward steps a parameter in the first pass of a model, of which nothing is known yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FirstPass {
    /// [`Exact`](Self::Exact) while the optimizer has no states, [`Small`](Self::Small) if it was
    /// given some.
    ///
    /// States as large as the weights or larger (momentum, Adam) are made in the first step, and
    /// take the place of the gradients: then the first step needs no more memory than those after
    /// it.
    #[default]
    Auto,
    /// At the end of backward, where all gradients exist: plain Burn's memory, and its bits.
    Exact,
    /// As soon as a gradient is complete, by the time at which tensors were made. The gradient of
    /// an activation that is used three times or more may then be added up in another order than
    /// plain Burn's, in this one pass: a difference of the last bits.
    Small,
}

/// Shared by an optimizer, its armed parameters and their hooks.
#[derive(Debug)]
pub(crate) struct Session {
    stepper: Mutex<Stepper>,
    orders: Mutex<Orders>,
    slots: Mutex<HashMap<ParamId, Arc<dyn ArmedSlot>>>,
    /// Between `arm` and the call that ends it.
    armed: AtomicBool,
    pub(crate) progress: Progress,
    /// The way of gradients to the other replicas, if there are any.
    in_flight: Option<InFlight>,
}

/// Burn's optimizer, and the rates of this step.
pub(crate) struct Stepper {
    /// None of an accumulator.
    pub(crate) optim: Option<ModuleOptimizer>,
    /// While armed for a step.
    pub(crate) lr: Option<ModuleLearningRate>,
    pub(crate) gradients: GradientTransform,
    /// A step was begun, and not ended: it has panicked.
    pub(crate) stepping: bool,
    /// Of earlier micro-batches, of parameters that are not armed.
    pub(crate) sums: GradientsParams,
}

impl Stepper {
    /// A step outside of backward. If it panics, the stepper knows.
    pub(crate) fn step<R>(&mut self, step: impl FnOnce(&mut ModuleOptimizer) -> R) -> R {
        self.stepping = true;
        let result = step(self.optim.as_mut().expect("an optimizer has one"));
        self.stepping = false;
        result
    }
}

impl std::fmt::Debug for Stepper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
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
    /// Those whose weight nobody else held, so that its memory was written again.
    pub(crate) in_place: AtomicUsize,
    /// Gradients added to a sum inside backward.
    pub(crate) held: AtomicUsize,
    /// Whether a backward pass has come to a parameter.
    begun: AtomicBool,
}

impl Progress {
    pub(crate) fn reset(&self) {
        for counter in [&self.stepped, &self.in_place, &self.held] {
            counter.store(0, Ordering::Relaxed);
        }
        self.begun.store(false, Ordering::Relaxed);
    }

    pub(crate) fn begin(&self) {
        self.begun.store(true, Ordering::Relaxed);
    }

    pub(crate) fn has_begun(&self) -> bool {
        self.begun.load(Ordering::Relaxed)
    }

    pub(crate) fn count(counter: &AtomicUsize) {
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn get(counter: &AtomicUsize) -> usize {
        counter.load(Ordering::Relaxed)
    }
}

/// At which order of the tape each parameter's hook stands.
#[derive(Debug)]
struct Orders {
    first_pass: FirstPass,
    clock: Clock,
    /// As high as plain Burn's tape allows, in all passes seen so far.
    allowed: HashMap<Place, usize>,
    /// Uses of parameters and nodes made between them: two passes alike have the same.
    fingerprint: u64,
    last_id: u64,
    /// Of the last pass that was read.
    known: u64,
    /// Hooks made since the last arming.
    hooks: HashMap<u64, (Place, usize)>,
    /// Hooks of passes that were read.
    read: HashSet<u64>,
    /// Whether each hook was as low as plain Burn's tape wants it.
    plain: bool,
}

/// A parameter, on the tape of the model or on that of a scope which backward computes again.
pub(crate) type Place = (ParamId, bool);

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
            }),
            orders: Mutex::new(Orders {
                first_pass: FirstPass::default(),
                clock: Clock::new(),
                allowed: HashMap::new(),
                fingerprint: 0,
                last_id: 0,
                known: 0,
                hooks: HashMap::new(),
                read: HashSet::new(),
                plain: true,
            }),
            slots: Mutex::default(),
            armed: AtomicBool::new(false),
            progress: Progress::default(),
            in_flight: reduction.map(InFlight::new),
        }
    }

    pub(crate) fn in_flight(&self) -> Option<&InFlight> {
        self.in_flight.as_ref()
    }

    /// Sends a gradient to the other replicas. Its slot is handed the mean.
    pub(crate) fn reduce(
        &self,
        in_flight: &InFlight,
        param: ParamId,
        grad: Tensor<1>,
    ) -> Result<(), ReleaseError> {
        let recipients = self.stepper().gradients.recipients();
        let mut receiver = |param, grad| self.reduced(param, grad);
        in_flight.push(param, grad, recipients, &mut receiver)
    }

    /// Waits for the gradients that are on their way, and steps with them.
    pub(crate) fn wait_for_reductions(&self) -> Result<(), ReleaseError> {
        match &self.in_flight {
            Some(in_flight) => in_flight.wait_for_all(&mut |param, grad| self.reduced(param, grad)),
            None => Ok(()),
        }
    }

    fn reduced(&self, param: ParamId, grad: Option<Tensor<1>>) -> Result<(), ReleaseError> {
        let slot = self.slots().get(&param).cloned();
        slot.map_or(Ok(()), |slot| slot.reduced(self, grad))
    }

    pub(crate) fn is_armed(&self) -> bool {
        self.armed.load(Ordering::Relaxed)
    }

    pub(crate) fn set_armed(&self, armed: bool) {
        self.armed.store(armed, Ordering::Relaxed);
    }

    /// The parameters that are armed, by id.
    pub(crate) fn slots(&self) -> MutexGuard<'_, HashMap<ParamId, Arc<dyn ArmedSlot>>> {
        lock(&self.slots)
    }

    /// Ignores poisoning: `stepping` tells of a panic in a step.
    pub(crate) fn stepper(&self) -> MutexGuard<'_, Stepper> {
        lock(&self.stepper)
    }

    fn orders(&self) -> MutexGuard<'_, Orders> {
        lock(&self.orders)
    }

    /// A pass over newly armed parameters begins.
    pub(crate) fn begin_pass(&self, first_pass: FirstPass) {
        recompute::forget_random();
        if let Some(in_flight) = &self.in_flight {
            in_flight.begin_pass();
        }
        let mut orders = self.orders();
        orders.first_pass = first_pass;
        orders.clock = Clock::new();
        orders.fingerprint = 0;
        orders.last_id = NodeId::new().value;
        orders.hooks.clear();
        orders.read.clear();
        orders.plain = true;
    }

    /// Whether a pass was read, and not all orders are new.
    pub(crate) fn has_learned(&self) -> bool {
        !self.orders().allowed.is_empty()
    }

    /// Whether all gradients of the passes since the last arming were added up as in plain Burn.
    pub(crate) fn is_plain(&self) -> bool {
        self.orders().plain
    }

    /// A parameter is used. Returns the order for its hook, and whether it is that of plain Burn's
    /// consumers or of the clock, and not merely the lowest.
    pub(crate) fn order_of(&self, place: Place) -> (usize, bool) {
        let mut orders = self.orders();
        let (id, in_scope) = place;
        if !in_scope {
            let now = NodeId::new().value;
            orders.fingerprint = hash(&(orders.fingerprint, id.val(), now - orders.last_id));
            orders.last_id = now;
        }
        match orders.allowed.get(&place) {
            Some(order) => (*order, true),
            None => match orders.first_pass {
                FirstPass::Small => (orders.clock.now() + 1, true),
                FirstPass::Auto | FirstPass::Exact => (1, false),
            },
        }
    }

    /// A hook was made at this order.
    pub(crate) fn hook_made(&self, hook: NodeId, place: Place, order: usize) {
        let mut orders = self.orders();
        orders.hooks.insert(hook.value, (place, order));
        // The nodes below a hook are not those of a forward pass.
        orders.clock.skip();
    }

    /// Backward has come to a hook: learns from the pass where the hooks of the next may stand.
    pub(crate) fn learn(&self, hook: NodeId, place: Place, checkpointer: &Checkpointer) {
        self.progress.begin();
        let mut orders = self.orders();
        let alike = orders.fingerprint == orders.known && orders.allowed.contains_key(&place);
        if alike || orders.read.contains(&hook.value) {
            return;
        }
        let hooks: HashSet<u64> = orders.hooks.keys().copied().collect();
        let allowed = match Reached::read(checkpointer) {
            Some(reached) => reached.allowed(&hooks),
            None => {
                orders.plain = false;
                HashMap::new()
            }
        };
        // What could not be read is not looked for again in this pass.
        orders.read.insert(hook.value);
        for (hook, highest) in allowed {
            let (place, order) = orders.hooks[&hook];
            orders.plain &= order <= highest;
            let known = orders.allowed.entry(place).or_insert(highest);
            *known = highest.min(*known);
            orders.read.insert(hook);
        }
        if !place.1 {
            orders.known = orders.fingerprint;
        }
    }
}

fn hash(value: &impl std::hash::Hash) -> u64 {
    use std::hash::{DefaultHasher, Hasher};
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}
