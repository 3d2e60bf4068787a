//! The operands of an operation, as burn-autodiff needs them.

use std::{mem, sync::Arc};

use burn::tensor::{TensorMetadata, backend::Backend};

use crate::{
    lower::raise::{Nodes, Raise},
    planner::trace::{self, Highest, Tracer},
    subgraph::order::{Target, Use},
    subgraph::uses::KnownOperands,
    subgraph::{Origins, Subgraph},
    tape::{self, AdTensor, handle},
    tensor::derived::{self, Derived, Function, Operand, Operands},
    tensor::record::{Entry, Functions, Input, NotedUse, Operation, Outside, Segment},
    tensor::scope,
    tensor::{ReleaseTensor, Repr},
    util::lock::lock,
};

/// The float tensors among the arguments of an operation, in their order.
pub(crate) struct Arguments<B: Backend>(Vec<ReleaseTensor<B>>);

/// The segment or subgraph of an operation on recomputed activations.
enum Destination<B: Backend> {
    Replayable(Recorder<B>),
    /// The operation is on the tape, in this subgraph.
    Kept(Arc<Subgraph<B>>),
}

/// The segment that records an operation.
struct Recorder<B: Backend> {
    segment: Arc<Segment<B>>,
    position: Option<trace::TracePosition>,
}

impl<B: Backend> Arguments<B> {
    pub(crate) fn new() -> Self {
        Self(Vec::with_capacity(2))
    }

    pub(crate) fn push(&mut self, tensor: ReleaseTensor<B>) {
        self.0.push(tensor.read());
    }

    /// The operands of an operation on the tape.
    pub(crate) fn lower(mut self, nodes: Nodes) -> (Operands<B>, Raise<B>) {
        self.meet();
        let orders = self.0.iter().map(|tensor| match &tensor.0 {
            Repr::Plain(tensor, _) => tensor.node.order,
            Repr::Derived(derived) => derived.order(),
            Repr::Snapshot(_) | Repr::Live(_) => 0,
            Repr::Replayable(_) => unreachable!("`meet` leaves nothing recorded"),
        });
        let mut raise = Raise {
            origins: Origins::none(),
            nodes,
            order: orders.max().unwrap_or(0) + 1,
            operands: Vec::new(),
            tensors: self.targets(),
            known: KnownOperands::default(),
            unknown: Vec::new(),
        };
        let repeated = self.repeated();
        let is_repeated = |place: usize| repeated.get(place).copied().unwrap_or(false);
        let operands = self.0.into_iter().enumerate();
        let operands: Vec<_> = operands
            .map(|(place, tensor)| raise.lower(place, tensor, is_repeated(place)))
            .collect();
        raise.operands = operands.iter().map(|operand| operand.rc.clone()).collect();
        (operands.into_iter(), raise)
    }

    /// The operands as tensors of the tape, if they are in a subgraph.
    fn targets(&self) -> Vec<(usize, Target)> {
        let is_in_subgraph = |tensor: &ReleaseTensor<B>| match &tensor.0 {
            Repr::Plain(_, origins) => origins.subgraph().is_some(),
            Repr::Snapshot(snapshot) => snapshot.site.origins.subgraph().is_some(),
            Repr::Derived(_) | Repr::Live(_) | Repr::Replayable(_) => false,
        };
        if !self.0.iter().any(is_in_subgraph) {
            return Vec::new();
        }
        let targets = self.0.iter().enumerate();
        let targets = targets.filter_map(|(place, tensor)| match &tensor.0 {
            Repr::Plain(tensor, _) if tensor.is_tracked() => Some((place, tensor.node.id)),
            Repr::Snapshot(snapshot) => Some((place, snapshot.leaf.node.id)),
            _ => None,
        });
        targets
            .map(|(place, id)| (place, Target::OnTape(id)))
            .collect()
    }

