//! An armed parameter as user code holds it.

use std::sync::{Arc, Weak};

use burn::{
    module::ParamId,
    tensor::{
        DType, Shape,
        backend::Backend,
        ops::{Device, FloatTensor},
    },
};

use crate::{
    planner::trace::Tracer,
    slot::armed_set::ArmedSet,
    slot::reduction::InFlight,
    slot::{Action, Slot},
    subgraph::order::Use,
    subgraph::{Origins, Subgraph},
    tape::consumers::{Consumers, Owner},
    tape::{self, AdTensor},
    util::progress::Progress,
    util::stale_copy::StaleCopyGuard,
};

/// Owner of a [`Slot`]. Not `Clone`: a copy would either change with the original or keep its old
/// buffer alive, so copies are [`Snapshot`]s.
pub(crate) struct Live<B: Backend> {
    slot: Arc<Slot<B>>,
    site: Site<B>,
    _presence: Arc<()>,
}

/// A value read from a [`Slot`], with the leaf it had then.
#[derive(Clone)]
pub(crate) struct Snapshot<B: Backend> {
    pub(crate) leaf: AdTensor<B>,
    pub(crate) site: Site<B>,
    slot: Weak<Slot<B>>,
    /// Set if the copy was taken between backward and `step`.
    guard: Option<Arc<StaleCopyGuard>>,
}

/// The place of a leaf on the tape, which outlives an arming: a forward pass under one arming may
/// be run backward under the next.
#[derive(Clone)]
pub(crate) struct Site<B: Backend> {
    pub(crate) consumers: Arc<Consumers<B>>,
    pub(crate) origins: Origins<B>,
    /// The tracer that splits forward passes into segments, if any.
    pub(crate) tracer: Option<Arc<Tracer>>,
}

impl<B: Backend> Site<B> {
    /// A leaf without uses so far; `placeholder` stands for its value on the tape.
    pub(crate) fn new(
        leaf: &AdTensor<B>,
        placeholder: FloatTensor<B>,
        armed_set: &Arc<ArmedSet<B>>,
        origins: Origins<B>,
        tracer: Option<Arc<Tracer>>,
    ) -> Self {
        let consumers = Arc::new(Consumers::new(tape::key::<B>(leaf, placeholder)));
        armed_set.add_parameter(&consumers);
        Self {
            consumers,
            origins,
            tracer,
        }
    }
}

/// Arguments of arming a leaf.
pub(crate) struct Arming<B: Backend> {
    pub(crate) param: ParamId,
    pub(crate) site: Site<B>,
    pub(crate) progress: Arc<Progress>,
    pub(crate) in_flight: Option<Arc<InFlight<B>>>,
    pub(crate) action: Action<B>,
}

/// An armed leaf. If it is dropped before it is [kept](Self::keep), the arming is taken back.
pub(crate) struct Armed<B: Backend> {
    slot: Arc<Slot<B>>,
    /// The previous owner that the consumers reported to; `None` once this is kept.
    previous: Option<Option<Weak<dyn Owner>>>,
}

impl<B: Backend> Armed<B> {
    pub(crate) fn param(&self) -> ParamId {
        self.slot.param()
    }

    pub(crate) fn keep(mut self) -> Arc<Slot<B>> {
        self.previous = None;
        self.slot.clone()
    }
}

impl<B: Backend> Drop for Armed<B> {
    fn drop(&mut self) {
        if let Some(previous) = self.previous.take() {
            self.slot.end();
            self.slot.hand_back_consumers(previous);
        }
    }
}

impl<B: Backend> Arming<B> {
    /// Arms a leaf. Also returns the one owner of its value.
    pub(crate) fn arm(self, leaf: AdTensor<B>) -> (Armed<B>, Live<B>) {
        let presence = Arc::new(());
        let slot = Arc::new(Slot::new(
            self.param,
            leaf,
            self.action,
            self.progress,
            self.in_flight,
            Arc::downgrade(&presence),
            self.site.consumers.clone(),
        ));
        let owner: Weak<Slot<B>> = Arc::downgrade(&slot);
        let previous = self.site.consumers.replace_owner(Some(owner));
        let live = Live {
            slot: slot.clone(),
            site: self.site,
            _presence: presence,
        };
        let previous = Some(previous);
        (Armed { slot, previous }, live)
    }
}

impl<B: Backend> Live<B> {
    pub(crate) fn snapshot(&self) -> Snapshot<B> {
        let (leaf, guard) = self.slot.read();
        Snapshot {
            leaf,
            site: self.site.clone(),
            slot: Arc::downgrade(&self.slot),
            guard,
        }
    }

    pub(crate) fn has_value(&self) -> bool {
        self.slot.has_value()
    }

    /// A second handle to a parameter whose value is gone. A record that is loaded asks it for shape
    /// and device; reading it panics.
    pub(crate) fn without_value(&self) -> Self {
        Self {
            slot: self.slot.clone(),
            site: self.site.clone(),
            _presence: self._presence.clone(),
        }
    }

    pub(crate) fn shape(&self) -> Shape {
        self.slot.shape()
    }

    pub(crate) fn dtype(&self) -> DType {
        self.slot.dtype()
    }

    pub(crate) fn device(&self) -> Device<B> {
        self.slot.device()
    }
}

impl<B: Backend> Snapshot<B> {
    /// The slot it was read from, as long as the optimizer or the model has it.
    pub(crate) fn slot(&self) -> Option<Arc<Slot<B>>> {
        self.slot.upgrade()
    }

    /// The place on the tape that a new arming reuses: unless a backward pass has visited it,
    /// earlier forward passes may still be run backward.
    pub(crate) fn pending_site(&self) -> Option<Site<B>> {
        (!self.site.consumers.is_reached()).then(|| self.site.clone())
    }

    /// Whether the parameter waits for its gradient.
    pub(crate) fn is_awaited(&self) -> bool {
        self.site.consumers.is_awaited()
    }

    /// The parameter as it enters a subgraph, for one use or for all.
    pub(crate) fn enter(self, subgraph: &Arc<Subgraph<B>>, of: Option<Use>) -> Self {
        if let Some(here) = self.site.origins.subgraph()
            && Arc::ptr_eq(here, subgraph)
        {
            return self;
        }
        let (leaf, consumers, origins) =
            subgraph.enter_parameter(self.leaf, &self.site.consumers, of);
        Self {
            leaf,
            site: Site {
                consumers,
                origins,
                tracer: None,
            },
            ..self
        }
    }

    /// Whether a forward pass over it can still be run backward.
    pub(crate) fn is_on_tape(&self) -> bool {
        self.site.consumers.is_on_tape()
    }

    /// The leaf while it [is on the tape](Self::is_on_tape), and else a new one, which is in no old
    /// graph.
    pub(crate) fn into_ordinary_leaf(self) -> AdTensor<B> {
        let is_on_tape = self.is_on_tape();
        let leaf = self.into_leaf();
        match is_on_tape {
            true => leaf,
            false => tape::leaf::<B>(leaf.primitive),
        }
    }

    /// The leaf, to read its value.
    ///
    /// # Panics
    ///
    /// As [`StaleCopyGuard::check`].
    pub(crate) fn into_leaf(self) -> AdTensor<B> {
        if let Some(guard) = &self.guard {
            guard.check();
        }
        self.leaf
    }
}
