//! Operations that are recorded instead of their results.

use std::sync::{
    Arc, Mutex, Weak,
    atomic::{AtomicU64, AtomicUsize, Ordering},
};

use burn::tensor::{DType, Shape, TensorMetadata, backend::Backend, ops::FloatTensor};

use crate::{
    planner::trace::{TracePosition, Traced, Tracer},
    subgraph::order::{Consumer, Edge, Target},
    subgraph::{Origins, Recording, Subgraph},
    tape::{self, AdTensor, untracked},
    tensor::derived::{Function, Operands},
    tensor::mask::Mask,
    tensor::parameter::Snapshot,
    util::discard::discard,
    util::lock::{get_mut, lock},
};

/// An operation with any number of results.
pub(crate) type Functions<B> = Arc<dyn Fn(Operands<B>) -> Vec<AdTensor<B>> + Send + Sync>;

/// Function of a recorded operation.
pub(crate) enum Operation<B: Backend> {
    /// Makes a derived tensor if its operands are parameters alone.
    Derivable(Function<B>),
    /// One node on the tape, or several.
    OneNode(Functions<B>),
    SeveralNodes(Functions<B>),
}

/// The result of a recorded operation, with its value.
#[derive(Clone)]
pub(crate) struct Replayable<B: Backend> {
    value: FloatTensor<B>,
    /// Order of plain Burn's node.
    order: usize,
    output: Output<B>,
    traced: Option<Arc<Traced>>,
}

/// One result of an operation.
#[derive(Clone)]
pub(crate) struct Output<B: Backend> {
    pub(crate) node: Arc<Node<B>>,
    pub(crate) index: usize,
}

/// A recorded operation.
pub(crate) struct Node<B: Backend> {
    /// Grows from operand to result.
    pub(crate) sequence: u64,
    segment: Arc<Segment<B>>,
    pub(crate) operation: Operation<B>,
    /// Order of plain Burn's node; known once the operation has run.
    order: AtomicUsize,
    /// Whether its results can receive a gradient.
    is_tracked: bool,
    /// Taken when the operation is replayed.
    operands: Mutex<Option<Vec<Operand<B>>>>,
    /// Results that have left the segment, by index.
    exits: Mutex<Vec<(usize, Exit<B>)>>,
}

struct Exit<B: Backend> {
    leaf: AdTensor<B>,
    subgraph: Weak<Subgraph<B>>,
}

/// An operand of a recorded operation.
pub(crate) enum Operand<B: Backend> {
    /// A result of the same segment.
    Inside(Output<B>),
    Outside(Outside<B>),
}

/// A tensor that enters a segment.
pub(crate) enum Outside<B: Backend> {
    Plain(AdTensor<B>, Origins<B>),
    Parameter(Snapshot<B>, NotedUse),
    Mask(Mask<B>, usize),
}

/// Marks a parameter as used outside of its part of the tape, until it is dropped.
#[derive(Debug)]
pub(crate) struct NotedUse {
    _elsewhere: Arc<()>,
}

impl NotedUse {
    pub(crate) fn of<B: Backend>(snapshot: &Snapshot<B>) -> Self {
        Self {
            _elsewhere: snapshot.site.consumers.elsewhere(),
        }
    }
}

/// A part of a forward pass whose operations are recorded.
pub(crate) struct Segment<B: Backend> {
    number: u64,
    /// The tracer that created it; `None` inside `checkpoint`.
    tracer: Option<Arc<Tracer>>,
    subgraph: Mutex<Weak<Subgraph<B>>>,
    results: Mutex<Weak<Results<B>>>,
}

/// The results that have left a segment, each with its leaf in the subgraph that begins with them.
pub(crate) struct Results<B: Backend>(Mutex<Vec<(AdTensor<B>, Output<B>)>>);

impl<B: Backend> Segment<B> {
    pub(crate) fn new(number: u64, tracer: Option<Arc<Tracer>>) -> Arc<Self> {
        Arc::new(Self {
            number,
            tracer,
            subgraph: Mutex::new(Weak::new()),
            results: Mutex::new(Weak::new()),
        })
    }