    /// Brings all operands into one subgraph of the tape: the latest that any of them is in.
    fn meet(&mut self) {
        let is_at_home = |tensor: &ReleaseTensor<B>| match &tensor.0 {
            Repr::Plain(_, origins) => origins.subgraph().is_none(),
            Repr::Snapshot(snapshot) => snapshot.site.origins.subgraph().is_none(),
            Repr::Derived(derived) => derived.origins().subgraph().is_none(),
            Repr::Replayable(_) => false,
            Repr::Live(_) => true,
        };
        if self.0.iter().all(is_at_home) {
            return;
        }
        self.leave_segments();
        let mut met = Origins::none();
        for tensor in &self.0 {
            match &tensor.0 {
                Repr::Plain(_, origins) => met.join(origins),
                Repr::Snapshot(snapshot) => met.join(&snapshot.site.origins),
                Repr::Derived(derived) => met.join(derived.origins()),
                Repr::Replayable(_) | Repr::Live(_) => {}
            }
        }
        if let Some(subgraph) = met.subgraph() {
            self.enter(subgraph);
        }
    }

    /// Brings all operands into this subgraph of the tape.
    fn within(mut self, subgraph: &Arc<Subgraph<B>>) -> Self {
        self.leave_segments();
        self.enter(subgraph);
        self
    }

    fn leave_segments(&mut self) {
        let tensors = mem::take(&mut self.0).into_iter();
        let tensors = tensors.map(|tensor| match tensor.0 {
            Repr::Replayable(recorded) => {
                let (tensor, origins) = recorded.leave();
                ReleaseTensor(Repr::Plain(tensor, origins))
            }
            _ => tensor,
        });
        self.0 = tensors.collect();
    }

    fn enter(&mut self, subgraph: &Arc<Subgraph<B>>) {
        let tensors = mem::take(&mut self.0).into_iter();
        self.0 = tensors.map(|tensor| tensor.enter(subgraph, None)).collect();
    }

    /// Applies a function whose result is a derived tensor if the operands are parameters alone.
    pub(crate) fn derive(
        self,
        name: &'static str,
        function: impl Fn(Operands<B>) -> AdTensor<B> + Send + Sync + 'static,
    ) -> ReleaseTensor<B> {
        match self.destination(name) {
            Some(Destination::Replayable(recorder)) => {
                let function: Function<B> = Arc::new(function);
                let operation = Operation::Derivable(function.clone());
                let (operands, mut entry) = self.record(recorder, operation, false);
                return ReleaseTensor(Repr::Replayable(entry.result(function(operands))));
            }
            Some(Destination::Kept(subgraph)) => {
                let (operands, raise) = self.within(&subgraph).lower(Nodes::One);
                return raise.float(function(operands));
            }
            None => {}
        }
        if !self.is_derived() {
            let (operands, raise) = self.lower(Nodes::One);
            return raise.float(function(operands));
        }
        self.derive_from_parameters(Arc::new(function))
    }

    fn derive_from_parameters(self, function: Function<B>) -> ReleaseTensor<B> {
        let operands = self.0.into_iter().map(|tensor| match tensor.0 {
            Repr::Snapshot(snapshot) => Operand::Parameter(snapshot),
            Repr::Derived(derived) => Operand::Derived(derived),
            Repr::Plain(..) | Repr::Live(_) | Repr::Replayable(_) => {
                unreachable!("only parameters were found")
            }
        });
        match derived::derive(operands.collect(), function.clone()) {
            Ok(derived) => ReleaseTensor(Repr::Derived(derived)),
            Err(operands) => {
                let operands = operands.into_iter().map(|operand| match operand {
                    Operand::Parameter(snapshot) => ReleaseTensor(Repr::Snapshot(snapshot)),
                    Operand::Derived(derived) => ReleaseTensor(Repr::Derived(derived)),
                });
                let (operands, raise) = Self(operands.collect()).lower(Nodes::Several);
                raise.float(function(operands))
            }
        }
    }

