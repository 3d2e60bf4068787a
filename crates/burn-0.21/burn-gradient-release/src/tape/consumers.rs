//! Consumers of a parameter, or of a tensor derived from parameters, and how the contributions to
//! its gradient add up.
//!
//! Plain Burn adds contributions in the order in which it runs the consumers: by order on the tape,
//! highest first, then as they were reached. [Direct consumers](Consumers::consume) are Burn's own
//! nodes and add up by themselves. A [derived tensor](DerivedConsumer) gives its contribution
//! earlier than plain Burn's node would; it is added where that node would have added it, or at
//! once where the order is known and cannot be wrong.

use std::any::Any;
use std::sync::{
    Arc, Mutex, MutexGuard, Weak,
    atomic::{AtomicUsize, Ordering},
};

use burn::tensor::{backend::Backend, ops::FloatTensor};
use burn_autodiff::{NodeId, grads::Gradients};

use crate::{
    tape::tally::{Completion, Tally},
    tape::visit::Visit,
    tape::{self, AdTensor},
    util::lock::lock,
    util::progress::Progress,
};

/// Moment of an action on a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum When {
    /// The moment its gradient was complete.
    Complete,
    /// At the end of backward.
    Late,
}

/// Acts on the gradient of a parameter. The consumers of an armed parameter report to it.
pub(crate) trait Owner: Send + Sync {
    /// Whether the parameter waits for its gradient.
    fn is_waiting(&self) -> bool;

    /// Notes that these gradients were asked for the one that it may have acted on.
    fn ask(&self, grads: &mut Gradients);

    /// Acts on the gradient that `grads` has under the node by now, if it waits for one.
    fn act(self: Arc<Self>, node: NodeId, grads: &mut Gradients, when: When);

    /// Notes, before a pass, whether it may give the parameter a gradient to reduce.
    fn expect(&self);

    /// Lets other replicas know that a part of a pass begins.
    fn begin_part(&self);

    /// Waits for the gradients in flight between the replicas, at the end of a pass.
    fn wait_for_reductions(&self);

    /// Drops them, at the end of a pass that has panicked.
    fn drop_reductions(&self);

    fn progress(&self) -> &Arc<Progress>;
}

/// Consumers of one node: the leaf of a parameter, or the placeholder of a derived tensor.
pub(crate) struct Consumers<B: Backend> {
    /// The node under which the gradient adds up.
    node: AdTensor<B>,
    state: Mutex<State<B>>,
    /// Shared with consumers that are not noted here: in segments to be replayed, and in other
    /// subgraphs.
    elsewhere: Arc<()>,
}

struct State<B: Backend> {
    owner: Option<Weak<dyn Owner>>,
    /// Direct consumers.
    direct: Tally,
    /// Leaf hooks of consumers, and the order of the last one: see [`leaf_hook`].
    leaf_hooks: Vec<NodeId>,
    hooked: Option<usize>,
    derived: Vec<Arc<DerivedConsumer<B>>>,
    /// Operands of direct consumers. Each is alive while its consumer is on the tape.
    operands: Vec<Weak<dyn Any + Send + Sync>>,
    /// Derived consumers that this pass has reached, in plain Burn's order, and how many of them
    /// are added.
    sequence: Option<(Vec<Arc<DerivedConsumer<B>>>, usize)>,
    /// Whether a backward pass has visited this node.
    is_reached: bool,
}

/// A derived tensor that consumes a node.
pub(crate) struct DerivedConsumer<B: Backend> {
    /// The order of plain Burn's node.
    pub(crate) order: usize,
    /// Moment at which that node would have been reached.
    pub(crate) visit: Visit,
    /// Tape order from which the contribution is available.
    pub(crate) ready: AtomicUsize,
    /// The node that holds it.
    pub(crate) contribution: Mutex<Option<AdTensor<B>>>,
}

impl<B: Backend> DerivedConsumer<B> {
    pub(crate) fn new(order: usize, visit: Visit) -> Self {
        Self {
            order,
            visit,
            ready: AtomicUsize::new(usize::MAX),
            contribution: Mutex::new(None),
        }
    }

