//! Whatever the program, with scopes or without, accumulated, clipped and scaled, and whatever happens
//! between two steps: release changes no bit beside plain Burn over the same graph.

mod faults;
mod model;
mod program;

use burn::optim::LionConfig;
use burn_lean::LossScaler;
use burn_lean::optim::{InFiveBytes, InOnePass, Lean};

use self::faults::CONSUMED;
use self::model::{Graph, Model, Op, Part, average, values};
pub(crate) use self::program::Source;
use self::program::{Change, Program, Setting, Step, Way};
use crate::harness::distance;
use crate::harness::prelude::*;
use crate::small::panic_of;

const RATE: f64 = 30.0 * LR;
/// Of roundings.
const SEED: u64 = 7;

/// By how much scopes and early gradients may change the last bits of a step of SGD, in units in the last place of the
/// largest weight.
const LAST_BITS: f32 = 8.0;

/// A model in training, and its copies, which must stay as they are.
struct Training<'a> {
    program: &'a Program,
    model: Option<Model>,
    copies: Vec<(Model, Bits)>,
    optim: Optim,
    scaler: LossScaler,
}

enum Optim {
    /// The reference, of a program without settings that Burn lacks.
    Burn(ModuleOptimizer),
    /// The reference, stepped with plain gradients. These settings are compared with others' in
    /// [`clipping`](crate::clipping).
    Ordinary(ReleaseOptimizer),
    Release(ReleaseOptimizer),
}

impl Program {
    fn burns(&self) -> ModuleOptimizer {
        let clipping = GradientClippingConfig::Norm(0.01);
        let sgd = SgdConfig::new();
        let decaying = AdamWConfig::new().with_weight_decay(0.01);
        match (self.optimizer, self.dtype) {
            (0, _) => sgd.init(),
            (1, _) => sgd.with_gradient_clipping(Some(clipping)).init(),
            (2, DType::F32) => momentum(),
            (3, DType::F32) => adamw(),
            (_, DType::F32) => LionConfig::new().in_one_pass().init(),
            // Burn cannot resume its own: see `faults`.
            (2, _) => sgd
                .with_momentum(Some(MomentumConfig::new()))
                .in_one_pass()
                .init(),
            (3, _) => decaying.in_one_pass().init(),
            _ => decaying.in_five_bytes(SEED).init(),
        }
    }

    fn release(&self, scaler: &LossScaler) -> ReleaseOptimizer {
        let optim = self.burns().with_gradient_release();
        match self.setting {
            Setting::None => optim,
            Setting::GlobalNorm => {
                optim.with_norm_clipping(NormClipping::GlobalNorm { max_norm: 0.05 })
            }
            Setting::LossScaler => optim.with_loss_scaler(scaler.clone()),
        }
    }

    fn train(&self, is_release: bool) -> Training<'_> {
        let scaler = LossScalerConfig::new().with_init_scale(64.0);
        let scaler = scaler.with_growth_interval(2).init();
        let optim = match (is_release, self.setting) {
            (true, _) => Optim::Release(self.release(&scaler)),
            (false, Setting::None) => Optim::Burn(self.burns()),
            (false, _) => Optim::Ordinary(self.release(&scaler)),
        };
        Training {
            program: self,
            model: None,
            copies: Vec::new(),
            optim,
            scaler,
        }
    }
}