    /// Records an operation. Also returns the operands to run it with.
    ///
    /// # Panics
    ///
    /// If an operand was computed outside of this segment, from results of it.
    pub(crate) fn record(
        self: &Arc<Self>,
        inputs: Vec<Input<B>>,
        operation: Operation<B>,
        is_detached: bool,
        position: Option<TracePosition>,
    ) -> (Operands<B>, Entry<B>) {
        static NEXT: AtomicU64 = AtomicU64::new(0);

        let is_tracked = !is_detached && inputs.iter().any(Input::is_tracked);
        let mut values = Vec::with_capacity(inputs.len());
        let mut operands = Vec::with_capacity(inputs.len());
        for input in inputs {
            let outside = match input {
                Input::Replayable(tensor) if Arc::ptr_eq(tensor.segment(), self) => {
                    values.push(untracked::<B>(tensor.value, tensor.order));
                    operands.push(Operand::Inside(tensor.output));
                    continue;
                }
                // No gradient goes there, so the backward pass must not either: what the tensor
                // comes from may have been replayed before.
                Input::Replayable(tensor) if is_detached => {
                    Outside::Plain(untracked::<B>(tensor.value, tensor.order), Origins::none())
                }
                Input::Outside(Outside::Plain(tensor, _)) if is_detached && tensor.is_tracked() => {
                    let order = tensor.node.order;
                    Outside::Plain(untracked::<B>(tensor.primitive, order), Origins::none())
                }
                Input::Replayable(tensor) => {
                    let (tensor, origins) = tensor.leave();
                    Outside::Plain(tensor, origins)
                }
                Input::Outside(outside) => outside,
            };
            self.check_outside(&outside);
            values.push(outside.value());
            operands.push(Operand::Outside(outside.packed()));
        }
        let node = Arc::new(Node {
            sequence: NEXT.fetch_add(1, Ordering::Relaxed),
            segment: self.clone(),
            operation,
            order: AtomicUsize::new(0),
            is_tracked,
            operands: Mutex::new(Some(operands)),
            exits: Mutex::new(Vec::new()),
        });
        let entry = Entry {
            node,
            position,
            results: 0,
        };
        (values.into_iter(), entry)
    }

    fn check_outside(&self, outside: &Outside<B>) {
        let subgraph = match outside {
            Outside::Plain(_, origins) => origins.subgraph(),
            Outside::Parameter(..) | Outside::Mask(..) => None,
        };
        assert!(
            subgraph.is_none_or(|subgraph| subgraph.number() < self.number),
            "gradient release: a tensor made inside `checkpoint` was used on another thread and came \
             back into the same scope, where its gradient could not follow; leave the scope before \
             the other thread, or use `checkpoint` there, around all of it"
        );
    }

    /// The subgraph that begins with the results of this segment, and the results.
    fn open(self: &Arc<Self>) -> (Arc<Subgraph<B>>, Arc<Results<B>>) {
        let mut subgraph = lock(&self.subgraph);
        let mut results = lock(&self.results);
        if let (Some(subgraph), Some(results)) = (subgraph.upgrade(), results.upgrade()) {
            return (subgraph, results);
        }
        let new_results = Arc::new(Results(Mutex::new(Vec::new())));
        let recording: Arc<dyn Recording<B>> = new_results.clone();
        let new_subgraph = Subgraph::above(recording, self.number);
        *results = Arc::downgrade(&new_results);
        *subgraph = Arc::downgrade(&new_subgraph);
        (new_subgraph, new_results)
    }
}

/// A recorded operation that receives its results.
pub(crate) struct Entry<B: Backend> {
    node: Arc<Node<B>>,
    position: Option<TracePosition>,
    results: usize,
}

impl<B: Backend> Entry<B> {
    /// Adds the next result.
    pub(crate) fn result(&mut self, result: AdTensor<B>) -> Replayable<B> {
        let index = self.results;
        self.results += 1;
        let order = result.node.order;
        self.node.order.fetch_max(order, Ordering::Relaxed);
        let bytes = || tape::bytes::<B>(&result.primitive);
        let tracer = self.node.segment.tracer.as_ref().zip(self.position);
        let traced = tracer.map(|(tracer, position)| Arc::new(tracer.result(position, bytes())));
        Replayable {
            order,
            value: result.primitive,
            output: Output {
                node: self.node.clone(),
                index,
            },
            traced,
        }
    }
}

/// An operand of an operation that is to be recorded.
pub(crate) enum Input<B: Backend> {
    Replayable(Replayable<B>),
    Outside(Outside<B>),
}

impl<B: Backend> Input<B> {
    /// Whether it can receive a gradient.
    pub(crate) fn is_tracked(&self) -> bool {
        match self {
            Self::Replayable(tensor) => tensor.is_tracked(),
            Self::Outside(Outside::Plain(tensor, _)) => tensor.is_tracked(),
            Self::Outside(Outside::Parameter(..)) => true,
            Self::Outside(Outside::Mask(..)) => false,
        }
    }
}

impl<B: Backend> Operand<B> {
    /// Target of its gradient, if it has one.
    pub(crate) fn target(&self) -> Option<Target> {
        match self {
            Self::Inside(output) => output.node.is_tracked.then(|| output.target()),
            Self::Outside(Outside::Plain(tensor, _)) => tensor
                .is_tracked()
                .then_some(Target::OnTape(tensor.node.id)),
            Self::Outside(Outside::Parameter(snapshot, _)) => {
                Some(Target::OnTape(snapshot.site.consumers.node().node.id))
            }
            Self::Outside(Outside::Mask(..)) => None,
        }
    }
}