    /// Adds the contribution, if it has arrived.
    pub(crate) fn add_to(&self, node: &AdTensor<B>, grads: &mut Gradients) -> bool {
        let contribution = lock(&self.contribution);
        match contribution.as_ref().and_then(|key| grads.remove::<B>(key)) {
            Some(contribution) => {
                grads.register::<B>(node.node.id, contribution);
                true
            }
            None => false,
        }
    }

    fn discard(&self, grads: &mut Gradients) {
        if let Some(key) = lock(&self.contribution).as_ref() {
            drop(grads.remove::<B>(key));
        }
    }
}

impl<B: Backend> Consumers<B> {
    pub(crate) fn new(node: AdTensor<B>) -> Self {
        Self {
            node,
            state: Mutex::new(State {
                owner: None,
                direct: Tally::new(),
                leaf_hooks: Vec::new(),
                hooked: None,
                derived: Vec::new(),
                operands: Vec::new(),
                sequence: None,
                is_reached: false,
            }),
            elsewhere: Arc::new(()),
        }
    }

    /// Token held by consumers in other subgraphs.
    pub(crate) fn elsewhere(&self) -> Arc<()> {
        self.elsewhere.clone()
    }

    fn state(&self) -> MutexGuard<'_, State<B>> {
        lock(&self.state)
    }

    /// The node under which the gradient adds up.
    pub(crate) fn node(&self) -> &AdTensor<B> {
        &self.node
    }

    /// A placeholder for the value of nodes that need none.
    pub(crate) fn placeholder(&self) -> FloatTensor<B> {
        self.node.primitive.clone()
    }

    /// Number of derived tensors that use the node.
    pub(crate) fn derived(&self) -> usize {
        self.state().derived.len()
    }

    /// Reports to `owner` from now on. Returns the previous owner.
    pub(crate) fn replace_owner(&self, owner: Option<Weak<dyn Owner>>) -> Option<Weak<dyn Owner>> {
        std::mem::replace(&mut self.state().owner, owner)
    }

    pub(crate) fn owner(&self) -> Option<Arc<dyn Owner>> {
        self.weak_owner()?.upgrade()
    }

    pub(crate) fn weak_owner(&self) -> Option<Weak<dyn Owner>> {
        self.state().owner.clone()
    }

    /// Whether the parameter waits for its gradient.
    pub(crate) fn is_awaited(&self) -> bool {
        self.owner().is_some_and(|owner| owner.is_waiting())
    }

    /// Whether there are consumers here, on the tape.
    pub(crate) fn is_used(&self) -> bool {
        let state = self.state();
        !state.direct.is_empty() || !state.derived.is_empty()
    }

    /// Whether the tape has anything above the node that a backward pass could begin with.
    pub(crate) fn is_on_tape(&self) -> bool {
        let mut state = self.state();
        state.operands.retain(|operand| operand.strong_count() > 0);
        let is_derived = |derived: &Arc<_>| Arc::strong_count(derived) > 1;
        !state.operands.is_empty()
            || state.derived.iter().any(is_derived)
            || Arc::strong_count(&self.elsewhere) > 1
    }

    /// The node, as the operand of a direct consumer.
    pub(crate) fn operand(&self, operand: AdTensor<B>) -> AdTensor<B> {
        let operand = tape::handle::<B>(&operand, operand.primitive.clone(), operand.node.order);
        let node: Arc<dyn Any + Send + Sync> = operand.node.clone();
        let operands = &mut self.state().operands;
        if operands.len() == operands.capacity() {
            operands.retain(|operand| operand.strong_count() > 0);
        }
        operands.push(Arc::downgrade(&node));
        operand
    }

    /// Notes that a backward pass has visited this node.
    pub(crate) fn mark_reached(&self) {
        self.state().is_reached = true;
    }

    /// Whether a backward pass has visited this node.
    pub(crate) fn is_reached(&self) -> bool {
        self.state().is_reached
    }

    /// Notes `times` direct consumers of the given order. Returns whether a single consumer has
    /// this order, and it is the lowest.
    pub(crate) fn consume(&self, order: usize, times: usize) -> bool {
        self.state().direct.add(order, times)
    }

    pub(crate) fn derive(&self, derived: Arc<DerivedConsumer<B>>) {
        self.state().derived.push(derived);
    }

    /// Prepares for a backward pass: says when the gradient will be complete.
    pub(crate) fn settle(&self) -> Completion {
        let mut state = self.state();
        // A graph that Burn has dropped took its derived tensors along.
        state
            .derived
            .retain(|derived| Arc::strong_count(derived) > 1);
        state.sequence = None;
        if state.derived.is_empty() {
            return state.direct.completion(state.hooked);
        }
        let in_any_order = state.has_one_order();
        let derived = state.derived.iter().map(|derived| {
            if in_any_order {
                derived.ready.load(Ordering::Relaxed)
            } else {
                derived.order
            }
        });
        state.direct.completion_with(derived)
    }

    /// Adds the contributions of derived tensors: `all` of them once all direct consumers have run;
    /// else those that come before any direct consumer.
    ///
    /// Does nothing if the order is known only where plain Burn's nodes run.
    pub(crate) fn gather(&self, grads: &mut Gradients, all: bool) {
        let mut state = self.state();
        if state.derived.is_empty() || !state.has_one_order() || !(all || state.direct.is_empty()) {
            return;
        }
        let (sequence, next) = state.reached_sequence();
        while let Some(derived) = sequence.get(*next) {
            if !derived.add_to(&self.node, grads) && !all {
                break;
            }
            *next += 1;
        }
    }

    /// Ends a pass: adds up the remaining contributions, and lets the owner act on the sum.
    pub(crate) fn finish(&self, grads: &mut Gradients) {
        let leaf_hooks = {
            let mut state = self.state();
            state.sequence = None;
            state.leaf_hooks.clone()
        };
        for hook in leaf_hooks {
            tape::forward(hook, &self.node, grads);
        }
        if let Some(owner) = self.owner() {
            owner.act(self.node.node.id, grads, When::Late);
        }
    }

    /// Notes that a backward pass has visited this node; acts if its gradient is complete.
    fn reach(&self, order: usize, grads: &mut Gradients) {
        let owner = {
            let mut state = self.state();
            state.is_reached = true;
            if !state.direct.is_last(order) || !state.derived.is_empty() {
                return;
            }
            state.owner.clone()
        };
        if let Some(owner) = owner.and_then(|owner| owner.upgrade()) {
            owner.act(self.node.node.id, grads, When::Complete);
        }
    }
}