impl Training<'_> {
    fn model(&self) -> &Model {
        self.model.as_ref().expect("only a step takes it")
    }

    fn change(&mut self, change: Change) {
        let mut model = self.model.take().expect("only a step takes it");
        match change {
            Change::Clone => self.copies.push((model.clone(), bits(&model))),
            Change::DropClone => drop(self.copies.pop()),
            Change::SaveAndLoad => {
                // Burn loads factors of LoRA in f32.
                if self.program.dtype == DType::F32 {
                    let bytes = model.clone().into_record().into_bytes().unwrap();
                    model = model.load_record(ModuleRecord::from_bytes(bytes).unwrap());
                }
                self.reload();
            }
            Change::Freeze(at) => {
                model.matrices[at] = model.matrices[at].clone().set_require_grad(false);
            }
            Change::ThawAll => {
                let thawed = model.matrices.into_iter();
                model.matrices = thawed.map(|it| it.set_require_grad(true)).collect();
            }
            Change::AverageWithClone => {
                if let Some((copy, _)) = self.copies.last() {
                    model = average(model, values(copy), 0.75, self.program.dtype);
                }
            }
            Change::Move => model = model.fork(&flex()),
        }
        self.model = Some(model);
    }

    /// A new optimizer with the records of this one.
    fn reload(&mut self) {
        let through_bytes = |record: OptimizerRecord| {
            OptimizerRecord::from_bytes(record.into_bytes().unwrap()).unwrap()
        };
        match &mut self.optim {
            Optim::Burn(optim) => {
                let record = through_bytes(optim.to_record());
                *optim = self.program.burns().load_record(record);
            }
            Optim::Ordinary(optim) | Optim::Release(optim) => {
                let (record, of_gradients) = (optim.to_record(), optim.gradient_record());
                let new = self.program.release(&self.scaler);
                let new = new.load_record(through_bytes(record));
                *optim = new.load_gradient_record(of_gradients);
            }
        }
    }

    fn loss(&self, model: &Model, step: &Step, number: usize, with_scopes: bool) -> Tensor<1> {
        let loss = self.program.graphs[step.graph].loss(model, number, with_scopes);
        match self.program.setting {
            Setting::LossScaler => self.scaler.scale(loss),
            _ => loss,
        }
    }

    /// One step of plain Burn's gradients.
    fn plain_grads(&self, step: &Step, numbers: &[usize], with_scopes: bool) -> GradientsParams {
        let mut sums = GradientsAccumulator::new();
        for number in numbers {
            let loss = self.loss(self.model(), step, *number, with_scopes);
            let grads = GradientsParams::from_grads(loss.backward(), self.model());
            sums.accumulate(self.model(), grads);
        }
        sums.grads()
    }

    fn step(&mut self, step: &Step, number: usize, with_scopes: bool) {
        step.changes.iter().for_each(|change| self.change(*change));
        let numbers: Vec<usize> = (0..step.micro_batches).map(|at| number + 10 * at).collect();
        let is_release = matches!(self.optim, Optim::Release(_));
        if step.discards {
            self.loss(self.model(), step, number + 100, is_release || with_scopes);
        }
        if is_release && step.way != Way::Burns {
            return self.step_released(step, &numbers);
        }
        let passes_twice = match step.way {
            Way::TwoPasses => true,
            Way::Released => self.program.setting == Setting::GlobalNorm,
            _ => false,
        };
        if passes_twice {
            // Burn can panic at a second pass over parameters, after branches that lead to no loss.
            let last = *numbers.last().expect("there is a micro-batch");
            drop(self.loss(self.model(), step, last, with_scopes).backward());
        }
        let grads = self.plain_grads(step, &numbers, with_scopes);
        let model = self.model.take().expect("only a step takes it");
        self.model = Some(match &mut self.optim {
            Optim::Burn(optim) => optim.step(RATE, model, grads),
            Optim::Ordinary(optim) => optim.step(RATE, model, grads),
            Optim::Release(optim) => {
                let ours = std::mem::replace(optim, momentum().with_gradient_release());
                let mut burns = ours.into_optimizer();
                let model = burns.step(RATE, model, grads);
                *optim = burns.with_gradient_release();
                model
            }
        });
    }

    fn step_released(&mut self, step: &Step, numbers: &[usize]) {
        let mut model = self.model.take().expect("only a step takes it");
        let Optim::Release(mut optim) = std::mem::replace(&mut self.optim, Optim::Burn(momentum()))
        else {
            unreachable!("it is released");
        };
        let loss = |model: &Model, number| self.loss(model, step, number, true);
        let [first @ .., last] = numbers else {
            unreachable!("there is a micro-batch");
        };
        for number in first {
            optim.accumulate(loss(&model, *number), &model);
            if step.saves_sums {
                let bytes = optim.sums_to_record(&model).into_bytes().unwrap();
                drop(optim.take_sums(&model));
                let record = ModuleRecord::from_bytes(bytes).unwrap();
                optim.load_sums(&model, record).unwrap();
            }
        }
        model = match step.way {
            Way::Released => {
                if optim.needs_two_passes() {
                    optim.measure(loss(&model, *last), &model);
                }
                let loss = loss(&model, *last);
                let model = optim.backward(RATE, loss, model);
                let report = optim.last_step().unwrap();
                // Of a window, some parameters are in earlier passes alone.
                let at_end = report.count(Outcome::AtEnd);
                assert!(at_end == 0 || !first.is_empty(), "{report:?}");
                model
            }
            Way::TwoPasses => optim.two_passes(RATE, model, |model| loss(model, *last)).0,
            Way::Ordinary => {
                let grads = GradientsParams::from_grads(loss(&model, *last).backward(), &model);
                optim.step(RATE, model, grads)
            }
            Way::SumsAlone => {
                optim.accumulate(loss(&model, *last), &model);
                optim.step(RATE, model, GradientsParams::new())
            }
            Way::Burns => unreachable!("it is not released"),
        };
        assert!(!optim.has_sums());
        self.optim = Optim::Release(optim);
        self.model = Some(model);
    }
}