    /// Applies an operation of one or several nodes on the tape. `results` applies `raise` to its
    /// float results.
    pub(crate) fn apply<Results: 'static, Raised>(
        self,
        name: &'static str,
        nodes: Nodes,
        operation: impl Fn(Operands<B>) -> Results + Send + Sync + 'static,
        results: impl Fn(Results, &mut dyn FnMut(AdTensor<B>) -> ReleaseTensor<B>) -> Raised
        + Copy
        + Send
        + Sync
        + 'static,
    ) -> Raised {
        let recorder = match self.destination(name) {
            Some(Destination::Replayable(recorder)) => recorder,
            kept => {
                let arguments = match kept {
                    Some(Destination::Kept(subgraph)) => self.within(&subgraph),
                    _ => self,
                };
                let (operands, raise) = arguments.lower(nodes);
                return results(operation(operands), &mut |result| raise.float(result));
            }
        };
        let operation = Arc::new(operation);
        let functions: Functions<B> = Arc::new({
            let operation = operation.clone();
            move |operands| {
                let mut floats = Vec::new();
                results(operation(operands), &mut |result| {
                    floats.push(result.clone());
                    ReleaseTensor::plain(result)
                });
                floats
            }
        });
        let recorded = match nodes {
            Nodes::One => Operation::OneNode(functions),
            Nodes::None | Nodes::Unknown | Nodes::Several => Operation::SeveralNodes(functions),
        };
        let (operands, mut entry) = self.record(recorder, recorded, false);
        results(operation(operands), &mut |result| {
            ReleaseTensor(Repr::Replayable(entry.result(result)))
        })
    }

    /// Applies a function that cuts the gradient off. Of a leaf it makes another leaf.
    pub(crate) fn detach(
        self,
        function: impl Fn(Operands<B>) -> AdTensor<B> + Send + Sync + 'static,
    ) -> ReleaseTensor<B> {
        let is_leaf = self.0.iter().any(|tensor| match &tensor.0 {
            Repr::Plain(tensor, _) => tape::is_leaf::<B>(tensor),
            Repr::Snapshot(_) => true,
            Repr::Derived(_) | Repr::Live(_) | Repr::Replayable(_) => false,
        });
        if is_leaf {
            return ReleaseTensor::plain(function(self.values()));
        }
        let Some(Destination::Replayable(recorder)) = self.destination("float_detach") else {
            return ReleaseTensor::plain(function(self.values()));
        };
        let function = Arc::new(function);
        let functions: Functions<B> = Arc::new({
            let function = function.clone();
            move |operands| vec![function(operands)]
        });
        let operation = Operation::SeveralNodes(functions);
        let (operands, mut entry) = self.record(recorder, operation, true);
        ReleaseTensor(Repr::Replayable(entry.result(function(operands))))
    }

    /// Destination of an operation on these operands, if activations are recomputed.
    fn destination(&self, name: &'static str) -> Option<Destination<B>> {
        if let Some(segment) = scope::current::<B>() {
            let is_worth_it = self.0.iter().any(|tensor| match &tensor.0 {
                Repr::Plain(tensor, _) => tensor.is_tracked(),
                Repr::Live(_) | Repr::Snapshot(_) | Repr::Derived(_) | Repr::Replayable(_) => true,
            });
            return is_worth_it.then_some(Destination::Replayable(Recorder {
                segment,
                position: None,
            }));
        }
        let tracer = self.tracer()?;
        let operands = self.0.iter().filter_map(|tensor| match &tensor.0 {
            Repr::Replayable(recorded) => recorded.traced(),
            _ => None,
        });
        let position = tracer.operation(
            name,
            self.bytes_beside_parameter(),
            self.highest(),
            operands,
        )?;
        if position.is_kept {
            return Some(Destination::Kept(tracer.shared(position, Subgraph::kept)));
        }
        let make = |number| Segment::new(number, Some(tracer.clone()));
        let segment = tracer.shared(position, make);
        let position = Some(position);
        Some(Destination::Replayable(Recorder { segment, position }))
    }

    /// The tracer of the operation. Operands may have the tracers of several optimizers.
    ///
    /// That of a detached operand is the last choice: its segment is replayed for another loss.
    fn tracer(&self) -> Option<&Arc<Tracer>> {
        let recorded = |is_tracked: bool| {
            self.0.iter().find_map(move |tensor| match &tensor.0 {
                Repr::Replayable(recorded) if recorded.is_tracked() == is_tracked => {
                    recorded.tracer()
                }
                _ => None,
            })
        };
        let parameter = || {
            self.0.iter().find_map(|tensor| match &tensor.0 {
                Repr::Snapshot(snapshot) => snapshot.site.tracer.as_ref(),
                _ => None,
            })
        };
        recorded(true)
            .or_else(parameter)
            .or_else(|| recorded(false))
    }

    /// The highest numbers of the segments and subgraphs that the operands are in.
    fn highest(&self) -> Highest {
        let mut highest = Highest::default();
        for tensor in &self.0 {
            let subgraph = match &tensor.0 {
                Repr::Plain(_, origins) => origins.number(),
                Repr::Snapshot(snapshot) => snapshot.site.origins.number(),
                Repr::Derived(derived) => derived.origins().number(),
                Repr::Replayable(recorded) if recorded.is_tracked() => {
                    highest.segment = highest.segment.max(recorded.number());
                    continue;
                }
                Repr::Replayable(_) | Repr::Live(_) => continue,
            };
            highest.subgraph = highest.subgraph.max(subgraph);
        }
        highest
    }

    /// Bytes of the other operands, if one operand is a parameter.
    fn bytes_beside_parameter(&self) -> Option<u64> {
        let is_parameter = |tensor: &&ReleaseTensor<B>| matches!(tensor.0, Repr::Snapshot(_));
        self.0.iter().find(is_parameter)?;
        let others = self.0.iter().filter(|tensor| !is_parameter(tensor));
        let bytes = others.map(|tensor| tensor.shape().num_elements() * tensor.dtype().size());
        Some(bytes.sum::<usize>() as u64)
    }

    fn record(
        self,
        recorder: Recorder<B>,
        operation: Operation<B>,
        is_detached: bool,
    ) -> (Operands<B>, Entry<B>) {
        let inputs = self.0.into_iter().map(|tensor| match tensor.0 {
            Repr::Plain(tensor, origins) => Input::Outside(Outside::Plain(tensor, origins)),
            Repr::Snapshot(snapshot) => {
                let noted = NotedUse::of(&snapshot);
                Input::Outside(Outside::Parameter(snapshot, noted))
            }
            Repr::Derived(derived) => {
                let (tensor, origins) = pass_on(derived);
                Input::Outside(Outside::Plain(tensor, origins))
            }
            Repr::Replayable(recorded) => Input::Replayable(recorded),
            Repr::Live(_) => unreachable!("`push` reads the owner"),
        });
        let Recorder { segment, position } = recorder;
        segment.record(inputs.collect(), operation, is_detached, position)
    }

    /// Applies a recorded operation again.
    ///
    /// With `is_apart`, contributions to the gradient of its result are added up elsewhere.
    pub(crate) fn replay(self, operation: &Operation<B>, is_apart: bool) -> Vec<ReleaseTensor<B>> {
        let (nodes, functions) = match operation {
            Operation::Derivable(function) if !is_apart && self.is_derived() => {
                return vec![self.derive_from_parameters(function.clone())];
            }
            Operation::Derivable(function) => {
                let (operands, raise) = self.lower(Nodes::One);
                return vec![raise.float(function(operands))];
            }
            Operation::OneNode(functions) => (Nodes::One, functions),
            Operation::SeveralNodes(functions) => (Nodes::Several, functions),
        };
        let (operands, raise) = self.lower(nodes);
        let results = functions(operands).into_iter();
        results.map(|result| raise.float(result)).collect()
    }

    /// The operands of an operation that leaves nothing on the tape.
    pub(crate) fn values(self) -> Operands<B> {
        let tensors = self.0.into_iter().map(ReleaseTensor::into_autodiff);
        tensors.collect::<Vec<_>>().into_iter()
    }

    /// Whether all operands are armed parameters, or derived from them by few enough operations: a
    /// derived tensor is placed on the tape, and dropped, by recursion.
    fn is_derived(&self) -> bool {
        !self.0.is_empty()
            && self.0.iter().all(|tensor| match &tensor.0 {
                Repr::Snapshot(snapshot) => snapshot.is_awaited(),
                Repr::Derived(derived) => derived.order() < derived::MAX_DEPTH,
                Repr::Plain(..) | Repr::Live(_) | Repr::Replayable(_) => false,
            })
    }

    /// For each operand, whether it is the same parameter, or derived tensor, as an earlier one;
    /// empty if none is.
    fn repeated(&self) -> Vec<bool> {
        let is_counted =
            |tensor: &ReleaseTensor<B>| matches!(&tensor.0, Repr::Snapshot(_) | Repr::Derived(_));
        if self.0.iter().filter(|tensor| is_counted(tensor)).count() < 2 {
            return Vec::new();
        }
        let is_repeated = |place: usize| {
            let others = self.0.iter().enumerate();
            let mut others = others.filter(|(other, _)| *other != place);
            others.any(|(_, other)| match (&self.0[place].0, &other.0) {
                (Repr::Snapshot(one), Repr::Snapshot(other)) => {
                    Arc::ptr_eq(&one.site.consumers, &other.site.consumers)
                }
                (Repr::Derived(one), Repr::Derived(other)) => one.is_same(other),
                _ => false,
            })
        };
        (0..self.0.len()).map(is_repeated).collect()
    }
}