impl<B: Backend> State<B> {
    fn has_one_order(&self) -> bool {
        let derived = self.derived.iter().map(|derived| derived.order);
        self.direct.has_one_order(derived)
    }

    fn reached_sequence(&mut self) -> (&[Arc<DerivedConsumer<B>>], &mut usize) {
        let derived = &self.derived;
        let (sequence, next) = self.sequence.get_or_insert_with(|| {
            let reached = derived.iter().filter(|derived| derived.visit.get() > 0);
            let mut sequence: Vec<_> = reached.cloned().collect();
            sequence.sort_by_key(|derived| (usize::MAX - derived.order, derived.visit.get()));
            (sequence, 0)
        });
        (sequence, next)
    }
}

/// Puts a hook between the leaf and its lowest consumer, a single node of this order: it runs right
/// after that consumer, hands the contribution on to the leaf, and may find the gradient complete.
pub(crate) fn leaf_hook<B: Backend>(consumers: &Arc<Consumers<B>>, order: usize) -> AdTensor<B> {
    let placeholder = consumers.node.primitive.clone();
    let hook = tape::hook(vec![consumers.node.clone()], order, placeholder, {
        let consumers = consumers.clone();
        move |hook, grads| {
            tape::forward(hook, &consumers.node, grads);
            consumers.reach(order, grads);
        }
    });
    let mut state = consumers.state();
    state.leaf_hooks.push(hook.node.id);
    state.hooked = Some(order);
    drop(state);
    hook
}

