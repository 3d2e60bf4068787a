//! Trains by a program: with plain Burn, and with gradient release.

use serde_json::Value;

use super::program::{Call, Graph, Op, Operand, Program};
use crate::harness::prelude::*;

/// All matrices are square, so that any operation fits any operand.
const WIDTH: usize = 4;

/// A difference in the last bits, where the docs say there may be one. Trainings go apart after it.
const LAST_BITS: f32 = 1e-6;

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

/// One forward pass.
struct Pass<'a, B: Backend> {
    graph: &'a Graph,
    model: &'a Parameters<B>,
    x: Tensor<B, 2>,
    /// Which values are computed; the others are never read.
    computed: Vec<bool>,
    values: Vec<Tensor<B, 2>>,
}

impl<'a, B: AutodiffBackend> Pass<'a, B> {
    fn new(graph: &'a Graph, model: &'a Parameters<B>, seed: u64) -> Self {
        Self {
            graph,
            model,
            x: noise(seed, [WIDTH, WIDTH], &B::Device::default()),
            computed: vec![true; model.matrices.len() + graph.ops.len()],
            values: model.matrices.iter().map(|matrix| matrix.val()).collect(),
        }
    }

    /// Without the operations that lead to no loss.
    fn of_live_values(mut self) -> Self {
        self.computed = self.graph.live(self.model.matrices.len());
        self
    }

    fn loss(&mut self) -> Tensor<B, 1> {
        let mut ops = &self.graph.ops[..];
        for (length, is_scope) in self.graph.scopes.stretches() {
            let (stretch, rest) = ops.split_at(ops.len().min(length));
            ops = rest;
            in_scope(is_scope, || self.run(stretch));
        }
        in_scope(self.graph.scopes.around_the_loss(), || {
            self.run(ops);
            let outputs = self.graph.outputs(self.model.matrices.len());
            let outputs = outputs.into_iter().map(|index| {
                let output = self.values[index].clone().matmul(self.x.clone());
                output.square().mean()
            });
            let sum = outputs.reduce(|sum, output| sum + output);
            sum.expect("there is an output")
        })
    }

    fn run(&mut self, ops: &[Op]) {
        for op in ops {
            let value = match self.computed[self.values.len()] {
                true => self.apply(op),
                false => self.x.clone(),
            };
            self.values.push(value);
        }
    }

    fn value(&self, operand: Operand) -> Tensor<B, 2> {
        let index = operand.index(self.model.matrices.len(), self.values.len());
        match self.model.matrices.get(index) {
            Some(matrix) if !self.graph.shared => matrix.val(),
            _ => self.values[index].clone(),
        }
    }

    fn apply(&self, op: &Op) -> Tensor<B, 2> {
        let value = |operand| self.value(operand);
        let half = |operand, from| self.value(operand).narrow(0, from, WIDTH / 2);
        match *op {
            Op::Matmul(a, b) => value(a).matmul(value(b)).tanh(),
            Op::Add(a, b) => value(a) + value(b),
            Op::Multiply(a, b) => (value(a) * value(b)).tanh(),
            Op::Halves(a, b) => Tensor::cat(vec![half(a, 0), half(b, WIDTH / 2)], 0),
            Op::Scale(a, b) => value(a) * value(b).mean_dim(1),
            Op::Tanh(a) => value(a).tanh(),
            Op::Transpose(a) => value(a).transpose(),
            Op::Reshape(a) => {
                let wide = value(a).reshape([WIDTH / 2, 2 * WIDTH]);
                wide.reshape([WIDTH; 2])
            }
            Op::SliceAndRepeat(a) => value(a).slice([1..3, 0..WIDTH]).repeat_dim(0, 2),
            Op::Unsqueeze(a) => value(a).unsqueeze::<3>().tanh().squeeze_dim(0),
            Op::Detach(a) => value(a).detach() + self.x.clone(),
        }
    }
}

fn in_scope<R>(is_scope: bool, run: impl FnOnce() -> R) -> R {
    if is_scope { checkpoint(run) } else { run() }
}

