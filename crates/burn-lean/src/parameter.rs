//! The reparameterization of an armed `Param`: a reference to its slot, or to the weight at the
//! moment at which the model was copied.

use std::cell::RefCell;
use std::collections::HashSet;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Weak};
use std::thread::LocalKey;

use burn::Tensor;
use burn::backend::DispatchTensor;
use burn::module::{Devices, Module, ModuleMapper, ModuleVisitor, ParamId, Reparameterization};
use burn::tensor::Device;

use crate::marks;
use crate::path::path_text;
use crate::recompute::{Mode, mode, record, replayed};
use crate::session::{Slot, Snapshot};
use crate::tape::{Holds, constant, is_tracked, leaf_hook, node_of};

thread_local! {
    /// Set while clones share the slot, instead of keeping a snapshot of the weight.
    static SHARE: RefCell<Option<Share>> = const { RefCell::new(None) };
    /// The armed parameters that the current visit has met.
    static FOUND: RefCell<Option<Vec<Found>>> = const { RefCell::new(None) };
}

/// What clones that share their slots are for.
pub(crate) enum Share {
    /// The module of a scope. There, all parameters are constants: so it says which are apart from
    /// the armed ones, frozen or with a leaf of their own, by their [places](Found::place).
    Scope { apart: HashSet<usize> },
    /// The model itself.
    Model,
}

/// Maps a copy of a model whose armed parameters share the slots of the model. The mapper must not
/// change placeholders.
pub(crate) fn shared<M: Module>(model: &M, share: Share, mapper: &mut impl ModuleMapper) -> M {
    during(&SHARE, share, || model.clone().map(mapper))
}

fn shares() -> bool {
    SHARE.with_borrow(Option::is_some)
}

/// An armed parameter that a visit has met.
pub(crate) struct Found {
    /// As it was armed. A record that was loaded since may have given it another.
    pub(crate) id: ParamId,
    pub(crate) slot: Arc<Slot>,
    /// The address of its reparameterization. A module may have two of one id.
    pub(crate) place: usize,
    /// Whether it belongs to the module of a scope, in which all bases are constants.
    pub(crate) is_in_scope: bool,
    pub(crate) holder: Holder,
    /// Whether its weight differs from the slot's, or it has a leaf of its own.
    pub(crate) is_apart: bool,
    /// Whether its arming has not ended.
    pub(crate) is_armed: bool,
}

/// What holds the weight of a parameter that was armed.
pub(crate) enum Holder {
    /// The slot, for the model itself, whoever has armed it.
    Slot,
    /// The slot, but another model was armed in place of this one: like a copy, it is no longer stepped.
    Abandoned,
    /// A copy of the model.
    Copy(Weak<Snapshot>),
    /// The `Param`: the arming has ended.
    Param,
}

impl Found {
    /// Whether the slot holds the weight, for the model itself.
    pub(crate) fn is_open(&self) -> bool {
        matches!(self.holder, Holder::Slot)
    }

    /// Whether it keeps its weight, and is not stepped.
    pub(crate) fn is_copy(&self) -> bool {
        matches!(self.holder, Holder::Abandoned | Holder::Copy(_))
    }

    /// Whether it belongs to a step that was interrupted, or to a copy of a model in the middle of one.
    pub(crate) fn is_half(&self) -> bool {
        match &self.holder {
            Holder::Slot => self.slot.is_stepped() || !self.slot.has_weight(),
            Holder::Copy(copy) => {
                let is_new = |copy: Arc<Snapshot>| copy.after_step && self.slot.is_current(&copy);
                copy.upgrade().is_some_and(is_new)
            }
            Holder::Abandoned | Holder::Param => false,
        }
    }

    /// The weight of a copy.
    pub(crate) fn copied(&self) -> Option<DispatchTensor> {
        match &self.holder {
            Holder::Copy(copy) => Some(copy.upgrade()?.weight.clone()),
            _ => None,
        }
    }

