//! Functions of armed parameters alone: views, casts, normalised weights.
//!
//! Plain Burn's node for such a function is at the very bottom of the tape, and holds its gradient
//! until the end of backward. Here the value is computed at once, and a *placeholder* takes the
//! place of plain Burn's node. When a backward pass begins, all consumers are known: the function
//! is replayed on the tape right below the lowest of them.
//!
//! The placeholder marks the place in the order of contributions: see
//! [`consumers`](crate::tape::consumers).

use std::{
    mem,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
};

use burn::tensor::{
    DType, Shape, TensorMetadata,
    backend::Backend,
    ops::{Device, FloatTensor},
};
use burn_autodiff::{NodeId, grads::Gradients};

use crate::{
    slot::armed_set::{Replay, Values},
    subgraph::Origins,
    tape::consumers::{self, Consumers, DerivedConsumer},
    tape::tally::Completion,
    tape::visit::{self, Visit},
    tape::{self, AdTensor, handle, untracked},
    tensor::parameter::Snapshot,
    util::lock::lock,
};

/// The operands of a function, in the order of its arguments.
pub(crate) type Operands<B> = std::vec::IntoIter<AdTensor<B>>;

pub(crate) type Function<B> = Arc<dyn Fn(Operands<B>) -> AdTensor<B> + Send + Sync>;

/// The longest chain of derived tensors. Operations beyond it are plain Burn's: they hold the
/// gradient until the end of backward.
pub(crate) const MAX_DEPTH: usize = 100;

/// A tensor computed from armed parameters and nothing else.
#[derive(Clone)]
pub(crate) struct Derived<B: Backend> {
    value: FloatTensor<B>,
    placeholder: Arc<Placeholder<B>>,
}

/// Operand of a derived tensor.
pub(crate) enum Operand<B: Backend> {
    Parameter(Snapshot<B>),
    Derived(Derived<B>),
}

/// The place of a derived tensor on the tape, as long as it may still be consumed.
struct Placeholder<B: Backend> {
    expression: Arc<Expression<B>>,
    operands: Mutex<Vec<Argument<B>>>,
    node: Mutex<Option<AdTensor<B>>>,
    exit: Arc<Mutex<Exit<B>>>,
}

/// The node from which a gradient that other subgraphs have gathered goes on, and its origins;
/// `None` until there is one.
pub(crate) type Exit<B> = Option<(AdTensor<B>, Origins<B>)>;

enum Argument<B: Backend> {
    Parameter(Snapshot<B>),
    Derived(Arc<Placeholder<B>>),
}

/// The function and its place in the order of contributions; the placeholder's node owns it.
struct Expression<B: Backend> {
    index: u64,
    function: Function<B>,
    /// Order of plain Burn's node.
    order: usize,
    shape: Shape,
    dtype: DType,
    origins: Origins<B>,
    visit: Visit,
    on_tape: OnceLock<OnTape<B>>,
}

struct OnTape<B: Backend> {
    consumers: Arc<Consumers<B>>,
    operands: Vec<Edge<B>>,
}

/// An operand of an expression on the tape.
struct Edge<B: Backend> {
    consumers: Arc<Consumers<B>>,
    derived: Arc<DerivedConsumer<B>>,
    /// Emptied once the expression has run backward: a parameter is stepped in place only if
    /// nothing else holds its value.
    source: Mutex<Source<B>>,
}

#[derive(Clone)]
enum Source<B: Backend> {
    Value(FloatTensor<B>),
    Expression(Arc<Expression<B>>),
    Done,
}

impl<B: Backend> Source<B> {
    fn value(self) -> Option<FloatTensor<B>> {
        match self {
            Self::Value(value) => Some(value),
            Self::Expression(expression) => expression.value(),
            Self::Done => None,
        }
    }
}

impl<B: Backend> Operand<B> {
    /// The value as an untracked tensor that claims plain Burn's order.
    fn value(&self) -> AdTensor<B> {
        match self {
            Self::Parameter(snapshot) => untracked(snapshot.leaf.primitive.clone(), 0),
            Self::Derived(derived) => untracked(derived.value(), derived.order()),
        }
    }
}