/// Momentum, as it is the sum of all gradients, to the last bit.
fn recipe() -> SgdConfig {
    SgdConfig::new().with_momentum(Some(MomentumConfig::new()))
}

const STEP: f64 = 10.0 * RATE;

/// What a step has to come to.
struct Expected {
    weights: Weights,
    momentum: Value,
}

/// Plain Burn's training, to compare with.
pub(super) struct Reference {
    first: Vec<u8>,
    steps: Vec<Expected>,
    /// Whether any weight has moved: constants would prove nothing.
    pub(super) moves: bool,
}

/// What comparing a training with plain Burn's has shown.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Verdict {
    Same,
    /// The last bits differ, as the docs say they may: by so much, where they first do.
    LastBits(f32),
}

impl Reference {
    /// Trains with plain Burn.
    ///
    /// Without the operations that lead to no loss, which change no gradient: after some of them
    /// plain Burn loses a gradient in the next backward pass.
    pub(super) fn new<I: Backend>(program: &Program) -> Self {
        let mut model = Parameters::<Plain<I>>::new(program.parameters);
        let first = save::<Plain<I>, _>(model.clone());
        let before = Weights::of::<Plain<I>, _>(&model);
        let mut optim = recipe().init();
        let mut steps: Vec<Expected> = Vec::new();
        for (seed, step) in (0..).zip(&program.steps) {
            let mut pass = Pass::new(program.graph(step), &model, seed).of_live_values();
            let grads = gradients(&model, pass.loss());
            model = optim.step(STEP, model, grads);
            steps.push(Expected {
                weights: Weights::of::<Plain<I>, _>(&model),
                momentum: readable::<Plain<I>, _>(Optimizer::<_, Plain<I>>::to_record(&optim)),
            });
        }
        let moves = steps.iter().any(|step| !step.weights.same(&before));
        Self {
            first,
            steps,
            moves,
        }
    }

    /// Trains with gradient release, and compares with plain Burn after each step.
    pub(super) fn compare<I: Backend>(&self, program: &Program) -> Result<Verdict, String> {
        let empty = Parameters::<Release<I>>::new(program.parameters);
        let mut model = load::<Release<I>, _>(empty, &self.first, &Default::default());
        let mut optim = recipe()
            .init::<Release<I>, Parameters<Release<I>>>()
            .with_gradient_release();
        if program.recompute != Recompute::None {
            optim = optim.with_recompute(program.recompute);
        }
        for ((seed, step), expected) in (0..).zip(&program.steps).zip(&self.steps) {
            if step.is_armed {
                model = optim.arm(STEP, model);
            }
            let pass = |seed| Pass::new(program.graph(step), &model, seed);
            let before = step.discarded.0.then(|| pass(seed + 100).loss());
            let mut forward = pass(seed);
            let loss = forward.loss();
            let values = std::mem::take(&mut forward.values);
            let kept = step.keeps_values.then_some(values);
            let after = step.discarded.1.then(|| pass(seed + 200).loss());
            drop(forward);
            model = match step.call {
                Call::Arm if step.is_armed => optim.arm(STEP, model),
                Call::Disarm if step.is_armed => optim.disarm(model),
                _ => model,
            };
            drop(before);
            let grads = gradients(&model, loss);
            if grads.is_empty() != (step.is_armed && step.call != Call::Disarm) {
                return Err(format!("step {seed}: {} gradients are left", grads.len()));
            }
            model = optim.step(STEP, model, grads);
            drop((after, kept));

            let weights = Weights::of::<Release<I>, _>(&model);
            let momentum = readable::<Release<I>, _>(optim.to_record());
            if weights.same(&expected.weights) && momentum == expected.momentum {
                continue;
            }
            let distance = weights.distance(&expected.weights);
            return match program.may_differ_in_last_bits() && distance < LAST_BITS {
                true => Ok(Verdict::LastBits(distance)),
                false => Err(format!("step {seed}: weights are off by {distance:e}")),
            };
        }
        Ok(Verdict::Same)
    }
}