    /// Whether its arming has ended, and the `Param` has its weight back.
    pub(crate) fn has_ended(&self) -> bool {
        matches!(self.holder, Holder::Param)
    }
}

/// Visits a model, and returns the armed parameters in it.
pub(crate) fn find<M: Module, V: ModuleVisitor>(model: &M, visitor: &mut V) -> Vec<Found> {
    during(&FOUND, Vec::new(), || {
        model.visit(visitor);
        FOUND.take().unwrap_or_default()
    })
}

/// Runs something with a value of this thread, and puts back the one before, after a panic too.
fn during<T: 'static, R>(
    local: &'static LocalKey<RefCell<Option<T>>>,
    value: T,
    run: impl FnOnce() -> R,
) -> R {
    struct Back<T: 'static>(&'static LocalKey<RefCell<Option<T>>>, Option<T>);
    impl<T> Drop for Back<T> {
        fn drop(&mut self) {
            self.0.set(self.1.take());
        }
    }
    let _back = Back(local, local.replace(Some(value)));
    run()
}

/// The path of a parameter of a model that holds a placeholder, if there is one.
pub(crate) fn armed_path<M: Module>(model: &M) -> Option<String> {
    struct Visitor;
    impl ModuleVisitor for Visitor {}
    let found = find(model, &mut Visitor);
    let armed = found.iter().find(|found| !found.has_ended())?;
    Some(path_text(&armed.slot.path()))
}

/// The reparameterization of an armed parameter.
#[derive(Debug)]
pub(crate) struct Released {
    slot: Arc<Slot>,
    /// The weight of a copy of the model.
    copy: Option<Arc<Snapshot>>,
    /// Whether the parameter is the model's own: it counts in the slot.
    is_own: bool,
    /// Whether the parameter has a leaf of its own.
    is_fork: bool,
    role: Role,
    /// Whether the base is the placeholder: `UNKNOWN`, `PLACEHOLDER` or `WEIGHT`.
    base: AtomicU8,
}

/// What the parameter is part of.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Role {
    /// A model.
    Model,
    /// The module of a scope.
    Scope,
    /// The module of a scope, but apart from what is armed.
    ApartInScope,
}

const UNKNOWN: u8 = 0;
const PLACEHOLDER: u8 = 1;
const WEIGHT: u8 = 2;

impl Clone for Released {
    fn clone(&self) -> Self {
        match shares() {
            true => self.share(),
            false => self.copy(),
        }
    }
}

impl Drop for Released {
    fn drop(&mut self) {
        let is_copy = self.copy.take().is_some();
        if self.is_own {
            self.slot.owners.fetch_sub(1, Ordering::Relaxed);
        }
        if self.is_own || is_copy {
            self.slot.leave_tape_if_unused();
        }
    }
}

impl Released {
    pub(crate) const CONTAINER: &'static str = <Self as Reparameterization>::NAME;

    pub(crate) fn new(slot: Arc<Slot>) -> Self {
        let released = Self {
            slot,
            copy: None,
            is_own: false,
            is_fork: false,
            role: Role::Model,
            base: AtomicU8::new(PLACEHOLDER),
        };
        released.owned()
    }

    /// Makes it the model's own.
    fn owned(mut self) -> Self {
        self.slot.owners.fetch_add(1, Ordering::Relaxed);
        self.is_own = true;
        self
    }

    /// The same parameter with another slot or another weight.
    fn with(&self, slot: Arc<Slot>, copy: Option<Arc<Snapshot>>) -> Self {
        Self {
            slot,
            copy,
            is_own: false,
            is_fork: self.is_fork,
            role: self.role,
            base: AtomicU8::new(self.base.load(Ordering::Relaxed)),
        }
    }

