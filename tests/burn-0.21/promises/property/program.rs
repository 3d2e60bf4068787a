//! Random programs: what they are made of, and how they are drawn.

use proptest::prelude::*;

use crate::harness::prelude::*;

/// What an operation takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Operand {
    /// A parameter, modulo how many there are.
    Parameter(usize),
    /// A result, counted from the newest one; modulo how many values there are.
    Newest(usize),
    /// A parameter or a result, modulo how many values there are.
    Any(usize),
}

impl Operand {
    /// The index of the value; the parameters come first.
    pub(super) fn index(self, parameters: usize, values: usize) -> usize {
        match self {
            Self::Parameter(index) => index % parameters,
            Self::Newest(back) => values - 1 - back % values,
            Self::Any(index) => index % values,
        }
    }
}

/// An operation on square matrices.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Op {
    Matmul(Operand, Operand),
    Add(Operand, Operand),
    Multiply(Operand, Operand),
    /// The upper half of one and the lower half of the other.
    Halves(Operand, Operand),
    /// One times the means of the other's rows.
    Scale(Operand, Operand),
    Tanh(Operand),
    Transpose(Operand),
    Reshape(Operand),
    SliceAndRepeat(Operand),
    Unsqueeze(Operand),
    Detach(Operand),
}

impl Op {
    pub(super) fn operands(&self) -> Vec<Operand> {
        match *self {
            Op::Matmul(a, b)
            | Op::Add(a, b)
            | Op::Multiply(a, b)
            | Op::Halves(a, b)
            | Op::Scale(a, b) => vec![a, b],
            Op::Tanh(a)
            | Op::Transpose(a)
            | Op::Reshape(a)
            | Op::SliceAndRepeat(a)
            | Op::Unsqueeze(a)
            | Op::Detach(a) => vec![a],
        }
    }
}

/// Which operations are in scopes of `checkpoint`.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Scopes {
    None,
    /// All: scopes of so many operations, one after the other, and one around the rest and the
    /// loss.
    All(Vec<usize>),
    /// Stretches of so many operations, each in a scope or not; the rest, and the loss, in none.
    Some(Vec<(usize, bool)>),
}

impl Scopes {
    pub(super) fn stretches(&self) -> Vec<(usize, bool)> {
        match self {
            Self::None => Vec::new(),
            Self::All(lengths) => lengths.iter().map(|length| (*length, true)).collect(),
            Self::Some(stretches) => stretches.clone(),
        }
    }

    /// Whether what comes after the stretches, and the loss, is in a scope.
    pub(super) fn around_the_loss(&self) -> bool {
        matches!(self, Self::All(_))
    }
}

/// A forward pass over some parameters: each operation adds a value, and `outputs` of them make the
/// loss. What is not among their ancestors is a use that leads to no loss.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Graph {
    pub(super) ops: Vec<Op>,
    pub(super) outputs: Vec<Operand>,
    /// Take each parameter once and share the value, or anew at each use.
    pub(super) shared: bool,
    pub(super) scopes: Scopes,
}

/// A call between the forward and the backward pass of an armed step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Call {
    None,
    Arm,
    Disarm,
}

/// One step of a training.
#[derive(Clone, Debug)]
pub(super) struct Step {
    /// Which of the graphs, modulo how many there are.
    pub(super) graph: usize,
    pub(super) is_armed: bool,
    pub(super) call: Call,
    /// Run the forward pass once more and drop it: before the real one, and after.
    pub(super) discarded: (bool, bool),
    /// Keep all values until the step is over.
    pub(super) keeps_values: bool,
}

/// A training.
#[derive(Clone, Debug)]
pub(super) struct Program {
    pub(super) parameters: usize,
    pub(super) graphs: Vec<Graph>,
    pub(super) steps: Vec<Step>,
    pub(super) recompute: Recompute,
}

impl Graph {
    /// The indices of the values that make the loss; the last value is always among them.
    pub(super) fn outputs(&self, parameters: usize) -> Vec<usize> {
        let all = parameters + self.ops.len();
        let outputs = self.outputs.iter();
        let mut outputs: Vec<usize> = outputs
            .map(|output| output.index(parameters, all))
            .collect();
        outputs.push(all - 1);
        outputs
    }

    /// The indices of the operands of each operation.
    fn operands(&self, parameters: usize) -> Vec<Vec<usize>> {
        let ops = self.ops.iter().enumerate();
        ops.map(|(at, op)| {
            let operands = op.operands().into_iter();
            operands
                .map(|operand| operand.index(parameters, parameters + at))
                .collect()
        })
        .collect()
    }

    /// For each value whether it is computed from a parameter; a constant has no gradient.
    fn tracked(&self, parameters: usize) -> Vec<bool> {
        let mut tracked = vec![true; parameters];
        for (op, operands) in self.ops.iter().zip(self.operands(parameters)) {
            let is_tracked = operands.iter().any(|operand| tracked[*operand]);
            tracked.push(is_tracked && !matches!(op, Op::Detach(_)));
        }
        tracked
    }

