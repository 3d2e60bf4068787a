//! A node of the tape with a backward pass written by hand.
//!
//! An [`Operation`] is written with Burn's tensors, without autodiff: so it runs on every backend.

use std::fmt;
use std::marker::PhantomData;

use burn::backend::autodiff::NodeId;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::NoCheckpointing;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, NodeGuard, Ops, OpsKind};
use burn::backend::{BackendTensor, DispatchAutodiffContext, DispatchTensor, TensorMetadata};
use burn::tensor::{DType, Tensor};

use super::chunks::wide;
use crate::backend::{Inner, Primitive, Tracked, WithBackend, with_backend};
use crate::tape::rung;

/// The tensors that an operation keeps for its backward pass. `N` is the number of its operands.
pub(super) trait Operation<const N: usize>: Clone + Send + 'static {
    /// The name that messages have.
    const NAME: &'static str;

    /// Whether operands in half precision may meet those in 32 bits.
    const MIXES: bool = false;

    /// Gives the operands their gradients, from that of the output.
    fn backward(self, grad: Gradient, operands: &mut OperandGradients<'_, N>);
}

/// The gradient of an output.
pub(super) struct Gradient(DispatchTensor);

impl Gradient {
    /// The gradient, of the rank of the output.
    pub(super) fn tensor<const D: usize>(self) -> Tensor<D> {
        Tensor::from_dispatch(self.0)
    }
}

/// The operands as the forward pass sees them: without autodiff.
pub(super) struct Operands<const N: usize> {
    tensors: [Option<DispatchTensor>; N],
    wants: [bool; N],
}

impl<const N: usize> Operands<N> {
    /// Takes an operand that is always there.
    ///
    /// # Panics
    ///
    /// If it is taken twice.
    pub(super) fn take<const D: usize>(&mut self, at: usize) -> Tensor<D> {
        self.take_optional(at).expect("an operand is taken once")
    }

    /// Takes an operand that may be left out.
    pub(super) fn take_optional<const D: usize>(&mut self, at: usize) -> Option<Tensor<D>> {
        self.tensors[at].take().map(Tensor::from_dispatch)
    }

    /// Whether an operand needs a gradient.
    pub(super) fn wants(&self, at: usize) -> bool {
        self.wants[at]
    }
}

/// Where a backward pass puts the gradients of the operands.
pub(super) struct OperandGradients<'a, const N: usize> {
    parents: [Option<NodeId>; N],
    dtypes: [DType; N],
    register: &'a mut dyn FnMut(NodeId, DispatchTensor),
}

impl<const N: usize> OperandGradients<'_, N> {
    /// Whether an operand needs a gradient.
    pub(super) fn wants(&self, at: usize) -> bool {
        self.parents[at].is_some()
    }

    /// Adds to the gradient of an operand, if it needs one. A gradient has the type of its operand:
    /// it is rounded to that here, if it is in another.
    pub(super) fn give<const D: usize>(&mut self, at: usize, grad: Tensor<D>) {
        if let Some(node) = self.parents[at] {
            (self.register)(node, grad.cast(self.dtypes[at]).into_dispatch());
        }
    }
}

/// Runs `forward` on the operands without autodiff, and puts its output on the tape, if one of them
/// needs a gradient.
///
/// # Panics
///
/// If the operands are of types that the operation does not mix, or those that need gradients are on
/// a backend that burn-lean was compiled without.
pub(super) fn apply<const N: usize, const D: usize, O: Operation<N>>(
    operands: [Option<DispatchTensor>; N],
    forward: impl FnOnce(Operands<N>) -> (Tensor<D>, O),
) -> Tensor<D> {
    assert_types::<N, O>(&operands);
    let mut on_tape = operands
        .iter()
        .flatten()
        .filter(|operand| operand.autodiff != DispatchAutodiffContext::Disabled);
    let Some(first) = on_tape.next() else {
        let operands = Operands {
            tensors: operands,
            wants: [false; N],
        };
        return forward(operands).0;
    };
    let context = first.autodiff;
    assert!(
        on_tape.all(|operand| operand.autodiff == context),
        "{}: the operands have different checkpointing strategies",
        O::NAME
    );
    let kind = first.kind.clone();
    let run = Apply {
        operands,
        forward,
        context,
        operation: PhantomData,
    };
    with_backend(kind, run).unwrap_or_else(|| {
        panic!(
            "{}: burn-lean was compiled without this backend; switch its feature on",
            O::NAME
        )
    })
}

