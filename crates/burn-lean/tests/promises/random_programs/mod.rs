//! Whatever the program, with scopes or without, armed or not, in each type, accumulated and clipped:
//! the weights are plain Burn's.

use std::sync::Arc;

use crate::harness::distance;
use crate::harness::prelude::*;

/// All matrices are square, so that any operation fits any operand.
const WIDTH: usize = 4;

/// A difference in the last bits, of the largest weight, where the docs say there may be one: in
/// units in the last place of one.
const LAST_BITS: f32 = 8.0;

/// An operation on square matrices; an operand is the index of a value. The parameters come first.
#[derive(Clone, Copy, Debug)]
enum Op {
    Matmul(usize, usize),
    Add(usize, usize),
    Multiply(usize, usize),
    Tanh(usize),
    Transpose(usize),
    Reshape(usize),
    SliceAndRepeat(usize),
    Detach(usize),
}

/// A forward pass: each operation adds a value, and `outputs` of them make the loss. What is not
/// among their ancestors is a use that leads to no loss.
#[derive(Clone, Debug)]
struct Graph {
    /// Operations one after the other, and whether they are in a scope together.
    stretches: Vec<(Vec<Op>, bool)>,
    outputs: Vec<usize>,
}

#[derive(Clone, Copy, Debug)]
struct Step {
    graph: usize,
    is_armed: bool,
    /// Run the forward pass once more before, and drop it.
    discards: bool,
    /// Of which all but the last are accumulated.
    micro_batches: usize,
}

#[derive(Clone, Debug)]
struct Program {
    parameters: usize,
    graphs: Vec<Graph>,
    steps: Vec<Step>,
    dtype: DType,
    clips: bool,
}

/// SplitMix64 (Steele, Lea and Flood, 2014): the same programs in every run.
pub(crate) struct Source(pub(crate) u64);

impl Source {
    /// Below `bound`.
    pub(crate) fn next(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) % bound as u64) as usize
    }

    /// A parameter, one of the newest values, or any.
    fn operand(&mut self, parameters: usize, values: usize) -> usize {
        match self.next(9) {
            0..3 => self.next(parameters),
            3..7 => values - 1 - self.next(4).min(values - 1),
            _ => self.next(values),
        }
    }

    fn op(&mut self, parameters: usize, values: usize) -> Op {
        let a = self.operand(parameters, values);
        let b = self.operand(parameters, values);
        match self.next(16) {
            0..4 => Op::Matmul(a, b),
            4..7 => Op::Add(a, b),
            7..10 => Op::Multiply(a, b),
            10..12 => Op::Tanh(a),
            12 => Op::Transpose(a),
            13 => Op::Reshape(a),
            14 => Op::SliceAndRepeat(a),
            _ => Op::Detach(a),
        }
    }

    fn graph(&mut self, parameters: usize) -> Graph {
        let ops = 5 + self.next(56);
        let with_scopes = self.next(3) > 0;
        let mut stretches = Vec::new();
        let mut values = parameters;
        while values < parameters + ops {
            let length = 1 + self.next((parameters + ops - values).min(12));
            let stretch = (values..values + length).map(|values| self.op(parameters, values));
            let stretch = stretch.collect();
            stretches.push((stretch, with_scopes && self.next(2) == 0));
            values += length;
        }
        let mut outputs: Vec<usize> = (0..self.next(3)).map(|_| self.next(values)).collect();
        outputs.push(values - 1);
        Graph { stretches, outputs }
    }

    fn program(&mut self) -> Program {
        let parameters = 3 + self.next(4);
        let graphs: Vec<Graph> = (0..1 + self.next(3))
            .map(|_| {
                loop {
                    let graph = self.graph(parameters);
                    if graph.depends(parameters) {
                        break graph;
                    }
                }
            })
            .collect();
        let steps = (0..3 + self.next(4)).map(|_| Step {
            graph: self.next(graphs.len()),
            is_armed: self.next(10) < 7,
            discards: self.next(10) < 3,
            micro_batches: 1,
        });
        let mut steps: Vec<Step> = steps.collect();
        let dtype = [DType::F32, DType::F32, DType::BF16, DType::F16][self.next(4)];
        let accumulates = self.next(3) == 0;
        for step in &mut steps {
            step.micro_batches += if accumulates { self.next(3) } else { 0 };
        }
        Program {
            parameters,
            graphs,
            steps,
            dtype,
            clips: self.next(3) == 0,
        }
    }
}

