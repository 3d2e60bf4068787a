//! Where parameters meet activations: the operands of an operation, as the tape wants them.

use std::sync::atomic::{AtomicU64, Ordering};

use burn::tensor::backend::Backend;

use crate::{
    tap::Use,
    tensor::{AdTensor, ReleaseTensor, Repr, Snapshot},
};

/// One operation about to go on the tape.
pub(crate) struct Operation {
    id: u64,
    usage: Use,
}

impl Operation {
    pub(crate) fn new(usage: Use) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            usage,
        }
    }

    /// The parameter as an operand; `order` is the highest among the other operands.
    pub(crate) fn consume<B: Backend>(&self, snapshot: Snapshot<B>, order: usize) -> AdTensor<B> {
        let slot = snapshot.slot.upgrade();
        let leaf = snapshot.into_leaf();
        slot.and_then(|slot| slot.tap(leaf.primitive.clone(), order, self.usage, self.id))
            .unwrap_or(leaf)
    }

    fn operand<B: Backend>(&self, tensor: ReleaseTensor<B>, order: usize) -> AdTensor<B> {
        match tensor.0 {
            Repr::Plain(tensor) => tensor,
            Repr::Snapshot(snapshot) => self.consume(snapshot, order),
            Repr::Derived(derived) => derived.on_tape(order.saturating_sub(derived.height())),
            Repr::Live(_) => unreachable!("`read` leaves no owner"),
        }
    }
}

/// The operands of an operation on the inner backend.
pub(crate) fn operands<B: Backend, const N: usize>(
    usage: Use,
    tensors: [ReleaseTensor<B>; N],
) -> [AdTensor<B>; N] {
    let (operands, []) = optional_operands(usage, tensors, []);
    operands
}

/// The same with operands that may be absent.
pub(crate) fn optional_operands<B: Backend, const N: usize, const M: usize>(
    usage: Use,
    required: [ReleaseTensor<B>; N],
    optional: [Option<ReleaseTensor<B>>; M],
) -> ([AdTensor<B>; N], [Option<AdTensor<B>>; M]) {
    let required = required.map(ReleaseTensor::read);
    let optional = optional.map(|tensor| tensor.map(ReleaseTensor::read));
    let order = order(required.iter().chain(optional.iter().flatten()));
    let operation = Operation::new(usage);
    (
        required.map(|tensor| operation.operand(tensor, order)),
        optional.map(|tensor| tensor.map(|tensor| operation.operand(tensor, order))),
    )
}

/// The same with a list of operands.
pub(crate) fn operand_list<B: Backend>(
    usage: Use,
    tensors: Vec<ReleaseTensor<B>>,
) -> Vec<AdTensor<B>> {
    let tensors: Vec<_> = tensors.into_iter().map(ReleaseTensor::read).collect();
    let order = order(tensors.iter());
    let operation = Operation::new(usage);
    tensors
        .into_iter()
        .map(|tensor| operation.operand(tensor, order))
        .collect()
}

/// The order plain Burn would find among the operands, parameters aside: they take any.
fn order<'a, B: Backend>(tensors: impl Iterator<Item = &'a ReleaseTensor<B>>) -> usize {
    tensors
        .map(|tensor| match &tensor.0 {
            Repr::Plain(tensor) => tensor.node.order,
            Repr::Derived(derived) => derived.order().unwrap_or(derived.height()),
            Repr::Snapshot(_) | Repr::Live(_) => 0,
        })
        .fold(0, usize::max)
}