/// Applies `function` to values that depend on parameters alone.
///
/// # Errors
///
/// The operands, if the function is more than one node on the tape: then it has no single place in
/// the order.
pub(crate) fn derive<B: Backend>(
    operands: Vec<Operand<B>>,
    function: Function<B>,
) -> Result<Derived<B>, Vec<Operand<B>>> {
    static NEXT: AtomicU64 = AtomicU64::new(0);

    let values: Vec<_> = operands.iter().map(Operand::value).collect();
    let below = values.iter().map(|value| value.node.order).max();
    let order = below.unwrap_or(0) + 1;
    let result = function(values.into_iter());
    if result.node.order != order {
        return Err(operands);
    }
    let mut origins = Origins::none();
    let arguments = operands.into_iter().map(|operand| match operand {
        Operand::Parameter(snapshot) => {
            origins.join(&snapshot.site.origins);
            Argument::Parameter(snapshot)
        }
        Operand::Derived(derived) => {
            origins.join(derived.origins());
            Argument::Derived(derived.placeholder)
        }
    });
    let arguments = Mutex::new(arguments.collect());
    Ok(Derived {
        placeholder: Arc::new(Placeholder {
            expression: Arc::new(Expression {
                index: NEXT.fetch_add(1, Ordering::Relaxed),
                function,
                order,
                shape: result.shape(),
                dtype: result.dtype(),
                origins,
                visit: Visit::default(),
                on_tape: OnceLock::new(),
            }),
            operands: arguments,
            node: Mutex::new(None),
            exit: Arc::default(),
        }),
        value: result.primitive,
    })
}

impl<B: Backend> Derived<B> {
    pub(crate) fn value(&self) -> FloatTensor<B> {
        self.value.clone()
    }

    /// The order of plain Burn's node.
    pub(crate) fn order(&self) -> usize {
        self.placeholder.expression.order
    }

    pub(crate) fn origins(&self) -> &Origins<B> {
        &self.placeholder.expression.origins
    }

    pub(crate) fn shape(&self) -> Shape {
        self.placeholder.expression.shape.clone()
    }

    pub(crate) fn dtype(&self) -> DType {
        self.placeholder.expression.dtype
    }

    pub(crate) fn exit(&self) -> Arc<Mutex<Exit<B>>> {
        self.placeholder.exit.clone()
    }

    /// Whether both are the same tensor on the tape.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.placeholder, &other.placeholder)
    }

    /// The tensor on the tape, and its uses there.
    pub(crate) fn on_tape(self) -> (AdTensor<B>, Arc<Consumers<B>>) {
        let node = self.placeholder.place();
        let expression = &self.placeholder.expression;
        let handle = handle::<B>(&node, self.value, expression.order);
        (handle, expression.on_tape().consumers.clone())
    }
}

impl<B: Backend> Placeholder<B> {
    /// Puts the placeholder on the tape, in place of plain Burn's node. This happens once: several
    /// consumers share it, as they share plain Burn's node.
    fn place(&self) -> AdTensor<B> {
        let mut node = lock(&self.node);
        if let Some(node) = &*node {
            return node.clone();
        }
        let expression = &self.expression;
        let mut parents = Vec::new();
        let mut edges = Vec::new();
        for argument in mem::take(&mut *lock(&self.operands)) {
            let (parent, consumers, source) = match argument {
                Argument::Parameter(Snapshot { leaf, site, .. }) => {
                    let value = leaf.primitive.clone();
                    (leaf, site.consumers, Source::Value(value))
                }
                Argument::Derived(operand) => {
                    let parent = operand.place();
                    let consumers = operand.expression.on_tape().consumers.clone();
                    (
                        parent,
                        consumers,
                        Source::Expression(operand.expression.clone()),
                    )
                }
            };
            let derived = DerivedConsumer::new(expression.order, expression.visit.clone());
            let derived = Arc::new(derived);
            consumers.derive(derived.clone());
            parents.push(parent);
            edges.push(Edge {
                consumers,
                derived,
                source: Mutex::new(source),
            });
        }
        let placeholder = edges[0].consumers.placeholder();
        let last = parents.last().expect("a function has operands").clone();
        parents.push(visit::marker(last, expression.visit.clone()));
        let placed = tape::hook(parents, expression.order, placeholder.clone(), {
            let expression = expression.clone();
            move |node, grads| expression.add_in_place(node, grads)
        });
        let consumers = Arc::new(Consumers::new(tape::key::<B>(&placed, placeholder)));
        let on_tape = OnTape {
            consumers,
            operands: edges,
        };
        if expression.on_tape.set(on_tape).is_err() {
            unreachable!("a placeholder is placed once, under its lock")
        }
        expression.origins.add_derived(expression);
        *node = Some(placed.clone());
        placed
    }
}

impl<B: Backend> Expression<B> {
    fn on_tape(&self) -> &OnTape<B> {
        self.on_tape.get().expect("the placeholder was placed")
    }