impl Op {
    fn operands(self) -> Vec<usize> {
        match self {
            Self::Matmul(a, b) | Self::Add(a, b) | Self::Multiply(a, b) => vec![a, b],
            Self::Tanh(a)
            | Self::Transpose(a)
            | Self::Reshape(a)
            | Self::SliceAndRepeat(a)
            | Self::Detach(a) => vec![a],
        }
    }

    fn apply(self, value: impl Fn(usize) -> Tensor<2>) -> Tensor<2> {
        match self {
            Self::Matmul(a, b) => value(a).matmul(value(b)).tanh(),
            Self::Add(a, b) => value(a) + value(b),
            Self::Multiply(a, b) => (value(a) * value(b)).tanh(),
            Self::Tanh(a) => value(a).tanh(),
            Self::Transpose(a) => value(a).transpose(),
            Self::Reshape(a) => {
                let wide = value(a).reshape([WIDTH / 2, 2 * WIDTH]);
                wide.reshape([WIDTH; 2])
            }
            Self::SliceAndRepeat(a) => value(a).slice([1..3, 0..WIDTH]).repeat_dim(0, 2),
            Self::Detach(a) => value(a).detach() * 0.5,
        }
    }
}

impl Graph {
    fn ops(&self) -> impl DoubleEndedIterator<Item = &Op> {
        self.stretches.iter().flat_map(|(ops, _)| ops)
    }

    /// For each value whether it is computed from a parameter; a constant has no gradient.
    fn tracked(&self, parameters: usize) -> Vec<bool> {
        let mut tracked = vec![true; parameters];
        for op in self.ops() {
            let is_tracked = op.operands().into_iter().any(|operand| tracked[operand]);
            tracked.push(is_tracked && !matches!(op, Op::Detach(_)));
        }
        tracked
    }

    /// Whether the loss depends on any parameter.
    fn depends(&self, parameters: usize) -> bool {
        let tracked = self.tracked(parameters);
        self.outputs.iter().any(|output| tracked[*output])
    }

    /// For each value whether the loss is computed from it.
    fn live(&self, parameters: usize) -> Vec<bool> {
        let mut live = vec![false; parameters + self.ops().count()];
        for output in &self.outputs {
            live[*output] = true;
        }
        let mut value = live.len();
        for op in self.ops().rev() {
            value -= 1;
            if live[value] {
                for operand in op.operands() {
                    live[operand] = true;
                }
            }
        }
        live
    }

    /// Whether a value, be it a parameter or a view of one, is used three times or more, in a scope
    /// and elsewhere: another scope, or outside of all. Then its gradient may differ in its last
    /// bits.
    fn mixes_uses(&self, parameters: usize) -> bool {
        let (live, tracked) = (self.live(parameters), self.tracked(parameters));
        // The scope of each use; 0 stands for none.
        let mut uses = vec![Vec::new(); live.len()];
        let mut value = parameters;
        for (scope, (ops, is_scope)) in (1..).zip(&self.stretches) {
            for op in ops {
                if live[value] && tracked[value] {
                    for operand in op.operands() {
                        uses[operand].push(if *is_scope { scope } else { 0 });
                    }
                }
                value += 1;
            }
        }
        for output in &self.outputs {
            uses[*output].push(0);
        }
        uses.iter()
            .any(|uses| uses.len() >= 3 && uses.iter().any(|scope| *scope != uses[0]))
    }

