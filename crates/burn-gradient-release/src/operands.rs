//! The operands of an operation, as burn-autodiff wants them, and what becomes of its result.

use std::{array, sync::Arc};

use burn::tensor::{
    backend::{Backend, BackendTypes},
    ops::FloatTensor,
};
use burn_autodiff::{Autodiff, NodeId};

use crate::{
    derived::{self, Function, Operand, Operands},
    origins::Origins,
    tape::{self, AdTensor, handle},
    tensor::{ReleaseTensor, Repr},
    uses::{self, Uses},
};

/// What is known of an operation on the tape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Nodes {
    /// It is one node, right above its operands.
    One,
    /// Its result tells.
    Unknown,
    /// It is several nodes.
    Several,
}

/// The float tensors among the arguments of an operation, in their order.
pub(crate) struct Arguments<B: Backend>(Vec<ReleaseTensor<B>>);

/// Where the result of an operation comes from.
pub(crate) struct Raise<B: Backend> {
    origins: Origins<B>,
    nodes: Nodes,
    /// The order of an operation that is one node.
    order: usize,
    operands: Vec<NodeId>,
    /// Uses to be noted once the result is known: of what, and the lowest order they can have.
    unknown: Vec<(Arc<Uses<B>>, usize)>,
}

impl<B: Backend> Arguments<B> {
    pub(crate) fn new() -> Self {
        Self(Vec::with_capacity(2))
    }

    pub(crate) fn push(&mut self, tensor: ReleaseTensor<B>) {
        self.0.push(tensor.read());
    }

    /// The operands of an operation on the tape.
    pub(crate) fn lower(self, nodes: Nodes) -> (Operands<B>, Raise<B>) {
        let orders = self.0.iter().map(|tensor| match &tensor.0 {
            Repr::Plain(tensor, _) => tensor.node.order,
            Repr::Derived(derived) => derived.order(),
            Repr::Snapshot(_) | Repr::Live(_) => 0,
        });
        let mut raise = Raise {
            origins: Origins::none(),
            nodes,
            order: orders.max().unwrap_or(0) + 1,
            operands: Vec::new(),
            unknown: Vec::new(),
        };
        let repeated: Vec<_> = (0..self.0.len())
            .map(|place| self.is_repeated(place))
            .collect();
        let operands = self.0.into_iter().zip(repeated);
        let operands: Vec<_> = operands
            .map(|(tensor, is_repeated)| raise.lower(tensor, is_repeated))
            .collect();
        if !raise.origins.is_none() {
            raise.operands = operands.iter().map(|operand| operand.node.id).collect();
        }
        (operands.into_iter(), raise)
    }