impl<B: Backend> Outside<B> {
    /// Packs a mask to bits. Other tensors stay as they are.
    fn packed(self) -> Self {
        match self {
            Self::Plain(tensor, origins)
                if origins.is_mask() && tensor.shape().num_elements() > 0 =>
            {
                Self::Mask(Mask::pack(tensor.primitive), tensor.node.order)
            }
            outside => outside,
        }
    }

    pub(crate) fn value(&self) -> AdTensor<B> {
        match self {
            Self::Plain(tensor, _) => untracked(tensor.primitive.clone(), tensor.node.order),
            Self::Parameter(snapshot, _) => untracked(snapshot.leaf.primitive.clone(), 0),
            Self::Mask(mask, order) => untracked(mask.unpack(), *order),
        }
    }
}

impl<B: Backend> Replayable<B> {
    pub(crate) fn value(&self) -> FloatTensor<B> {
        self.value.clone()
    }

    pub(crate) fn is_tracked(&self) -> bool {
        self.output.node.is_tracked
    }

    pub(crate) fn shape(&self) -> Shape {
        self.value.shape()
    }

    pub(crate) fn dtype(&self) -> DType {
        self.value.dtype()
    }

    fn segment(&self) -> &Arc<Segment<B>> {
        &self.output.node.segment
    }

    /// The tracer that splits this forward pass into segments, if any.
    pub(crate) fn tracer(&self) -> Option<&Arc<Tracer>> {
        self.segment().tracer.as_ref()
    }

    pub(crate) fn number(&self) -> u64 {
        self.segment().number
    }

    pub(crate) fn traced(&self) -> Option<&Traced> {
        self.traced.as_deref()
    }

    /// The tensor outside of its segment.
    pub(crate) fn leave(self) -> (AdTensor<B>, Origins<B>) {
        if !self.is_tracked() {
            return (untracked(self.value, self.order), Origins::none());
        }
        let (node, index) = (&self.output.node, self.output.index);
        let mut exits = lock(&node.exits);
        let known = exits.iter().find(|(of, _)| *of == index);
        let known = known.and_then(|(_, exit)| Some((exit.leaf.clone(), exit.subgraph.upgrade()?)));
        let (leaf, subgraph) = known.unwrap_or_else(|| {
            let (subgraph, results) = node.segment.open();
            let leaf = tape::leaf::<B>(tape::placeholder::<B>(&self.value));
            exits.retain(|(of, _)| *of != index);
            let exit = Exit {
                leaf: leaf.clone(),
                subgraph: Arc::downgrade(&subgraph),
            };
            exits.push((index, exit));
            lock(&results.0).push((leaf.clone(), self.output.clone()));
            subgraph.add_result(leaf.node.id);
            (leaf, subgraph)
        });
        drop(exits);
        let tensor = tape::handle::<B>(&leaf, self.value, self.order);
        (tensor, Origins::within(subgraph))
    }
}

impl<B: Backend> Results<B> {
    /// The results, each with its leaf.
    pub(crate) fn outputs(&self) -> Vec<(AdTensor<B>, Output<B>)> {
        lock(&self.0).clone()
    }
}

impl<B: Backend> Node<B> {
    /// Calls `look` with the operands, unless the operation was replayed.
    pub(crate) fn with_operands<R>(&self, look: impl FnOnce(&[Operand<B>]) -> R) -> Option<R> {
        lock(&self.operands).as_deref().map(look)
    }

    /// The operation as the tape will have it; `None` if it was replayed.
    pub(crate) fn edge(&self) -> Option<Edge> {
        let operands = self.with_operands(|operands| {
            let operands = operands.iter().enumerate();
            let tracked = operands.filter_map(|(place, operand)| Some((place, operand.target()?)));
            tracked.collect()
        })?;
        Some(Edge {
            consumer: Consumer::Replayable(self.sequence),
            order: self.order.load(Ordering::Relaxed),
            operands,
        })
    }

    pub(crate) fn take_operands(&self) -> Option<Vec<Operand<B>>> {
        lock(&self.operands).take()
    }
}

impl<B: Backend> Drop for Node<B> {
    fn drop(&mut self) {
        if let Some(operands) = get_mut(&mut self.operands).take() {
            discard(operands);
        }
    }
}

impl<B: Backend> Output<B> {
    pub(crate) fn key(&self) -> (u64, usize) {
        (self.node.sequence, self.index)
    }

    pub(crate) fn target(&self) -> Target {
        Target::Replayable(self.node.sequence, self.index)
    }

    /// The tracer that created the segment; `None` inside `checkpoint`.
    pub(crate) fn tracer(&self) -> Option<&Arc<Tracer>> {
        self.node.segment.tracer.as_ref()
    }
}