/// Refuses at the call what would else be a gradient of another type than its operand.
fn assert_types<const N: usize, O: Operation<N>>(operands: &[Option<DispatchTensor>; N]) {
    let types = operands.iter().flatten().map(TensorMetadata::dtype);
    let types: Vec<DType> = types.collect();
    let alike = |dtype: &DType| match O::MIXES {
        true => wide(*dtype),
        false => *dtype,
    };
    assert!(
        types.iter().all(|dtype| alike(dtype) == alike(&types[0])),
        "{}: the operands are of the types {types:?}: cast them to one",
        O::NAME
    );
}

struct Apply<const N: usize, const D: usize, O, F> {
    operands: [Option<DispatchTensor>; N],
    forward: F,
    context: DispatchAutodiffContext,
    operation: PhantomData<O>,
}

impl<const N: usize, const D: usize, O, F> WithBackend for Apply<N, D, O, F>
where
    O: Operation<N>,
    F: FnOnce(Operands<N>) -> (Tensor<D>, O),
{
    type Output = Tensor<D>;

    fn run<B: Inner>(self, first: BackendTensor<B>) -> Tensor<D> {
        let device = match &first {
            BackendTensor::Autodiff(first) => first.device(),
            _ => unreachable!("it is on the tape"),
        };
        // A second reference would forbid operations in place.
        drop(first);
        let operands = self.operands.map(|operand| operand.map(on_tape::<B, O, N>));
        let wants = operands
            .each_ref()
            .map(|operand| operand.as_ref().is_some_and(Tracked::<B>::is_tracked));
        let dtype = |operand: &Tracked<B>| operand.dtype();
        let dtypes = operands
            .each_ref()
            .map(|operand| operand.as_ref().map_or(DType::F32, dtype));
        let mut guards = Vec::with_capacity(N);
        let tensors = operands.map(|operand| {
            let Some(operand) = operand else {
                guards.push(rung::<B>(0, &device));
                return None;
            };
            let (primitive, guard) = operand.into_parts();
            guards.push(guard);
            Some(dispatch::<B>(primitive))
        });
        let guards: [NodeGuard; N] = guards.try_into().expect("one for each operand");

        let (output, operation) = (self.forward)(Operands { tensors, wants });
        let node = Node::<O>(PhantomData);
        let output = B::of(output);
        let output = match Backward::<B, N>::prepare::<NoCheckpointing>(node, guards)
            .compute_bound()
            .stateful()
        {
            OpsKind::Tracked(prep) => prep.finish(Kept { operation, dtypes }, output),
            OpsKind::UnTracked(prep) => prep.finish(output),
        };
        B::tracked(output, self.context)
    }
}

fn on_tape<B: Inner, O: Operation<N>, const N: usize>(operand: DispatchTensor) -> Tracked<B> {
    match B::unwrap(operand.kind) {
        Some(BackendTensor::Autodiff(tensor)) => tensor,
        Some(BackendTensor::Float(primitive)) => <Tracked<B>>::new(primitive),
        _ => panic!("{}: the operands are not floats of one backend", O::NAME),
    }
}

fn dispatch<B: Inner>(primitive: Primitive<B>) -> DispatchTensor {
    DispatchTensor {
        kind: B::wrap(BackendTensor::Float(primitive)),
        autodiff: DispatchAutodiffContext::Disabled,
    }
}

/// The step of an operation on the tape.
struct Node<O>(PhantomData<O>);

/// Burn asks for `Debug`. Tensors would print their numbers.
impl<O> fmt::Debug for Node<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Node")
    }
}

#[derive(Clone)]
struct Kept<O, const N: usize> {
    operation: O,
    /// Those of the operands.
    dtypes: [DType; N],
}

impl<O, const N: usize> fmt::Debug for Kept<O, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Kept")
    }
}

impl<B: Inner, const N: usize, O: Operation<N>> Backward<B, N> for Node<O> {
    type State = Kept<O, N>;

    fn backward(self, ops: Ops<Kept<O, N>, N>, grads: &mut Gradients, _: &mut Checkpointer) {
        let grad = Gradient(dispatch::<B>(grads.consume::<B>(&ops.node)));
        let parents = ops.parents.map(|parent| parent.map(|node| node.id));
        let register = &mut |node, grad| {
            let grad = B::of(Tensor::<1>::from_dispatch(grad));
            grads.register::<B>(node, grad);
        };
        let Kept { operation, dtypes } = ops.state;
        let mut operands = OperandGradients {
            parents,
            dtypes,
            register,
        };
        operation.backward(grad, &mut operands);
    }
}