    fn share(&self) -> Self {
        let role = SHARE.with_borrow(|share| match share {
            Some(Share::Scope { apart }) if apart.contains(&self.place()) => Role::ApartInScope,
            Some(Share::Scope { .. }) if self.role == Role::Model => Role::Scope,
            _ => self.role,
        });
        // A copy with the slot's weight would keep the step from writing in place. What is apart
        // keeps its weight over that step.
        let is_kept = role == Role::ApartInScope || !self.is_the_slots();
        let copy = self.copy.clone().filter(|_| is_kept);
        let mut shared = self.with(self.slot.clone(), copy);
        shared.role = role;
        shared
    }

    fn place(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    fn copy(&self) -> Self {
        if !self.is_transparent() {
            let copy = self.copy.clone().or_else(|| self.slot.snapshot());
            return self.with(self.slot.clone(), copy);
        }
        // It may be armed itself.
        let twin = self.with(Arc::new(self.slot.unarmed_twin()), None);
        twin.owned()
    }

    fn moved(mut self, device: &Device, detached: bool) -> Self {
        if self.is_transparent() {
            return self.copy();
        }
        // Any rank will do.
        let weight = Tensor::<1>::from_dispatch(self.weight());
        let device = device.clone().inner();
        let is_here = weight.device() == device;
        if is_here && !detached {
            return self;
        }
        let copy = match is_here {
            true => self.copy.clone().or_else(|| self.slot.snapshot()),
            false => Some(self.slot.moved(weight.to_device(&device).into_dispatch())),
        };
        let mut fork = self.with(self.slot.clone(), copy);
        fork.is_own = std::mem::take(&mut self.is_own);
        fork.is_fork = true;
        fork
    }

    fn weight(&self) -> DispatchTensor {
        match &self.copy {
            Some(copy) => copy.weight.clone(),
            None => self.slot.weight(),
        }
    }

    /// Whether the arming has ended, and the `Param` has its weight back.
    fn is_transparent(&self) -> bool {
        self.copy.is_none() && self.slot.phase().has_ended() && !self.slot.has_weight()
    }

    /// Whether a gradient of this parameter belongs to the slot.
    fn is_the_slots(&self) -> bool {
        let is_current = |copy: &Arc<Snapshot>| self.slot.is_current(copy);
        let is_open = !self.slot.phase().has_ended() && self.slot.has_weight();
        !self.is_fork && is_open && self.copy.as_ref().is_none_or(is_current)
    }

    /// Whether the base is still the placeholder, and not a weight that was loaded since.
    fn has_placeholder(&self, base: &DispatchTensor) -> bool {
        match self.base.load(Ordering::Relaxed) {
            UNKNOWN => {
                let known = match Holds::of_armed(base) {
                    Holds::Placeholder => PLACEHOLDER,
                    Holds::Weight => WEIGHT,
                    Holds::Computed => panic!(
                        "gradient release: something was computed from the placeholder that {} has \
                         while it is armed (by a mapper, `quantize_weights`, an average, another \
                         optimizer); read it with `val()`, or make a copy an ordinary model with \
                         `materialize()` before",
                        path_text(&self.slot.path())
                    ),
                };
                self.base.store(known, Ordering::Relaxed);
                known == PLACEHOLDER
            }
            known => known == PLACEHOLDER,
        }
    }

    fn read(&self, base: DispatchTensor) -> DispatchTensor {
        if self.is_transparent() {
            let is_placeholder = self.base.load(Ordering::Relaxed) == PLACEHOLDER
                || node_of(&base) == Some(self.slot.leaf_id());
            assert!(
                !is_placeholder,
                "gradient release: the weight of {} went to a copy of the model, whose parameter was \
                 built anew; use the model that `step` or `disarm` returned",
                path_text(&self.slot.path())
            );
            return base;
        }
        let Some(leaf) = node_of(&base) else {
            return match self.has_placeholder(&base) {
                true => self.weight(),
                false => base,
            };
        };
        if leaf == self.slot.leaf_id() {
            return self.read_armed(base);
        }
        // The module of a scope holds no leaf of the model. What `forward` has captured does.
        let is_in_scope = mode() != Mode::Tape && self.role == Role::Scope;
        if is_in_scope && self.is_the_slots() && self.has_placeholder(&base) {
            return self.read_armed(base);
        }
        if !self.has_placeholder(&base) {
            return base;
        }
        // Whether a scope runs is known to its own thread only.
        assert!(
            !(self.role == Role::Scope && self.is_the_slots()),
            "checkpoint: {} is read on another thread than the one that runs the scope, \
             where it would get no gradient; read the weight before the other thread \
             begins, or make a scope of what each thread computes",
            path_text(&self.slot.path())
        );
        self.slot.mark_used();
        match is_tracked(&base) {
            true => self.read_over(&base),
            false => constant(self.weight(), base.autodiff),
        }
    }

    /// The parameter of the model that is armed, or of a copy with the same weight.
    fn read_armed(&self, base: DispatchTensor) -> DispatchTensor {
        if !self.is_the_slots() {
            return self.read_over(&base);
        }
        self.slot.mark_used();
        let read = match mode() {
            Mode::Tape => self.slot.on_tape(true),
            Mode::Recording => {
                record(&self.slot);
                constant(self.slot.weight(), base.autodiff)
            }
            Mode::Replaying => replayed(&self.slot),
        };
        marks::read(&read);
        DispatchTensor {
            autodiff: base.autodiff,
            ..read
        }
    }

    /// Puts the weight over a leaf that is not stepped inside backward.
    fn read_over(&self, leaf: &DispatchTensor) -> DispatchTensor {
        leaf_hook(self.weight(), leaf, 0, Weak::<Slot>::new(), Arc::default())
    }

    fn found(&self) -> Found {
        let holder = match &self.copy {
            Some(copy) => Holder::Copy(Arc::downgrade(copy)),
            None if self.is_transparent() => Holder::Param,
            None if self.slot.phase().has_ended() => Holder::Abandoned,
            None => Holder::Slot,
        };
        Found {
            id: self.slot.id(),
            slot: self.slot.clone(),
            place: self.place(),
            is_in_scope: self.role != Role::Model,
            holder,
            is_apart: !self.is_the_slots(),
            is_armed: self.slot.is_armed(),
        }
    }
}

impl Reparameterization for Released {
    const NAME: &'static str = "gradient_release";

