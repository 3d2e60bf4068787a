//! Where on Burn's tape the hook of each parameter stands.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use burn::backend::autodiff::NodeId;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::module::ParamId;

use crate::tape::{self, Clock, ReachedOrders as Reached};

/// Where backward steps a parameter in the first pass of a model, whose tape is not known yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FirstPass {
    /// [`Exact`](Self::Exact) while the optimizer has no states, [`Small`](Self::Small) if it was
    /// given some.
    ///
    /// The first step creates states as large as the weights or larger (momentum, Adam), in the
    /// memory of the gradients: so it needs no more memory than later steps. With smaller states
    /// (moments in 8 bits, Adafactor, SGD without momentum) it may need more: take
    /// [`Small`](Self::Small).
    #[default]
    Auto,
    /// At the end of backward, where all gradients exist: plain Burn's memory, and its bits.
    Exact,
    /// As soon as a gradient is complete, in the order in which tensors were made. In this one
    /// pass, the gradient of an activation that is used three times or more may be added up in
    /// another order than in plain Burn, which changes the last bits.
    Small,
}

/// Identifies the hook of a parameter from pass to pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct HookKey {
    param: ParamId,
    /// The hook is on the tape of a recomputed scope, and not on that of the model.
    in_scope: bool,
}

impl HookKey {
    pub(crate) fn on_model(param: ParamId) -> Self {
        Self {
            param,
            in_scope: false,
        }
    }

    pub(crate) fn in_scope(param: ParamId) -> Self {
        Self {
            param,
            in_scope: true,
        }
    }
}

/// The orders of hooks, learned from the passes so far.
#[derive(Debug)]
pub(crate) struct HookOrders {
    first_pass: FirstPass,
    clock: Clock,
    /// The highest order of each hook that plain Burn's tape allows in all passes read so far.
    allowed: HashMap<HookKey, usize>,
    /// Hash of this pass: the parameters used, and the number of nodes made between them.
    fingerprint: u64,
    last_id: u64,
    /// The fingerprint of the last pass that was read.
    known: u64,
    /// Hooks made since the last arming, by node: their keys and orders.
    hooks: HashMap<u64, (HookKey, usize)>,
    /// Nodes of the hooks that were read.
    read: HashSet<u64>,
    /// Whether no hook was higher than plain Burn's tape allows.
    plain: bool,
}

impl HookOrders {
    pub(crate) fn new() -> Self {
        Self {
            first_pass: FirstPass::default(),
            clock: Clock::new(),
            allowed: HashMap::new(),
            fingerprint: 0,
            last_id: 0,
            known: 0,
            hooks: HashMap::new(),
            read: HashSet::new(),
            plain: true,
        }
    }

    /// Begins a pass over armed parameters. Their hooks stay where they are armed already, and no
    /// backward pass has reached them. A pass that goes on with the sums of others is plain if they are.
    pub(crate) fn begin_pass(&mut self, first_pass: FirstPass, hooks_stay: bool, goes_on: bool) {
        tape::begin_pass();
        self.first_pass = first_pass;
        self.clock = Clock::new();
        self.fingerprint = 0;
        self.last_id = NodeId::new().value;
        if !hooks_stay {
            self.forget_hooks();
            self.plain |= !goes_on;
        }
    }

    /// Forgets the hooks of forward passes that no backward of this step comes to.
    pub(crate) fn forget_hooks(&mut self) {
        self.hooks.clear();
        self.read.clear();
    }

    /// Whether a pass was read.
    pub(crate) fn has_learned(&self) -> bool {
        !self.allowed.is_empty()
    }

    /// Whether all gradients since the last arming, or of this window, were added up as in plain Burn.
    pub(crate) fn is_plain(&self) -> bool {
        self.plain
    }

    /// Notes a use of a parameter. Returns the order for its hook, and whether that is where
    /// consumers of the parameter begin, rather than the end of backward.
    pub(crate) fn order_of(&mut self, key: HookKey) -> (usize, bool) {
        if !key.in_scope {
            let now = NodeId::new().value;
            self.fingerprint = hash(&(self.fingerprint, key.param.val(), now - self.last_id));
            self.last_id = now;
        }
        match self.allowed.get(&key) {
            Some(order) => (*order, true),
            None => match self.first_pass {
                FirstPass::Small => (self.clock.now() + 1, true),
                FirstPass::Auto | FirstPass::Exact => (1, false),
            },
        }
    }

    pub(crate) fn hook_made(&mut self, hook: NodeId, key: HookKey, order: usize) {
        self.hooks.insert(hook.value, (key, order));
        // The nodes below a hook are not those of a forward pass.
        self.clock.skip();
    }

    /// Learns from the pass that has reached a hook where the hooks of the next pass may stand.
    pub(crate) fn learn(&mut self, hook: NodeId, key: HookKey, checkpointer: &Checkpointer) {
        let is_alike = self.fingerprint == self.known && self.allowed.contains_key(&key);
        if is_alike || self.read.contains(&hook.value) {
            return;
        }
        let hooks: HashSet<u64> = self.hooks.keys().copied().collect();
        let allowed = match Reached::read(checkpointer) {
            Some(reached) => reached.allowed(&hooks),
            None => {
                self.plain = false;
                HashMap::new()
            }
        };
        // A hook that could not be read is not read again in this pass.
        self.read.insert(hook.value);
        for (hook, highest) in allowed {
            let (key, order) = self.hooks[&hook];
            self.plain &= order <= highest;
            let known = self.allowed.entry(key).or_insert(highest);
            *known = highest.min(*known);
            self.read.insert(hook);
        }
        if !key.in_scope {
            self.known = self.fingerprint;
        }
    }
}

fn hash(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}
