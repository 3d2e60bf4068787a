//! Functions of armed parameters alone: views, casts, normalised weights.
//!
//! Put on the tape at once, such a function would lie at its very bottom, and hold its gradient
//! until the end of backward. Its value is computed at once, but it goes on the tape when it meets
//! an activation: then its depth is known, one level below the operation that consumes it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use burn::tensor::{
    backend::{AutodiffBackend, Backend},
    ops::FloatTensor,
};
use burn_autodiff::Autodiff;

use crate::{
    join::{self, Operation},
    tap::Use,
    tensor::{AdTensor, ReleaseTensor, Repr, Snapshot, at_order},
};

type Function<B> = Box<dyn Fn(Vec<AdTensor<B>>) -> AdTensor<B> + Send + Sync>;

/// A tensor computed from armed parameters and nothing else.
#[derive(Clone, Debug)]
pub(crate) struct Derived<B: Backend>(Arc<Expression<B>>);

struct Expression<B: Backend> {
    operands: Vec<Operand<B>>,
    function: Function<B>,
    /// Levels between the parameters and the result.
    height: usize,
    usage: Use,
    state: Mutex<State<B>>,
}

enum Operand<B: Backend> {
    Param(Snapshot<B>),
    Derived(Derived<B>),
}

enum State<B: Backend> {
    Computed(FloatTensor<B>),
    OnTape(AdTensor<B>),
}

impl<B: Backend> Derived<B> {
    pub(crate) fn value(&self) -> FloatTensor<B> {
        match &*self.state() {
            State::Computed(value) => value.clone(),
            State::OnTape(tensor) => tensor.primitive.clone(),
        }
    }

    pub(crate) fn height(&self) -> usize {
        self.0.height
    }

    /// The order on the tape, if it is there already.
    pub(crate) fn order(&self) -> Option<usize> {
        match &*self.state() {
            State::Computed(_) => None,
            State::OnTape(tensor) => Some(tensor.node.order),
        }
    }

    /// Puts the expression on the tape, the parameters at order `base`. Once: several consumers
    /// share the node, and its backward runs once, as in plain Burn.
    pub(crate) fn on_tape(&self, base: usize) -> AdTensor<B> {
        let mut state = self.state();
        if let State::OnTape(tensor) = &*state {
            return tensor.clone();
        }
        let expression = &*self.0;
        let derived: Vec<_> = expression
            .operands
            .iter()
            .map(|operand| match operand {
                Operand::Derived(derived) => Some(derived.on_tape(base)),
                Operand::Param(_) => None,
            })
            .collect();
        let order = derived
            .iter()
            .flatten()
            .map(|tensor| tensor.node.order)
            .fold(base, usize::max);
        let operation = Operation::new(expression.usage);
        let operands = expression
            .operands
            .iter()
            .zip(derived)
            .map(|(operand, derived)| match operand {
                Operand::Param(snapshot) => operation.consume(snapshot.clone(), order),
                Operand::Derived(_) => derived.expect("derived operands were put on the tape"),
            })
            .collect();
        let tensor = (expression.function)(operands);
        *state = State::OnTape(tensor.clone());
        tensor
    }

    fn state(&self) -> MutexGuard<'_, State<B>> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<B: Backend> Operand<B> {
    fn from_tensor(tensor: &ReleaseTensor<B>) -> Option<Self> {
        match &tensor.0 {
            Repr::Snapshot(snapshot) => {
                snapshot.armed_slot().map(|_| Self::Param(snapshot.clone()))
            }
            Repr::Derived(derived) => Some(Self::Derived(derived.clone())),
            Repr::Plain(_) | Repr::Live(_) => None,
        }
    }

    /// The value as an untracked tensor whose order is the height below it.
    fn at_height(&self) -> AdTensor<B> {
        let (value, height) = match self {
            Self::Param(snapshot) => (snapshot.leaf.primitive.clone(), 0),
            Self::Derived(derived) => (derived.value(), derived.height()),
        };
        at_order::<B>(&Autodiff::<B>::from_inner(value.clone()), value, height)
    }
}

/// Applies a function of one tensor.
pub(crate) fn map<B: Backend>(
    tensor: ReleaseTensor<B>,
    function: impl Fn(AdTensor<B>) -> AdTensor<B> + Send + Sync + 'static,
) -> ReleaseTensor<B> {
    match tensor.0 {
        Repr::Plain(tensor) => ReleaseTensor::plain(function(tensor)),
        _ => merge(vec![tensor], move |operands| {
            let [tensor] = exactly(operands);
            function(tensor)
        }),
    }
}

/// Applies a function of two tensors that is one node on the tape.
pub(crate) fn zip<B: Backend>(
    lhs: ReleaseTensor<B>,
    rhs: ReleaseTensor<B>,
    function: impl Fn(AdTensor<B>, AdTensor<B>) -> AdTensor<B> + Send + Sync + 'static,
) -> ReleaseTensor<B> {
    match (lhs.0, rhs.0) {
        (Repr::Plain(lhs), Repr::Plain(rhs)) => ReleaseTensor::plain(function(lhs, rhs)),
        (lhs, rhs) => merge(
            vec![ReleaseTensor(lhs), ReleaseTensor(rhs)],
            move |operands| {
                let [lhs, rhs] = exactly(operands);
                function(lhs, rhs)
            },
        ),
    }
}

/// Applies a function of any number of tensors that is one node on the tape.
pub(crate) fn merge<B: Backend>(
    tensors: Vec<ReleaseTensor<B>>,
    function: impl Fn(Vec<AdTensor<B>>) -> AdTensor<B> + Send + Sync + 'static,
) -> ReleaseTensor<B> {
    let tensors: Vec<_> = tensors.into_iter().map(ReleaseTensor::read).collect();
    let operands: Option<Vec<_>> = tensors.iter().map(Operand::from_tensor).collect();
    let Some(operands) = operands else {
        return ReleaseTensor::plain(function(join::operand_list(Use::Single, tensors)));
    };

    let values: Vec<_> = operands.iter().map(Operand::at_height).collect();
    let below = values
        .iter()
        .map(|value| value.node.order)
        .max()
        .unwrap_or(0);
    let result = function(values);
    let height = result.node.order;
    let usage = if height == below + 1 {
        Use::Single
    } else {
        Use::Composite
    };
    ReleaseTensor(Repr::Derived(Derived(Arc::new(Expression {
        operands,
        function: Box::new(function),
        height,
        usage,
        state: Mutex::new(State::Computed(result.primitive)),
    }))))
}

fn exactly<T, const N: usize>(operands: Vec<T>) -> [T; N] {
    match operands.try_into() {
        Ok(operands) => operands,
        Err(_) => unreachable!("a function is applied to as many operands as it was made for"),
    }
}

impl<B: Backend> std::fmt::Debug for Expression<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Expression")
            .field("height", &self.height)
            .finish_non_exhaustive()
    }
}