    fn loss(&self, model: &Parameters, step: usize, again: bool) -> Tensor<1> {
        let device = model.matrices[0].device();
        let mut values: Vec<Option<Tensor<2>>> = vec![None; model.matrices.len()];
        // Plain Burn's pass is without the uses that lead to no loss.
        let live = match again {
            true => vec![true; model.matrices.len() + self.ops().count()],
            false => self.live(model.matrices.len()),
        };
        for (ops, is_scope) in &self.stretches {
            let stretch = Stretch {
                first: values.len(),
                live: live[values.len()..values.len() + ops.len()].to_vec(),
                ops: ops.clone(),
            };
            let inputs = stretch.inputs(model.matrices.len());
            let given: Vec<Tensor<2>> = inputs
                .iter()
                .map(|input| values[*input].clone().expect("what is live is there"))
                .collect();
            let results = if *is_scope && again {
                let stretch = Arc::new(stretch);
                checkpoint(model, given, move |model: &Parameters, given| {
                    stretch.run(model, &inputs, given)
                })
            } else {
                stretch.run(model, &inputs, given)
            };
            let mut results = results.into_iter();
            for live in &live[values.len()..values.len() + ops.len()] {
                values.push(live.then(|| results.next().expect("one for each")));
            }
        }
        let x: Tensor<2> = numbers([WIDTH, WIDTH], step, &device);
        let x = x.cast(model.matrices[0].dtype());
        let outputs = self.outputs.iter().map(|output| {
            let output = match model.matrices.get(*output) {
                Some(matrix) => matrix.val(),
                None => values[*output].clone().expect("an output is live"),
            };
            output.matmul(x.clone()).square().mean()
        });
        let sum = outputs.reduce(|sum, output| sum + output);
        sum.expect("there is an output")
    }
}

/// Operations one after the other.
struct Stretch {
    ops: Vec<Op>,
    /// Which of them are computed.
    live: Vec<bool>,
    /// The index of the first one's value.
    first: usize,
}

impl Stretch {
    /// The values from before that it uses, but for parameters.
    fn inputs(&self, parameters: usize) -> Vec<usize> {
        let ops = self.ops.iter().zip(&self.live).filter(|(_, live)| **live);
        let operands = ops.flat_map(|(op, _)| op.operands());
        let mut inputs: Vec<usize> = operands
            .filter(|operand| (parameters..self.first).contains(operand))
            .collect();
        inputs.sort_unstable();
        inputs.dedup();
        inputs
    }

    fn run(&self, model: &Parameters, inputs: &[usize], given: Vec<Tensor<2>>) -> Vec<Tensor<2>> {
        let mut values: Vec<Option<Tensor<2>>> = vec![None; self.first];
        for (input, tensor) in inputs.iter().zip(given) {
            values[*input] = Some(tensor);
        }
        for (op, live) in self.ops.iter().zip(&self.live) {
            let value = live.then(|| {
                op.apply(|operand| match model.matrices.get(operand) {
                    Some(matrix) => matrix.val(),
                    None => values[operand].clone().expect("what is live is there"),
                })
            });
            values.push(value);
        }
        values.drain(self.first..).flatten().collect()
    }
}

#[derive(Module, Debug)]
struct Parameters {
    matrices: Vec<Param<Tensor<2>>>,
}

impl Parameters {
    fn new(count: usize, dtype: DType, device: &Device) -> Self {
        let matrix = |number| {
            let numbers: Tensor<2> = numbers([WIDTH, WIDTH], 31 * number, device);
            Param::from_tensor(numbers.cast(dtype))
        };
        Self {
            matrices: (1..=count).map(matrix).collect(),
        }
    }
}

const RATE: f64 = 30.0 * LR;

/// A gradient of zeros changes nothing, as one that is not there.
fn sgd() -> ModuleOptimizer {
    SgdConfig::new().init()
}

impl Program {
    fn dtype(&self, device: &Device) -> DType {
        match device.supports_dtype(self.dtype) {
            true => self.dtype,
            false => DType::F32,
        }
    }

    fn model(&self, device: &Device) -> Parameters {
        Parameters::new(self.parameters, self.dtype(device), device)
    }

    fn optimizer(&self) -> ModuleOptimizer {
        let clipping = GradientClippingConfig::Norm(0.01);
        SgdConfig::new()
            .with_gradient_clipping(self.clips.then_some(clipping))
            .init()
    }
}

