//! Whatever the graph, the weights are those of plain Burn.

use burn::backend::{Flex, NdArray};
use burn::module::{Module, Param};
use burn::optim::momentum::MomentumConfig;
use burn::optim::{GradientsParams, Optimizer, SgdConfig};
use burn::tensor::Tensor;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn_gradient_release::{Recompute, WithGradientRelease, checkpoint};
use proptest::prelude::*;

use crate::harness::run::RATE;
use crate::harness::weights::{load, save};
use crate::harness::{Plain, Release, Weights, noise};

/// All matrices are square, so that any op fits any operand.
const WIDTH: usize = 4;
const STEPS: u64 = 4;

/// An operand is a number: modulo the parameters and results there are by then.
#[derive(Clone, Debug, PartialEq)]
enum Op {
    Matmul(usize, usize),
    Add(usize, usize),
    Multiply(usize, usize),
    Tanh(usize),
    Transpose(usize),
    Reshape(usize),
    SliceAndRepeat(usize),
    Unsqueeze(usize),
    Detach(usize),
}

impl Op {
    fn operands(&self) -> Vec<usize> {
        match *self {
            Op::Matmul(a, b) | Op::Add(a, b) | Op::Multiply(a, b) => vec![a, b],
            Op::Tanh(a)
            | Op::Transpose(a)
            | Op::Reshape(a)
            | Op::SliceAndRepeat(a)
            | Op::Unsqueeze(a)
            | Op::Detach(a) => vec![a],
        }
    }
}

/// A program over some parameters: each op adds a value, and `outputs` of them make the loss. What
/// is not among their ancestors is a dead use.
#[derive(Clone, Debug)]
struct Graph {
    parameters: usize,
    ops: Vec<Op>,
    outputs: Vec<usize>,
    /// Run the forward pass once more and drop it: before the real one, and after.
    discarded: (bool, bool),
    /// Arm the model for it.
    is_armed: bool,
    /// Take each parameter once and share the value, or anew at each use.
    shared: bool,
    recomputed: Recomputed,
}

/// Which activations are recomputed.
#[derive(Clone, Debug)]
enum Recomputed {
    None,
    Policy(Recompute),
    /// All: scopes of so many operations, one after the other, and one around the rest and the
    /// loss.
    InScopes(Vec<usize>),
    /// Stretches of so many operations, each in a scope or not; the rest, and the loss, in none.
    Mixed(Vec<(usize, bool)>),
}

impl Recomputed {
    fn stretches(&self) -> Vec<(usize, bool)> {
        match self {
            Self::None | Self::Policy(_) => Vec::new(),
            Self::InScopes(lengths) => lengths.iter().map(|length| (*length, true)).collect(),
            Self::Mixed(stretches) => stretches.clone(),
        }
    }

    /// How far weights may be from plain Burn's, where all steps run the same program.
    ///
    /// Where a parameter is used in scopes and outside of all of them, three times or more, its
    /// contributions come in another order: the core does not see the tape outside. The bound is
    /// what 100,000 random graphs showed, times four.
    fn tolerance(&self) -> f32 {
        match self {
            Self::Mixed(_) => 1e-6,
            Self::None | Self::Policy(_) | Self::InScopes(_) => 0.0,
        }
    }

    /// Where programs take turns. A pass that was planned to be kept whole is not recorded; if
    /// another one outgrows the budget then, the order of sums from before that place is not known.
    fn tolerance_in_turn(&self) -> f32 {
        match self {
            Self::Policy(Recompute::Budget(_)) => 1e-6,
            _ => self.tolerance(),
        }
    }
}