    /// Adds the contribution that plain Burn's node would add here.
    fn add_in_place(&self, node: NodeId, grads: &mut Gradients) {
        let on_tape = self.on_tape();
        assert!(
            tape::take(node, on_tape.consumers.node(), grads).is_none(),
            "gradient release: a gradient reached a function of parameters that was not replayed, \
             because an operation on the way to the loss hid where its result comes from; make the \
             operation with `ReleaseTensor::apply`"
        );
        for edge in &on_tape.operands {
            edge.derived.add_to(edge.consumers.node(), grads);
        }
    }

    /// Hands the gradient of the consumers to the replay, under `target`.
    fn begin(&self, target: NodeId, device: &Device<B>, grads: &mut Gradients) {
        let on_tape = self.on_tape();
        on_tape.consumers.gather(grads, true);
        let grad = grads.remove::<B>(on_tape.consumers.node());
        if grad.is_some() {
            for edge in &on_tape.operands {
                *lock(&edge.source) = Source::Done;
            }
        }
        // Burn also runs the replay of a tensor that is not part of this pass.
        let zeros = || B::float_zeros(self.shape.clone(), device, self.dtype.into());
        grads.register::<B>(target, grad.unwrap_or_else(zeros));
    }

    /// The value, computed anew.
    fn value(&self) -> Option<FloatTensor<B>> {
        let operands: Option<Vec<_>> = self.on_tape().operands.iter().map(Edge::value).collect();
        let operands = operands?.into_iter().map(|value| untracked::<B>(value, 0));
        let operands: Vec<_> = operands.collect();
        Some((self.function)(operands.into_iter()).primitive)
    }
}

impl<B: Backend> Edge<B> {
    fn value(&self) -> Option<FloatTensor<B>> {
        let source = lock(&self.source).clone();
        source.value()
    }

    /// The value, computed from those of the operands at their replay.
    fn replayed(&self, values: &mut Values<B>) -> Option<FloatTensor<B>> {
        let index = match lock(&self.source).clone() {
            Source::Expression(expression) => expression.index,
            source => return source.value(),
        };
        let Some((value, wanted)) = values.get_mut(&index) else {
            return self.value();
        };
        *wanted = wanted.saturating_sub(1);
        let value = value.clone();
        if values.get(&index).is_some_and(|(_, wanted)| *wanted == 0) {
            values.remove(&index);
        }
        Some(value)
    }
}

impl<B: Backend> Replay<B> for Expression<B> {
    fn index(&self) -> u64 {
        self.index
    }

    fn settle(&self) {
        self.visit.await_pass();
        let on_tape = self.on_tape();
        if let Completion::After(order) = on_tape.consumers.settle() {
            for edge in &on_tape.operands {
                edge.derived.ready.store(order, Ordering::Relaxed);
            }
        }
    }

    fn replay(self: Arc<Self>, next: AdTensor<B>, values: &mut Values<B>) -> AdTensor<B> {
        let on_tape = self.on_tape();
        let order = on_tape.operands[0].derived.ready.load(Ordering::Relaxed);
        let operands = on_tape.operands.iter().map(|edge| edge.replayed(values));
        let (true, Some(operands)) = (order < usize::MAX, operands.collect::<Option<Vec<_>>>())
        else {
            return next;
        };
        // All have the order of the lowest consumer: they are reached, and run, one after another,
        // after Burn's own nodes of that order.
        let operands = on_tape.operands.iter().zip(operands).map(|(edge, value)| {
            let (consumers, derived) = (edge.consumers.clone(), edge.derived.clone());
            let placeholder = consumers.placeholder();
            let contribution = tape::hook(
                vec![next.clone()],
                order,
                placeholder.clone(),
                move |_, grads| consumers::contribute(&consumers, &derived, grads),
            );
            let key = tape::key::<B>(&contribution, placeholder);
            *lock(&edge.derived.contribution) = Some(key);
            handle::<B>(&contribution, value, order - 1)
        });
        let operands: Vec<_> = operands.collect();
        let replayed = (self.function)(operands.into_iter());
        tape::check_order(replayed.node.order, order);
        let wanted = on_tape.consumers.derived();
        if wanted > 0 {
            values.insert(self.index, (replayed.primitive.clone(), wanted));
        }
        let (device, target) = (B::float_device(&replayed.primitive), replayed.node.id);
        let placeholder = on_tape.consumers.placeholder();
        let expression = self.clone();
        tape::hook(vec![next, replayed], order, placeholder, move |_, grads| {
            expression.begin(target, &device, grads)
        })
    }
}