/// Plain Burn's weights after each step.
fn expected(program: &Program, device: &Device) -> Vec<Bits> {
    let mut model = program.model(device);
    let mut optim = program.optimizer();
    let steps = program.steps.iter().enumerate().map(|(number, step)| {
        let mut sums = GradientsAccumulator::new();
        for micro_batch in 0..step.micro_batches {
            let loss = program.graphs[step.graph].loss(&model, number + 10 * micro_batch, false);
            let grads = GradientsParams::from_grads(loss.backward(), &model);
            sums.accumulate(&model, grads);
        }
        model = optim.step(RATE, model.clone(), sums.grads());
        bits(&model)
    });
    steps.collect()
}

/// By how many units, of the largest weight, the last bits differ, where the docs say that they may: mostly
/// by nothing. An error where they say that they do not, but for `unreported`.
fn compare(
    program: &Program,
    device: &Device,
    expected: &[Bits],
    unreported: f32,
) -> Result<f32, String> {
    let mut model = program.model(device);
    let mut optim = program.optimizer().with_gradient_release();
    let mut sums = ReleaseAccumulator::new();
    let unit = match program.dtype(device) {
        DType::F16 => 2f32.powi(-10),
        DType::BF16 => 2f32.powi(-7),
        _ => f32::EPSILON,
    };
    for ((number, step), expected) in program.steps.iter().enumerate().zip(expected) {
        let graph = &program.graphs[step.graph];
        for micro_batch in 0..step.micro_batches {
            let is_last = micro_batch + 1 == step.micro_batches;
            model = match (step.is_armed, is_last) {
                (false, _) => model,
                (true, false) => sums.arm(model),
                (true, true) => optim.arm_accumulated(RATE, model, sums.grads()),
            };
            if step.discards {
                graph.loss(&model, number + 100, true);
            }
            let loss = graph.loss(&model, number + 10 * micro_batch, true);
            let grads = GradientsParams::from_grads(loss.backward(), &model);
            if step.is_armed && is_last {
                model = optim.step(RATE, model, grads);
            } else {
                sums.accumulate(&model, grads);
            }
        }
        if !step.is_armed {
            model = optim.step(RATE, model, sums.grads());
        }
        let found = bits(&model);
        if found == *expected {
            continue;
        }
        let distance = distance(&found, expected);
        let is_plain = !step.is_armed || optim.last_step().expect("a step has run").is_plain();
        let may_differ = !is_plain || graph.mixes_uses(program.parameters);
        let limit = if may_differ { LAST_BITS } else { unreported };
        let units = distance / unit;
        return match units < limit {
            true => Ok(units),
            false => Err(format!("step {number}: weights are off by {units} units")),
        };
    }
    Ok(0.0)
}

/// Runs programs with these numbers so often each; which graphs Burn's tape merges and forgets is
/// decided by the order of a hash set.
fn run(numbers: std::ops::Range<u64>, runs: usize, device: &Device, unreported: f32) {
    let (mut same, mut off, mut failed) = (0, Vec::new(), Vec::new());
    for number in numbers {
        let program = Source(number << 32).program();
        let expected = expected(&program, device);
        let runs = (0..runs).map(|run| {
            let compared =
                std::panic::catch_unwind(|| compare(&program, device, &expected, unreported));
            let compared = compared.unwrap_or_else(|_| Err("a panic".into()));
            compared.map_err(|reason| format!("program {number}, run {run}: {reason}"))
        });
        match runs.reduce(|worst, run| Ok(worst?.max(run?))) {
            Some(Err(fault)) => {
                println!("{fault}\n{program:?}");
                failed.push(fault);
            }
            Some(Ok(worst)) if worst > 0.0 => off.push((number, worst)),
            _ => same += 1,
        }
    }
    let largest = off.iter().map(|(_, worst)| *worst).fold(0.0, f32::max);
    println!(
        "{same} the same, {} off in last bits by up to {largest} units, {} failed",
        off.len(),
        failed.len(),
    );
    assert!(failed.is_empty(), "{failed:#?}");
    // Others would hide what the test is for.
    assert!(
        same > 4 * off.len(),
        "{same} the same, and off in last bits: {off:?}"
    );
}