/// What a comparison has found.
#[derive(Debug, PartialEq)]
enum Found {
    Same,
    /// Scopes or early gradients have changed last bits, by so many units.
    LastBits(f32),
    /// Plain Burn panics, or its weights are not finite any more.
    Ends,
    /// Release panics where [Burn loses a step](faults). Which graph is merged into
    /// which depends on the numbers of nodes, so plain Burn need not lose it in the same program.
    StepLost,
}

/// What all comparisons have found.
#[derive(Default)]
struct Tally {
    same: usize,
    last_bits: Vec<(u64, f32)>,
    ended: usize,
    lost: Vec<u64>,
    failed: Vec<String>,
}

fn is_finite(bits: &Bits) -> bool {
    let mut numbers = bits.iter().flat_map(|(_, bits)| bits);
    numbers.all(|bits| f32::from_bits(*bits).is_finite())
}

/// Trains with release, with plain Burn over the same graphs, and with plain Burn without scopes and early
/// gradients.
fn compare(program: &Program) -> Result<Found, String> {
    let new = |is_early| Model::new(program.matrices, program.dtype, is_early, &flex());
    let mut plain = program.train(false);
    let mut released = program.train(true);
    let mut simply = program.train(false);
    simply.model = Some(new(false));
    for training in [&mut plain, &mut released] {
        training.model = Some(new(program.is_early));
    }
    let unit = match program.dtype {
        DType::F16 => 2f32.powi(-10),
        DType::BF16 => 2f32.powi(-7),
        _ => f32::EPSILON,
    };
    // Other optimizers make a step of any size of what is all rounding.
    let mut last_bits = (program.optimizer != 0 || program.setting != Setting::None).then_some(0.0);
    for (number, step) in program.steps.iter().enumerate() {
        if panic_of(|| plain.step(step, number, true)).is_err() {
            return Ok(Found::Ends);
        }
        let expected = bits(plain.model());
        if !is_finite(&expected) {
            return Ok(Found::Ends);
        }
        match panic_of(|| released.step(step, number, true)) {
            Ok(()) => {}
            Err(text) if text.contains(CONSUMED) => return Ok(Found::StepLost),
            Err(text) => return Err(format!("step {number}: a panic: {text}")),
        }
        let found = bits(released.model());
        for training in [&plain, &released] {
            for (copy, before) in &training.copies {
                if bits(copy) != *before {
                    return Err(format!("step {number}: a copy has changed"));
                }
            }
        }
        if found != expected {
            let units = distance(&found, &expected) / unit;
            return Err(format!("step {number}: weights are off by {units} units"));
        }
        if last_bits.is_none() {
            // As in `step`: without scopes, Burn can panic where it does not with them.
            if panic_of(|| simply.step(step, number, false)).is_err() {
                return Ok(Found::Ends);
            }
            let kept = bits(simply.model());
            if kept != expected {
                let units = distance(&kept, &expected) / unit;
                if units > LAST_BITS {
                    return Err(format!(
                        "step {number}: scopes and early gradients change {units} units"
                    ));
                }
                last_bits = Some(units);
            }
        }
    }
    Ok(match last_bits {
        Some(units) if units > 0.0 => Found::LastBits(units),
        _ => Found::Same,
    })
}

/// Runs these programs on so many threads at the same time.
fn run(numbers: std::ops::Range<u64>, threads: usize) {
    let next = std::sync::atomic::AtomicU64::new(numbers.start);
    let tally = std::sync::Mutex::new(Tally::default());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    if number >= numbers.end {
                        break;
                    }
                    let program = Source(number << 32).program();
                    let compared = panic_of(|| compare(&program)).unwrap_or_else(Err);
                    let mut tally = tally.lock().unwrap();
                    match compared {
                        Ok(Found::Same) => tally.same += 1,
                        Ok(Found::LastBits(units)) => tally.last_bits.push((number, units)),
                        Ok(Found::Ends) => tally.ended += 1,
                        Ok(Found::StepLost) => tally.lost.push(number),
                        Err(fault) => {
                            println!("program {number}: {fault}\n{program:?}");
                            tally.failed.push(format!("program {number}: {fault}"));
                        }
                    }
                }
            });
        }
    });
    let Tally {
        same,
        last_bits: off,
        ended,
        lost,
        failed,
    } = tally.into_inner().unwrap();
    let largest = off.iter().map(|(_, units)| *units).fold(0.0, f32::max);
    println!(
        "{same} the same, {} off in last bits, by up to {largest} units, {ended} that end \
         early with plain Burn, {} where Burn loses a step, {} failed",
        off.len(),
        lost.len(),
        failed.len(),
    );
    assert!(failed.is_empty(), "{failed:#?}");
    // Others would hide what the test is for.
    assert!(same > 4 * (off.len() + ended), "{same}, {ended}, {off:?}");
    assert!(lost.len() <= 1 + same / 1000, "{lost:?}");
}

