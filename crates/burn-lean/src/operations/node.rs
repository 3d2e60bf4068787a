//! A node of the tape with a backward pass written by hand.
//!
//! An [`Operation`] is written with Burn's tensors, without autodiff: so it runs on every backend.

use burn::backend::autodiff::NodeId;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::{DispatchAutodiffContext, DispatchTensor, TensorMetadata};
use burn::tensor::{DType, Tensor};

use crate::backend::{is_same_backend, plain};
use crate::marks;
use crate::tape::{constant, guard, is_tracked, node, node_of, register, unused};
use crate::wide::wide;

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
    grads: &'a mut Gradients,
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
            register(self.grads, node, grad.cast(self.dtypes[at]).into_dispatch());
        }
    }
}

/// Runs `forward` on the operands, dequantized and without autodiff, and puts its output on the
/// tape, if one of them needs a gradient.
///
/// # Panics
///
/// If the operands are of types that the operation does not mix, or those that need gradients are on
/// a backend that burn-lean was compiled without.
pub(super) fn apply<const N: usize, const D: usize, O: Operation<N>>(
    operands: [Option<DispatchTensor>; N],
    forward: impl FnOnce(Operands<N>) -> (Tensor<D>, O),
) -> Tensor<D> {
    let operands = floats::<N, O>(operands);
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
    assert!(
        node_of(first).is_some(),
        "{}: burn-lean was compiled without this backend; switch its feature on, or, if it has none, \
         use `burn::nn` (`LeanModule::plain`)",
        O::NAME
    );
    assert!(
        operands
            .iter()
            .flatten()
            .all(|operand| operand.dtype().is_float() && is_same_backend(operand, first)),
        "{}: the operands are not floats of one backend",
        O::NAME
    );
    let operands = operands.map(|operand| {
        let operand = operand?;
        Some(match operand.autodiff {
            DispatchAutodiffContext::Disabled => constant(operand, context),
            DispatchAutodiffContext::Enabled(_) => operand,
        })
    });
    let guards = operands.each_ref().map(|operand| match operand {
        Some(operand) => guard(operand),
        None => unused(
            operands
                .iter()
                .flatten()
                .next()
                .expect("one is on the tape"),
        ),
    });
    let dtypes = operands
        .each_ref()
        .map(|operand| operand.as_ref().map_or(DType::F32, TensorMetadata::dtype));
    let wants = operands
        .each_ref()
        .map(|operand| operand.as_ref().is_some_and(is_tracked));
    let tensors = operands.map(|operand| operand.map(plain));

    let run = || forward(Operands { tensors, wants });
    let (output, operation) = marks::operation(O::NAME, run);
    let output = node(
        output.into_dispatch(),
        guards,
        context,
        move |mut reached| {
            let grad = Gradient(reached.grad());
            let parents = reached.ops.parents.each_ref();
            let mut operands = OperandGradients {
                parents: parents.map(|parent| parent.as_ref().map(|node| node.id)),
                dtypes,
                grads: reached.grads,
            };
            marks::operation(O::NAME, || operation.backward(grad, &mut operands));
        },
    );
    Tensor::from_dispatch(output)
}

/// The operands as floats of types that the operation takes together. One that is quantized is a
/// constant, as Burn's operations read it. What would be a gradient of another type than its operand
/// is refused.
fn floats<const N: usize, O: Operation<N>>(
    operands: [Option<DispatchTensor>; N],
) -> [Option<DispatchTensor>; N] {
    let computed = |dtype: DType| match O::MIXES {
        true => wide(dtype),
        false => dtype,
    };
    let types = operands.iter().flatten().map(TensorMetadata::dtype);
    // What is quantized is of another kind.
    let types: Vec<DType> = types.filter(DType::is_float).collect();
    let mut pairs = types.windows(2);
    assert!(
        pairs.all(|pair| computed(pair[0]) == computed(pair[1])),
        "{}: the operands are of the types {types:?}: cast them to one",
        O::NAME
    );
    operands.map(|operand| {
        let operand = operand?;
        let DType::QFloat(_) = operand.dtype() else {
            return Some(operand);
        };
        // Any rank will do.
        let float = Tensor::<1>::from_dispatch(operand).dequantize();
        let dtype = types.first().copied().map_or(float.dtype(), computed);
        Some(float.cast(dtype).into_dispatch())
    })
}