    /// For each value whether the loss is computed from it.
    pub(super) fn live(&self, parameters: usize) -> Vec<bool> {
        let mut live = vec![false; parameters + self.ops.len()];
        for output in self.outputs(parameters) {
            live[output] = true;
        }
        for (at, operands) in self.operands(parameters).iter().enumerate().rev() {
            if live[parameters + at] {
                for operand in operands {
                    live[*operand] = true;
                }
            }
        }
        live
    }

    /// Whether scopes, or their results, may be among three uses of a tensor or parameter or more.
    fn mixes_uses(&self, parameters: usize) -> bool {
        let (live, tracked) = (self.live(parameters), self.tracked(parameters));
        let mut uses = vec![0; live.len()];
        for (at, operands) in self.operands(parameters).into_iter().enumerate() {
            if live[parameters + at] && tracked[parameters + at] {
                operands.into_iter().for_each(|operand| uses[operand] += 1);
            }
        }
        for output in self.outputs(parameters) {
            uses[output] += 1;
        }
        self.scopes != Scopes::None && uses.into_iter().any(|uses| uses >= 3)
    }

    /// Whether the loss depends on any parameter; a constant has no backward pass.
    fn depends(&self, parameters: usize) -> bool {
        let tracked = self.tracked(parameters);
        let mut outputs = self.outputs(parameters).into_iter();
        outputs.any(|output| tracked[output])
    }
}

impl Program {
    pub(super) fn graph(&self, step: &Step) -> &Graph {
        &self.graphs[step.graph % self.graphs.len()]
    }

    /// Whether its weights may differ in their last bits, as the docs say: what is outside of all
    /// scopes, and not computed from their results, is not recorded without `Recompute`. Also says so
    /// of some programs whose weights may not.
    pub(super) fn may_differ_in_last_bits(&self) -> bool {
        let is_recorded = |step: &Step| self.recompute != Recompute::None && step.is_armed;
        let mut steps = self.steps.iter().filter(|step| !is_recorded(step));
        steps.any(|step| self.graph(step).mixes_uses(self.parameters))
    }
}

/// Mostly what is near: programs of one value after the other, that come back to parameters.
fn operand() -> impl Strategy<Value = Operand> {
    let number = || 0..64usize;
    prop_oneof![
        3 => number().prop_map(Operand::Parameter),
        4 => (0..4usize).prop_map(Operand::Newest),
        2 => number().prop_map(Operand::Any),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    let pair = || (operand(), operand());
    prop_oneof![
        6 => pair().prop_map(|(a, b)| Op::Matmul(a, b)),
        4 => pair().prop_map(|(a, b)| Op::Add(a, b)),
        4 => pair().prop_map(|(a, b)| Op::Multiply(a, b)),
        1 => pair().prop_map(|(a, b)| Op::Halves(a, b)),
        1 => pair().prop_map(|(a, b)| Op::Scale(a, b)),
        2 => operand().prop_map(Op::Tanh),
        2 => operand().prop_map(Op::Transpose),
        2 => operand().prop_map(Op::Reshape),
        2 => operand().prop_map(Op::SliceAndRepeat),
        2 => operand().prop_map(Op::Unsqueeze),
        1 => operand().prop_map(Op::Detach),
    ]
}

fn scopes() -> impl Strategy<Value = Scopes> {
    let lengths = prop::collection::vec(1..12usize, 0..8);
    let stretches = prop::collection::vec((1..12usize, any::<bool>()), 0..8);
    prop_oneof![
        2 => Just(Scopes::None),
        1 => lengths.prop_map(Scopes::All),
        1 => stretches.prop_map(Scopes::Some),
    ]
}

fn graph() -> impl Strategy<Value = Graph> {
    (
        prop::collection::vec(op(), 5..=60),
        prop::collection::vec(operand(), 1..4),
        any::<bool>(),
        scopes(),
    )
        .prop_map(|(ops, outputs, shared, scopes)| Graph {
            ops,
            outputs,
            shared,
            scopes,
        })
}

fn step() -> impl Strategy<Value = Step> {
    (
        any::<usize>(),
        prop::bool::weighted(0.7),
        prop_oneof![4 => Just(Call::None), 1 => Just(Call::Arm), 1 => Just(Call::Disarm)],
        (prop::bool::weighted(0.3), prop::bool::weighted(0.3)),
        prop::bool::weighted(0.3),
    )
        .prop_map(|(graph, is_armed, call, discarded, keeps_values)| Step {
            graph,
            is_armed,
            call,
            discarded,
            keeps_values,
        })
}

fn recompute() -> impl Strategy<Value = Recompute> {
    prop_oneof![
        1 => Just(Recompute::None),
        1 => Just(Recompute::Automatic),
        1 => (1..8192u64).prop_map(Recompute::Budget),
    ]
}

pub(super) fn program() -> impl Strategy<Value = Program> {
    (
        3..=6usize,
        prop::collection::vec(graph(), 1..=3),
        prop::collection::vec(step(), 3..=6),
        recompute(),
    )
        .prop_map(|(parameters, graphs, steps, recompute)| Program {
            parameters,
            graphs,
            steps,
            recompute,
        })
        .prop_filter("a constant has no backward pass", |program| {
            let mut graphs = program.graphs.iter();
            graphs.all(|graph| graph.depends(program.parameters))
        })
}