impl<B: Backend> ReleaseTensor<B> {
    /// Brings the tensor into a subgraph of the tape, for one use or for all.
    pub(crate) fn enter(self, subgraph: &Arc<Subgraph<B>>, of: Option<Use>) -> Self {
        let derived = match self.0 {
            Repr::Plain(tensor, origins) => {
                let (tensor, origins) = subgraph.enter(tensor, origins, of);
                return Self(Repr::Plain(tensor, origins));
            }
            Repr::Snapshot(snapshot) => return Self(Repr::Snapshot(snapshot.enter(subgraph, of))),
            Repr::Derived(derived) => derived,
            Repr::Live(_) | Repr::Replayable(_) => unreachable!("read, and left its segment"),
        };
        if let Some(here) = derived.origins().subgraph()
            && Arc::ptr_eq(here, subgraph)
        {
            return Self(Repr::Derived(derived));
        }
        let (tensor, origins) = pass_on(derived);
        let (tensor, origins) = subgraph.enter(tensor, origins, of);
        Self(Repr::Plain(tensor, origins))
    }
}

/// A derived tensor that leaves its subgraph: its gradient is gathered elsewhere, and goes to a
/// node where it was derived. All its uses elsewhere share the node.
fn pass_on<B: Backend>(derived: Derived<B>) -> (AdTensor<B>, Origins<B>) {
    let (value, order) = (derived.value(), derived.order());
    let exit = derived.exit();
    let mut known = lock(&exit);
    let (node, origins) = known.get_or_insert_with(|| {
        let arguments = Arguments(vec![ReleaseTensor(Repr::Derived(derived))]);
        let (mut operands, raise) = arguments.lower(Nodes::One);
        let operand = operands.next().expect("there is one");
        let placeholder = tape::placeholder::<B>(&value);
        let target = tape::key(&operand, placeholder.clone());
        let node = tape::hook(
            vec![operand],
            raise.order,
            placeholder,
            move |node, grads| {
                tape::forward(node, &target, grads);
            },
        );
        (node, raise.origins)
    });
    (handle::<B>(node, value, order), origins.clone())
}