/// Puts a hook on the tape, after all nodes of this order: there the gradient is complete.
pub(crate) fn order_hook<B: Backend>(
    consumers: &Arc<Consumers<B>>,
    parent: AdTensor<B>,
    order: usize,
) -> AdTensor<B> {
    let consumers = consumers.clone();
    let placeholder = consumers.node.primitive.clone();
    tape::hook(vec![parent], order, placeholder, move |_, grads| {
        consumers.gather(grads, true);
        consumers.state().is_reached |= grads.get::<B>(&consumers.node).is_some();
        if let Some(owner) = consumers.owner() {
            owner.act(consumers.node.node.id, grads, When::Complete);
        }
    })
}

/// Adds the contribution of a derived tensor as soon as the order permits; drops it if the tensor
/// is not part of this pass.
pub(crate) fn contribute<B: Backend>(
    consumers: &Consumers<B>,
    derived: &DerivedConsumer<B>,
    grads: &mut Gradients,
) {
    if derived.visit.get() == 0 {
        derived.discard(grads);
    } else {
        consumers.gather(grads, false);
    }
}

// With the feature `distributed`, `Gradients::new` takes more arguments.
#[cfg(all(test, not(feature = "distributed")))]
mod tests {
    use burn::{
        backend::Flex,
        tensor::{TensorData, TensorPrimitive, ops::FloatTensorOps},
    };

    use super::*;

    type Tensor = burn::tensor::Tensor<Flex, 1>;

    fn tensor(value: f32) -> FloatTensor<Flex> {
        Flex::float_from_data(TensorData::from([value]), &Default::default())
    }

    fn consumers(direct: &[usize]) -> Consumers<Flex> {
        let consumers = Consumers::new(tape::leaf::<Flex>(tensor(0.0)));
        for order in direct {
            consumers.consume(*order, 1);
        }
        consumers
    }

    /// A derived consumer of this order that the pass does not reach.
    fn derive_unreached(consumers: &Consumers<Flex>, order: usize) -> Arc<DerivedConsumer<Flex>> {
        let derived = Arc::new(DerivedConsumer::new(order, Visit::default()));
        consumers.derive(derived.clone());
        derived
    }

    /// A derived consumer of this order that the pass reaches.
    fn derive(consumers: &Consumers<Flex>, order: usize) -> Arc<DerivedConsumer<Flex>> {
        let derived = derive_unreached(consumers, order);
        derived.visit.note();
        derived
    }

    fn no_gradients() -> Gradients {
        let root = tape::leaf::<Flex>(tensor(0.0));
        let mut grads = Gradients::new::<Flex>(root.node.clone(), root.primitive.clone());
        grads.remove::<Flex>(&root);
        grads
    }

    /// Makes the contribution of a derived consumer available.
    fn arrive(derived: &DerivedConsumer<Flex>, value: f32, grads: &mut Gradients) {
        let key = tape::leaf::<Flex>(tensor(0.0));
        grads.register::<Flex>(key.node.id, tensor(value));
        *lock(&derived.contribution) = Some(key);
    }

    /// The sum under the node so far.
    fn sum(consumers: &Consumers<Flex>, grads: &Gradients) -> Option<f32> {
        let sum = grads.get::<Flex>(consumers.node())?;
        Some(Tensor::from_primitive(TensorPrimitive::Float(sum)).into_scalar())
    }

    /// `ONE` added to it is lost in rounding, so the result tells the order.
    const HUGE: f32 = 1e8;
    const ONE: f32 = 1.0;

    #[test]
    fn direct_consumers_settle_at_the_lowest() {
        let consumers = consumers(&[4, 9]);
        assert_eq!(consumers.settle(), Completion::After(4));
        consumers.state().hooked = Some(4);
        assert_eq!(consumers.settle(), Completion::AtLeafHook);
    }

    #[test]
    fn contributions_in_one_order_settle_when_the_last_is_ready() {
        let consumers = consumers(&[9]);
        let derived = derive(&consumers, 1);
        derived.ready.store(7, Ordering::Relaxed);
        assert_eq!(consumers.settle(), Completion::After(7));
    }