fn recomputed() -> impl Strategy<Value = Recomputed> {
    let lengths = || prop::collection::vec(1..6usize, 0..5);
    let stretches = prop::collection::vec((1..6usize, any::<bool>()), 0..5);
    prop_oneof![
        2 => Just(Recomputed::None),
        1 => Just(Recomputed::Policy(Recompute::Automatic)),
        1 => (0..4096u64).prop_map(|bytes| Recomputed::Policy(Recompute::Budget(bytes))),
        2 => lengths().prop_map(Recomputed::InScopes),
        1 => stretches.prop_map(Recomputed::Mixed),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    let operand = || 0..64usize;
    prop_oneof![
        3 => (operand(), operand()).prop_map(|(a, b)| Op::Matmul(a, b)),
        2 => (operand(), operand()).prop_map(|(a, b)| Op::Add(a, b)),
        2 => (operand(), operand()).prop_map(|(a, b)| Op::Multiply(a, b)),
        1 => operand().prop_map(Op::Tanh),
        1 => operand().prop_map(Op::Transpose),
        1 => operand().prop_map(Op::Reshape),
        1 => operand().prop_map(Op::SliceAndRepeat),
        1 => operand().prop_map(Op::Unsqueeze),
        1 => operand().prop_map(Op::Detach),
    ]
}

fn graph() -> impl Strategy<Value = Graph> {
    (
        1..5usize,
        prop::collection::vec(op(), 1..12),
        prop::collection::vec(0..64usize, 1..3),
        any::<(bool, bool)>(),
        prop::bool::weighted(0.7),
        any::<bool>(),
        recomputed(),
    )
        .prop_map(
            |(parameters, ops, outputs, discarded, is_armed, shared, recomputed)| Graph {
                parameters,
                ops,
                outputs,
                discarded,
                is_armed,
                shared,
                recomputed,
            },
        )
}

/// Two programs over the same parameters, of which the steps have one in turn: the same, or another.
fn graphs() -> impl Strategy<Value = [Graph; 2]> {
    (graph(), graph(), any::<bool>()).prop_map(|(one, other, is_same)| {
        let program = if is_same { one.clone() } else { other.clone() };
        let other = Graph {
            parameters: one.parameters,
            recomputed: one.recomputed.clone(),
            is_armed: other.is_armed,
            discarded: other.discarded,
            ..program
        };
        [one, other]
    })
}

impl Graph {
    /// The places of the values that make the loss; the last value is always among them.
    fn outputs(&self) -> Vec<usize> {
        let all = self.parameters + self.ops.len();
        let mut outputs: Vec<usize> = self.outputs.iter().map(|output| output % all).collect();
        outputs.push(all - 1);
        outputs
    }

    fn loss<B: AutodiffBackend>(&self, model: &Parameters<B>, step: u64) -> Tensor<B, 1> {
        let device = B::Device::default();
        let mut values: Vec<Tensor<B, 2>> =
            model.matrices.iter().map(|matrix| matrix.val()).collect();
        let x = noise::<B, 2>(step, [WIDTH, WIDTH], &device);
        let mut ops = &self.ops[..];
        for (length, is_scope) in self.recomputed.stretches() {
            let (stretch, rest) = ops.split_at(ops.len().min(length));
            ops = rest;
            let mut run = || self.run(stretch, model, &mut values, &x);
            if is_scope { checkpoint(run) } else { run() }
        }
        let mut rest = || {
            self.run(ops, model, &mut values, &x);
            let outputs = self.outputs().into_iter().map(|place| {
                let output = values[place].clone().matmul(x.clone());
                output.square().mean()
            });
            outputs
                .reduce(|sum, output| sum + output)
                .expect("there is an output")
        };
        match self.recomputed {
            Recomputed::InScopes(_) => checkpoint(rest),
            _ => rest(),
        }
    }

    fn run<B: AutodiffBackend>(
        &self,
        ops: &[Op],
        model: &Parameters<B>,
        values: &mut Vec<Tensor<B, 2>>,
        x: &Tensor<B, 2>,
    ) {
        for op in ops {
            values.push(self.apply(op, model, values, x));
        }
    }
}

impl Graph {
    fn apply<B: AutodiffBackend>(
        &self,
        op: &Op,
        model: &Parameters<B>,
        values: &[Tensor<B, 2>],
        x: &Tensor<B, 2>,
    ) -> Tensor<B, 2> {
        let value = |place: usize| -> Tensor<B, 2> {
            let place = place % values.len();
            match model.matrices.get(place) {
                Some(matrix) if !self.shared => matrix.val(),
                _ => values[place].clone(),
            }
        };
        match *op {
            Op::Matmul(a, b) => value(a).matmul(value(b)).tanh(),
            Op::Add(a, b) => value(a) + value(b),
            Op::Multiply(a, b) => (value(a) * value(b)).tanh(),
            Op::Tanh(a) => value(a).tanh(),
            Op::Transpose(a) => value(a).transpose(),
            Op::Reshape(a) => value(a).reshape([WIDTH / 2, 2 * WIDTH]).reshape([WIDTH; 2]),
            Op::SliceAndRepeat(a) => value(a).slice([1..3, 0..WIDTH]).repeat_dim(0, 2),
            Op::Unsqueeze(a) => value(a).unsqueeze::<3>().tanh().squeeze_dim(0),
            Op::Detach(a) => value(a).detach() + x.clone(),
        }
    }
}

/// The leaves of a graph.
#[derive(Module, Debug)]
struct Parameters<B: Backend> {
    matrices: Vec<Param<Tensor<B, 2>>>,
}

impl<B: Backend> Parameters<B> {
    fn new(count: usize) -> Self {
        let device = Default::default();
        let matrices = (0..count as u64)
            .map(|seed| Param::from_tensor(noise(seed, [WIDTH, WIDTH], &device)))
            .collect();
        Self { matrices }
    }
}

fn recipe() -> SgdConfig {
    SgdConfig::new().with_momentum(Some(MomentumConfig::new()))
}

/// Whether the loss depends on any parameter; a constant has no backward.
fn depends(graph: &Graph) -> bool {
    let mut tracked = vec![true; graph.parameters];
    for op in &graph.ops {
        let there = tracked.len();
        let next = !matches!(op, Op::Detach(_))
            && op.operands().iter().any(|operand| tracked[operand % there]);
        tracked.push(next);
    }
    graph.outputs().iter().any(|output| tracked[*output])
}

/// Trains both ways, over the same inner backend.
fn check<I: Backend>(graphs: &[Graph; 2]) -> Result<(), TestCaseError> {
    prop_assume!(graphs.iter().all(depends));
    let parameters = graphs[0].parameters;
    let device = Default::default();
    let mut plain = Parameters::<Plain<I>>::new(parameters);
    let bytes = save::<Plain<I>, _>(plain.clone());
    let first = Weights::of::<Plain<I>, _>(&plain);
    let mut plain_optim = recipe().init();
    let mut model =
        load::<Release<I>, _>(Parameters::<Release<I>>::new(parameters), &bytes, &device);
    let mut optim = recipe()
        .init::<Release<I>, Parameters<Release<I>>>()
        .with_gradient_release();
    if let Recomputed::Policy(recompute) = graphs[0].recomputed {
        optim = optim.with_recompute(recompute);
    }
    let tolerance = match graphs[0].ops == graphs[1].ops && graphs[0].outputs == graphs[1].outputs {
        true => graphs[0].recomputed.tolerance(),
        false => graphs[0].recomputed.tolerance_in_turn(),
    };
    let rate = 10.0 * RATE;
    for (step, graph) in (0..STEPS).zip(graphs.iter().cycle()) {
        let grads = GradientsParams::from_grads(graph.loss(&plain, step).backward(), &plain);
        plain = plain_optim.step(rate, plain, grads);

        if graph.is_armed {
            model = optim.arm(rate, model);
        }
        let before = graph.discarded.0.then(|| graph.loss(&model, step + 100));
        let loss = graph.loss(&model, step);
        let after = graph.discarded.1.then(|| graph.loss(&model, step + 200));
        drop(before);
        let grads = GradientsParams::from_grads(loss.backward(), &model);
        prop_assert!(
            grads.is_empty() == graph.is_armed,
            "armed parameters leave no gradients, and others do"
        );
        model = optim.step(rate, model, grads);
        drop(after);

        let given = Weights::of::<Release<I>, _>(&model);
        let expected = Weights::of::<Plain<I>, _>(&plain);
        let distance = given.distance(&expected);
        prop_assert!(
            given.same(&expected) || distance < tolerance,
            "step {step}: not the same, off by {distance:e}"
        );
    }
    // A generator that made only constants would prove nothing.
    prop_assert!(
        !Weights::of::<Plain<I>, _>(&plain).same(&first),
        "plain Burn trained nothing"
    );
    Ok(())
}

/// `PROPTEST_CASES` asks for more.
fn config() -> ProptestConfig {
    let default = ProptestConfig::default();
    ProptestConfig {
        cases: std::env::var_os("PROPTEST_CASES").map_or(48, |_| default.cases),
        failure_persistence: None,
        ..default
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn random_graphs_train_the_same(graphs in graphs()) {
        check::<Flex>(&graphs)?;
    }

    #[test]
    fn random_graphs_train_the_same_on_ndarray(graphs in graphs()) {
        check::<NdArray>(&graphs)?;
    }
}

/// Found among some 18,000 random graphs: the first use is in a branch that leads nowhere, higher
/// than the loss itself, of which Burn's tape has no level.
#[test]
fn a_parameter_first_used_above_the_loss() {
    let graph = Graph {
        parameters: 3,
        ops: vec![
            Op::Matmul(0, 0),
            Op::Unsqueeze(3),
            Op::Add(2, 4),
            Op::Add(5, 1),
            Op::Tanh(0),
        ],
        outputs: vec![1],
        discarded: (false, false),
        is_armed: true,
        shared: true,
        recomputed: Recomputed::None,
    };
    check::<Flex>(&[graph.clone(), graph]).expect("the same weights, and no gradient left behind");
}