/// What random programs have found: two parameters, stretches of operations, and what is the loss.
#[test]
fn programs_that_differed_once() {
    type Stretch = (Vec<Op>, bool);
    let tests: [(&str, Vec<Stretch>, Vec<usize>); 3] = [
        (
            "a result of a scope that leads to no loss",
            vec![(vec![Op::Tanh(0), Op::Matmul(0, 1)], true)],
            vec![2],
        ),
        (
            // What the parameters have got from elsewhere by then stays theirs.
            "a scope of constants",
            vec![
                (
                    vec![
                        Op::Matmul(1, 1),
                        Op::Multiply(2, 1),
                        Op::Tanh(1),
                        Op::Detach(4),
                    ],
                    false,
                ),
                (vec![Op::Tanh(5)], true),
            ],
            vec![3, 6],
        ),
        (
            // Which is reached first decides the order in which the gradients add up.
            "two results of one scope",
            vec![
                (vec![Op::Matmul(0, 0), Op::Add(0, 0)], true),
                (vec![Op::Matmul(3, 2)], false),
            ],
            vec![4],
        ),
    ];
    for (name, stretches, outputs) in tests {
        let graph = Graph { stretches, outputs };
        for is_armed in [false, true] {
            let step = Step {
                graph: 0,
                is_armed,
                discards: false,
                micro_batches: 1,
            };
            let program = Program {
                parameters: 2,
                graphs: vec![graph.clone()],
                steps: vec![step; 3],
                dtype: DType::F32,
                clips: false,
            };
            let expected = expected(&program, &flex());
            let compared = compare(&program, &flex(), &expected, 0.0);
            assert_eq!(compared, Ok(0.0), "{name}, armed {is_armed}");
        }
    }
}

/// An input of a scope that leads to no loss has a gradient of zeros there, where plain Burn has
/// none: with momentum, its parameter goes on.
#[test]
fn an_input_that_leads_to_no_loss_gets_zeros() {
    let device = flex();
    let loss = |model: &Parameters, step: usize, with_scope: bool| {
        let matrices = &model.matrices;
        if step == 0 {
            return matrices[0].val().matmul(matrices[1].val()).square().mean();
        }
        let unused = matrices[0].val().tanh();
        let input = matrices[1].val().tanh();
        let forward = |_: &Parameters, (_, input): (Tensor<2>, Tensor<2>)| input.square();
        let result = match with_scope {
            true => checkpoint(model, (unused, input), forward),
            false => forward(model, (unused, input)),
        };
        result.mean()
    };
    let train = |with_scope: bool, optim: ModuleOptimizer| {
        let (mut model, mut optim) = (Parameters::new(2, DType::F32, &device), optim);
        for step in 0..2 {
            let grads = loss(&model, step, with_scope).backward();
            let grads = GradientsParams::from_grads(grads, &model);
            model = optim.step(RATE, model, grads);
        }
        bits(&model)
    };
    assert_eq!(train(true, sgd()), train(false, sgd()));
    let (found, expected) = (train(true, momentum()), train(false, momentum()));
    assert_ne!(found[0], expected[0], "plain Burn leaves it where it is");
    assert_eq!(found[1], expected[1]);
}

#[test]
fn random_programs_train_the_same() {
    for device in devices() {
        run(0..60, 2, &device, 0.0);
    }
}

/// A number of the environment.
pub(crate) fn variable(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    let number = value.parse();
    Some(number.unwrap_or_else(|_| panic!("{name}={value} is no number")))
}

/// `RANDOM_PROGRAMS` programs from number `RANDOM_FIRST` on, each `RANDOM_RUNS` times.
#[test]
#[ignore = "takes as long as it is given; see tests/README.md"]
fn many_random_programs() {
    let first = variable("RANDOM_FIRST").unwrap_or(0);
    let count = variable("RANDOM_PROGRAMS").unwrap_or(1000);
    let runs = variable("RANDOM_RUNS").unwrap_or(20) as usize;
    // Of 20,000, some 120 have what docs/exactness.md lists under "that `is_plain` does not report".
    run(first..first + count, runs, &flex(), 2.0);
}