/// What random programs have found: two parameters, a forward pass, and what is the loss.
#[test]
fn programs_that_differed_once() {
    let ops = |ops: &[Op]| ops.iter().copied().map(Part::Op).collect::<Vec<_>>();
    let scope = |of: &[Op]| Part::Scope(std::sync::Arc::new(ops(of)));
    let constants = [
        Op::Matmul(1, 1),
        Op::Multiply(2, 1),
        Op::Tanh(1),
        Op::Detach(4),
    ];
    let tests: [(&str, Vec<Part>, Vec<usize>); 3] = [
        (
            "a result of a scope that leads to no loss",
            vec![scope(&[Op::Tanh(0), Op::Matmul(0, 1)])],
            vec![2],
        ),
        (
            // What the parameters have got from elsewhere by then stays theirs.
            "a scope of constants",
            [ops(&constants), vec![scope(&[Op::Tanh(5)])]].concat(),
            vec![3, 6],
        ),
        (
            // Which is reached first decides the order in which the gradients add up.
            "two results of one scope",
            vec![
                scope(&[Op::Matmul(0, 0), Op::Add(0, 0)]),
                Part::Op(Op::Matmul(3, 2)),
            ],
            vec![4],
        ),
    ];
    for (name, parts, outputs) in tests {
        let step = Step {
            changes: Vec::new(),
            graph: 0,
            way: Way::Released,
            discards: false,
            micro_batches: 1,
            saves_sums: false,
        };
        let program = Program {
            matrices: 2,
            graphs: vec![Graph { parts, outputs }],
            steps: vec![step; 3],
            dtype: DType::F32,
            optimizer: 0,
            setting: Setting::None,
            is_early: false,
        };
        assert_eq!(compare(&program), Ok(Found::Same), "{name}");
    }
}

/// An input of a scope that leads to no loss has a gradient of zeros there, where plain Burn has
/// none: with momentum, its parameter goes on.
#[test]
fn an_input_that_leads_to_no_loss_gets_zeros() {
    let loss = |model: &Model, step: usize, with_scope: bool| {
        let matrices = &model.matrices;
        if step == 0 {
            return matrices[0].val().matmul(matrices[1].val()).square().mean();
        }
        let unused = matrices[0].val().tanh();
        let input = matrices[1].val().tanh();
        let forward = |_: &Model, (_, input): (Tensor<2>, Tensor<2>)| input.square();
        let result = match with_scope {
            true => checkpoint(model, (unused, input), forward),
            false => forward(model, (unused, input)),
        };
        result.mean()
    };
    let train = |with_scope: bool, mut optim: ModuleOptimizer| {
        let mut model = Model::new(2, DType::F32, false, &flex());
        for step in 0..2 {
            model = plain_step(model, &mut optim, |model| loss(model, step, with_scope));
        }
        [0, 1].map(|at| bits_of(model.matrices[at].val()))
    };
    let sgd = || SgdConfig::new().init();
    assert_eq!(train(true, sgd()), train(false, sgd()));
    let (found, expected) = (train(true, momentum()), train(false, momentum()));
    assert_ne!(found[0], expected[0], "plain Burn leaves it where it is");
    assert_eq!(found[1], expected[1]);
}

#[test]
fn random_programs_train_the_same() {
    run(0..60, 2);
}

/// A number of the environment.
pub(crate) fn variable(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    let number = value.parse();
    Some(number.unwrap_or_else(|_| panic!("{name}={value} is no number")))
}

/// `RANDOM_PROGRAMS` programs from number `RANDOM_FIRST` on, on `RANDOM_THREADS` threads.
#[test]
#[ignore = "takes as long as it is given; see tests/README.md"]
fn many_random_programs() {
    let first = variable("RANDOM_FIRST").unwrap_or(0);
    let count = variable("RANDOM_PROGRAMS").unwrap_or(1000);
    let threads = variable("RANDOM_THREADS").unwrap_or(4) as usize;
    run(first..first + count, threads);
}