    #[test]
    fn contributions_in_no_known_order_settle_where_plain_burn_adds_them() {
        let consumers = consumers(&[4, 9]);
        let derived = [derive(&consumers, 3), derive(&consumers, 6)];
        for derived in &derived {
            derived.ready.store(1, Ordering::Relaxed);
        }
        assert_eq!(consumers.settle(), Completion::After(3));
    }

    #[test]
    fn a_derived_consumer_that_burn_has_dropped_is_forgotten() {
        let consumers = consumers(&[4]);
        drop(derive(&consumers, 1));
        assert_eq!(consumers.settle(), Completion::After(4));
        assert_eq!(consumers.derived(), 0);
    }

    #[test]
    fn derived_contributions_add_up_by_order() {
        let consumers = consumers(&[]);
        let low = derive(&consumers, 4);
        let middle = derive(&consumers, 5);
        let high = derive(&consumers, 6);
        let mut grads = no_gradients();
        arrive(&low, -HUGE, &mut grads);
        arrive(&high, HUGE, &mut grads);
        consumers.gather(&mut grads, false);
        assert_eq!(sum(&consumers, &grads), Some(HUGE), "waits for the middle");
        arrive(&middle, ONE, &mut grads);
        consumers.gather(&mut grads, false);
        assert_eq!(sum(&consumers, &grads), Some(HUGE + ONE - HUGE));
    }

    #[test]
    fn derived_contributions_of_one_order_add_up_as_they_are_reached() {
        let consumers = consumers(&[]);
        let reached = [(); 3].map(|()| derive_unreached(&consumers, 4));
        for next in [1, 2, 0] {
            reached[next].visit.note();
        }
        let mut grads = no_gradients();
        for (derived, value) in reached.iter().zip([-HUGE, HUGE, ONE]) {
            arrive(derived, value, &mut grads);
        }
        consumers.gather(&mut grads, false);
        assert_eq!(sum(&consumers, &grads), Some(HUGE + ONE - HUGE));
    }

    #[test]
    fn unreached_consumers_are_not_awaited() {
        let consumers = consumers(&[]);
        let _unreached = derive_unreached(&consumers, 9);
        let reached = derive(&consumers, 4);
        let mut grads = no_gradients();
        arrive(&reached, ONE, &mut grads);
        consumers.gather(&mut grads, false);
        assert_eq!(sum(&consumers, &grads), Some(ONE));
    }

    #[test]
    fn direct_consumers_come_first() {
        let consumers = consumers(&[8, 9]);
        let derived = derive(&consumers, 4);
        let mut grads = no_gradients();
        arrive(&derived, ONE, &mut grads);
        consumers.gather(&mut grads, false);
        assert_eq!(sum(&consumers, &grads), None);
        consumers.gather(&mut grads, true);
        assert_eq!(sum(&consumers, &grads), Some(ONE));
    }

    #[test]
    fn contributions_in_no_known_order_are_left_to_the_placeholder_node() {
        let consumers = consumers(&[4, 9]);
        let derived = derive(&consumers, 6);
        let mut grads = no_gradients();
        arrive(&derived, ONE, &mut grads);
        consumers.gather(&mut grads, true);
        assert_eq!(sum(&consumers, &grads), None);
        derived.add_to(consumers.node(), &mut grads);
        assert_eq!(sum(&consumers, &grads), Some(ONE));
    }

    #[test]
    fn a_second_pass_gathers_anew() {
        let consumers = consumers(&[]);
        let derived = derive(&consumers, 4);
        let mut grads = no_gradients();
        for expected in [ONE, ONE + ONE] {
            consumers.settle();
            arrive(&derived, ONE, &mut grads);
            consumers.gather(&mut grads, true);
            assert_eq!(sum(&consumers, &grads), Some(expected));
        }
    }

    #[test]
    fn a_contribution_outside_the_pass_is_dropped() {
        let consumers = consumers(&[]);
        let derived = derive_unreached(&consumers, 4);
        let mut grads = no_gradients();
        arrive(&derived, ONE, &mut grads);
        contribute(&consumers, &derived, &mut grads);
        let key = lock(&derived.contribution).clone().expect("it came");
        assert!(grads.get::<Flex>(&key).is_none());
        assert_eq!(sum(&consumers, &grads), None);
    }
}