    fn apply<const D: usize>(&self, base: Tensor<D>) -> Tensor<D> {
        Tensor::from_dispatch(self.read(base.into_dispatch()))
    }
}

impl Module for Released {
    fn visit<V: ModuleVisitor>(&self, _: &mut V) {
        FOUND.with_borrow_mut(|found| {
            if let Some(found) = found {
                found.push(self.found());
            }
        });
    }

    fn map<M: ModuleMapper>(self, _: &mut M) -> Self {
        if !shares() {
            // A constant does not tell whether it was frozen.
            assert!(
                mode() == Mode::Tape || self.role != Role::Scope,
                "checkpoint: {} was mapped inside of the closure of a scope (by `no_grad` or a mapper), \
                 which would not change its gradient; call `detach` on the result, or map a copy of the \
                 module outside of the closure",
                path_text(&self.slot.path())
            );
            self.base.store(UNKNOWN, Ordering::Relaxed);
            if self.copy.is_none() {
                self.slot.mark_mapped();
            }
        }
        self
    }

    fn collect_devices(&self, devices: Devices) -> Devices {
        devices
    }

    fn to_device(self, device: &Device) -> Self {
        self.moved(device, false)
    }

    fn fork(self, device: &Device) -> Self {
        self.moved(device, true)
    }

    fn valid(&self) -> Self {
        self.copy()
    }

    fn train(self) -> Self {
        self
    }

    fn materialize(self) -> Self {
        self
    }
}