    /// Applies a function whose result, given parameters alone, is a tensor derived from them.
    pub(crate) fn derive(
        self,
        function: impl Fn(Operands<B>) -> AdTensor<B> + Send + Sync + 'static,
    ) -> ReleaseTensor<B> {
        if !self.is_derived() {
            let (operands, raise) = self.lower(Nodes::One);
            return raise.float(function(operands));
        }
        let function: Function<B> = Arc::new(function);
        let operands = self.0.into_iter().map(|tensor| match tensor.0 {
            Repr::Snapshot(snapshot) => Operand::Parameter(snapshot),
            Repr::Derived(derived) => Operand::Derived(derived),
            Repr::Plain(..) | Repr::Live(_) => unreachable!("only parameters were found"),
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

    /// The operands of an operation that leaves nothing on the tape.
    pub(crate) fn values(self) -> Operands<B> {
        let tensors = self.0.into_iter().map(ReleaseTensor::into_autodiff);
        tensors.collect::<Vec<_>>().into_iter()
    }

    /// Whether all operands are armed parameters, or derived from them.
    fn is_derived(&self) -> bool {
        !self.0.is_empty()
            && self.0.iter().all(|tensor| match &tensor.0 {
                Repr::Snapshot(snapshot) => snapshot.is_awaited(),
                Repr::Derived(_) => true,
                Repr::Plain(..) | Repr::Live(_) => false,
            })
    }

    /// Whether another operand is the same tensor on the tape.
    fn is_repeated(&self, place: usize) -> bool {
        let others = self
            .0
            .iter()
            .enumerate()
            .filter(|(other, _)| *other != place);
        let mut others = others.map(|(_, tensor)| tensor);
        match &self.0[place].0 {
            Repr::Snapshot(snapshot) => others.any(|other| match &other.0 {
                Repr::Snapshot(other) => Arc::ptr_eq(&other.site.uses, &snapshot.site.uses),
                _ => false,
            }),
            Repr::Derived(derived) => others.any(|other| match &other.0 {
                Repr::Derived(other) => other.is_same(derived),
                _ => false,
            }),
            Repr::Plain(..) | Repr::Live(_) => false,
        }
    }
}

impl<B: Backend> Raise<B> {
    fn lower(&mut self, tensor: ReleaseTensor<B>, is_repeated: bool) -> AdTensor<B> {
        match tensor.0 {
            Repr::Plain(tensor, origins) => {
                self.origins.join(&origins);
                tensor
            }
            Repr::Snapshot(snapshot) => {
                self.origins.join(&snapshot.site.origins);
                let uses = snapshot.site.uses.clone();
                let leaf = snapshot.into_leaf();
                let is_lowest = self.note(&uses, leaf.node.order, is_repeated);
                if is_lowest && uses.is_awaited() {
                    let proxy = uses::proxy(&uses, self.order);
                    // In the place of the leaf, with its order.
                    handle::<B>(&proxy, leaf.primitive, leaf.node.order)
                } else {
                    leaf
                }
            }
            Repr::Derived(derived) => {
                self.origins.join(derived.origins());
                let (tensor, uses) = derived.on_tape();
                self.note(&uses, tensor.node.order, is_repeated);
                tensor
            }
            Repr::Live(_) => unreachable!("`push` reads the owner"),
        }
    }

    /// Notes the use of an operand of the given order. Returns whether it is the lowest, and single.
    fn note(&mut self, uses: &Arc<Uses<B>>, order: usize, is_repeated: bool) -> bool {
        match self.nodes {
            Nodes::One => uses.consume(self.order, if is_repeated { 2 } else { 1 }),
            Nodes::Unknown => {
                self.unknown.push((uses.clone(), order + 1));
                false
            }
            Nodes::Several => uses.consume(order + 1, 2),
        }
    }

    /// Of an operation that leaves nothing on the tape.
    pub(crate) fn untracked() -> Self {
        Self {
            origins: Origins::none(),
            nodes: Nodes::Several,
            order: 0,
            operands: Vec::new(),
            unknown: Vec::new(),
        }
    }

    pub(crate) fn into_origins(self) -> Origins<B> {
        self.origins
    }

    /// The result of the operation.
    ///
    /// # Panics
    ///
    /// If an operation of Burn is not the one node that it is taken to be.
    pub(crate) fn float(&self, result: AdTensor<B>) -> ReleaseTensor<B> {
        if !self.operands.is_empty() {
            // What has no other parents than the operands is one node, unless it is an operand.
            let node = &result.node;
            let mut parents = node.parents.iter();
            let is_one = parents.all(|parent| self.operands.contains(&parent.id));
            if self.nodes == Nodes::One {
                tape::check_one_node(is_one);
            }
            let is_one = is_one && !node.parents.is_empty();
            for (uses, lowest) in &self.unknown {
                // The order is the node's own: not every operand has to be a parent.
                uses.consume(if is_one { node.order } else { *lowest }, 2);
            }
        }
        ReleaseTensor(Repr::Plain(result, self.origins.clone()))
    }
}

impl<B: Backend> ReleaseTensor<B> {
    /// Applies an operation of the autodiff backend: the way to bring an operation of your own, with
    /// its own backward, to [`GradientRelease`](crate::GradientRelease).
    ///
    /// `operation` is given the operands as tensors of [`Autodiff`], whatever its checkpointing
    /// strategy, with its parameters among them where the tape wants them; its result is a tensor
    /// of `GradientRelease`. Every tracked tensor that it uses has to be among the operands.
    ///
    /// Parameters that it consumes are stepped in time if it is one node on the tape. Inside an
    /// operation of several nodes they may be used anywhere, so they are stepped at the end of
    /// backward.
    ///
    /// A trait of your own, implemented for `Autodiff<B, C>` as in Burn's book, becomes one of
    /// `GradientRelease<Autodiff<B, C>>` by one such call for each method:
    ///
    /// ```
    /// use burn::{
    ///     backend::{Autodiff, Flex, autodiff::checkpoint::strategy::CheckpointStrategy},
    ///     tensor::{Tensor, TensorPrimitive, backend::Backend, ops::FloatTensor},
    /// };
    /// use burn_gradient_release::{GradientRelease, ReleaseTensor};
    ///
    /// trait Ops: Backend {
    ///     fn scaled_add(lhs: FloatTensor<Self>, rhs: FloatTensor<Self>) -> FloatTensor<Self>;
    /// }
    ///
    /// # // A real one would register a backward of its own.
    /// impl<C: CheckpointStrategy> Ops for Autodiff<Flex, C> {
    ///     fn scaled_add(lhs: FloatTensor<Self>, rhs: FloatTensor<Self>) -> FloatTensor<Self> {
    ///         // ...
    /// #       Self::float_add(lhs, Self::float_mul_scalar(rhs, 0.5.into()))
    ///     }
    /// }
    ///
    /// impl<C: CheckpointStrategy> Ops for GradientRelease<Autodiff<Flex, C>> {
    ///     fn scaled_add(lhs: FloatTensor<Self>, rhs: FloatTensor<Self>) -> FloatTensor<Self> {
    ///         ReleaseTensor::apply([lhs, rhs], |[lhs, rhs]| {
    ///             Autodiff::<Flex, C>::scaled_add(lhs, rhs)
    ///         })
    ///     }
    /// }
    /// # use burn::tensor::ops::FloatTensorOps;
    /// # type R = GradientRelease<Autodiff<Flex>>;
    /// # let one = || Tensor::<R, 1>::ones([2], &Default::default()).into_primitive().tensor();
    /// # let sum = Tensor::<R, 1>::from_primitive(TensorPrimitive::Float(R::scaled_add(one(), one())));
    /// # assert_eq!(sum.into_data().to_vec::<f32>().unwrap(), [1.5, 1.5]);
    /// ```
    pub fn apply<const N: usize>(
        operands: [Self; N],
        operation: impl FnOnce(
            [<Autodiff<B> as BackendTypes>::FloatTensorPrimitive; N],
        ) -> FloatTensor<Autodiff<B>>,
    ) -> Self {
        let mut arguments = Arguments::new();
        operands
            .into_iter()
            .for_each(|tensor| arguments.push(tensor));
        let (mut operands, raise) = arguments.lower(Nodes::Unknown);
        let operands = array::from_fn(|_| operands.next().expect("as many as were given"));
        raise.float(operation(operands))
    }
}
