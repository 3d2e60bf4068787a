//! Calls of the optimizer and of its user in any order, beside plain Burn: the same bits after each.

use std::thread;

use burn::module::Quantizer;
use burn::tensor::quantization::{Calibration, QuantScheme};
use burn_lean::clip_grad_norm;

use crate::harness::prelude::*;
use crate::random_programs::{Source, variable};
use crate::small::Halve;

const MAX_NORM: f32 = 0.05;

struct Run {
    model: Small,
    optim: ReleaseOptimizer,
    plain: Small,
    plain_optim: ModuleOptimizer,
    plain_sums: GradientsAccumulator<Small>,
    /// Copies, with the weights that they were taken with.
    copies: Vec<(Small, Vec<Vec<u32>>)>,
    step: usize,
    has_sums: bool,
    clips: bool,
    has_settings: bool,
}

impl Run {
    fn new() -> Self {
        let (plain, plain_optim) = plain(&[]);
        Self {
            model: plain.clone(),
            optim: plain_optim.clone().with_gradient_release(),
            plain,
            plain_optim,
            plain_sums: GradientsAccumulator::new(),
            copies: Vec::new(),
            step: 0,
            has_sums: false,
            clips: false,
            has_settings: false,
        }
    }

    /// Of the next batch; every third forward pass is recomputed.
    fn loss(&mut self) -> Tensor<1> {
        self.step += 1;
        self.same_loss()
    }

    fn same_loss(&self) -> Tensor<1> {
        let x = numbers([3, 4], self.step, &flex());
        match self.step % 3 {
            0 => checkpoint(&self.model, x, Small::forward).square().mean(),
            _ => self.model.loss(self.step),
        }
    }

    fn accumulate_plain(&mut self) {
        let grads = grads_of(&self.plain, self.step);
        self.plain_sums.accumulate(&self.plain, grads);
    }

    fn step_plain(&mut self) {
        let mut grads = self.plain_sums.grads();
        if self.clips {
            clip_grad_norm(&self.plain, &mut grads, MAX_NORM.into());
        }
        let plain = std::mem::replace(&mut self.plain, small());
        self.plain = self.plain_optim.step(LR, plain, grads);
        self.has_sums = false;
    }

    /// Steps with what the call makes of the model and its loss.
    fn train(
        mut self,
        call: impl FnOnce(&mut ReleaseOptimizer, Small, Tensor<1>) -> Small,
    ) -> Self {
        let loss = self.loss();
        if self.clips {
            let loss = self.same_loss();
            self.optim.measure(loss, &self.model);
        }
        self.accumulate_plain();
        self.step_plain();
        self.model = call(&mut self.optim, self.model, loss);
        self
    }

    /// What is done to both models.
    fn both(mut self, change: impl Fn(Small) -> Small) -> Self {
        (self.model, self.plain) = (change(self.model), change(self.plain));
        self
    }

    fn keep(mut self, copy: impl Fn(&Small) -> Small) -> Self {
        self.copies.push((copy(&self.model), self.plain.values()));
        if self.copies.len() > 3 {
            self.copies.remove(0);
        }
        self
    }

    fn assert_same(&self) {
        assert_eq!(bits(&self.model), bits(&self.plain));
        assert_eq!(self.optim.has_sums(), self.has_sums);
        for (copy, values) in &self.copies {
            assert_eq!(&copy.values(), values, "a copy");
        }
    }
}

fn first() -> ParamGroup {
    ParamGroup::from_predicate("first")
}

fn backward(optim: &mut ReleaseOptimizer, model: Small, loss: Tensor<1>) -> Small {
    optim.backward(LR, loss, model)
}

type Call = fn(Run) -> Run;

/// Those that train, which are made as often as all others together.
const TRAINING: &[(&str, Call)] = &[
    ("backward", |run| run.train(backward)),
    ("backward over parts", |run| {
        run.train(|optim, model, loss| burn_lean::backward(loss, (optim.stepping(LR, model),)).0.0)
    }),
    ("backward on another thread", |run| {
        run.train(|optim, model, loss| {
            thread::scope(|scope| scope.spawn(|| backward(optim, model, loss)).join().unwrap())
        })
    }),
    ("backward beside a reader", |run| {
        let (valid, values) = (run.model.valid(), run.plain.values());
        let reader = thread::spawn(move || assert_eq!(valid.values(), values));
        let run = run.train(backward);
        reader.join().unwrap();
        run
    }),
    ("step", |run| {
        run.train(|optim, model, loss| {
            let grads = GradientsParams::from_grads(loss.backward(), &model);
            optim.step(LR, model, grads)
        })
    }),
    ("step with the sums", |mut run| {
        run.step_plain();
        run.model = run.optim.step(LR, run.model, GradientsParams::new());
        run
    }),
    ("two passes", |mut run| {
        run.step += 1;
        run.accumulate_plain();
        run.step_plain();
        let step = run.step;
        (run.model, _) = run
            .optim
            .two_passes(LR, run.model, |model| model.loss(step));
        run
    }),
    ("accumulate", |mut run| {
        let loss = run.loss();
        run.optim.accumulate(loss, &run.model);
        run.accumulate_plain();
        run.has_sums = true;
        run
    }),
    ("measure", |mut run| {
        let loss = run.loss();
        run.optim.measure(loss, &run.model);
        run
    }),
];

const OTHERS: &[(&str, Call)] = &[
    ("take_sums", |mut run| {
        drop((run.optim.take_sums(&run.model), run.plain_sums.grads()));
        run.has_sums = false;
        run
    }),
    ("sums_to_record, load_sums", |mut run| {
        // A record has sums of what is trained.
        run = run.both(Small::unfreeze);
        let record = run.optim.sums_to_record(&run.model);
        run.optim.load_sums(&run.model, record).unwrap();
        run
    }),
    ("to_record, load_record", |mut run| {
        let record = run.optim.to_record();
        run.optim = run.optim.load_record(run.plain_optim.to_record());
        run.plain_optim = run.plain_optim.load_record(record);
        run
    }),
    ("gradient_record, load_gradient_record", |mut run| {
        let record = run.optim.gradient_record();
        run.optim = run.optim.load_gradient_record(record);
        run
    }),
    ("into_optimizer", |mut run| {
        let optim = run.optim.try_into_optimizer();
        assert_eq!(optim.is_ok(), !(run.has_sums || run.has_settings));
        run.optim = match optim {
            Ok(optim) => optim.with_gradient_release(),
            Err(refused) => refused.into_model(),
        };
        run
    }),
    ("a rate that is refused", |mut run| {
        let loss = run.loss();
        let refused = run.optim.try_backward(-1.0, loss, run.model).unwrap_err();
        run.model = refused.into_model();
        run
    }),
    ("a loss that is refused", |mut run| {
        let loss = numbered(small()).loss(0);
        let refused = run.optim.try_backward(LR, loss, run.model).unwrap_err();
        run.model = refused.into_model();
        run
    }),
    ("with_norm_clipping", |mut run| {
        let max_norm = MAX_NORM.into();
        run.optim = run
            .optim
            .with_norm_clipping(NormClipping::GlobalNorm { max_norm });
        (run.clips, run.has_settings) = (true, true);
        run
    }),
    ("with_group", |mut run| {
        let own = || AdamConfig::new().build();
        run.optim = run.optim.with_group(first(), own(), None);
        run.plain_optim = run.plain_optim.with_group(first(), own(), None);
        run
    }),
    ("settings that change no number", |mut run| {
        run.optim = run
            .optim
            .with_grad_norm()
            .with_non_finite_stop()
            .with_f32_sums()
            .with_f32_gradients();
        run.has_settings = true;
        run
    }),
    ("clone", |run| run.keep(Small::clone)),
    ("valid", |run| run.keep(Small::valid)),
    ("to_device of a copy", |run| {
        run.keep(|model| model.clone().to_device(&flex()))
    }),
    ("training of a copy", |run| {
        let copy = run.model.clone().unfreeze();
        let copy = backward(
            &mut adamw().with_gradient_release(),
            copy.clone(),
            copy.loss(3),
        );
        drop(copy);
        run
    }),
    ("quantize_weights of a copy", |run| {
        let mut quantizer = Quantizer::new(Calibration::MinMax, QuantScheme::default());
        drop(run.model.clone().quantize_weights(&mut quantizer));
        run
    }),
    ("fork", |run| run.both(|model| model.fork(&flex()))),
    ("a clone in its place", |run| {
        run.both(|model| model.clone())
    }),
    ("materialize", |run| run.both(Small::materialize)),
    ("save and load", |run| {
        run.both(|model| {
            let bytes = model.clone().into_record().into_bytes().unwrap();
            model.load_record(ModuleRecord::from_bytes(bytes).unwrap())
        })
    }),
    ("a copy goes on", |mut run| {
        if let Some((copy, _)) = run
            .copies
            .iter()
            .find(|(copy, _)| copy.tied.is_require_grad())
        {
            (run.model, run.plain) = (copy.clone(), copy.clone().fork(&flex()));
        }
        run
    }),
    ("freeze_group", |run| {
        run.both(|model| model.freeze_group(first()))
    }),
    ("unfreeze", |run| run.both(Small::unfreeze)),
    ("map", |run| run.both(|model| model.map(&mut Halve))),
    ("a parameter is set", |run| {
        run.both(|mut model| {
            let set = |old: Tensor<2>| numbers([4, 4], 33, &old.device()).require_grad();
            model.tied = model.tied.map(set);
            model
        })
    }),
];

/// Calls with their names. Of so many.
fn draw(seed: u64, length: usize) -> Vec<&'static (&'static str, Call)> {
    let mut random = Source(seed);
    let call = |_| match random.next(2) {
        0 => &TRAINING[random.next(TRAINING.len())],
        _ => &OTHERS[random.next(OTHERS.len())],
    };
    (0..length).map(call).collect()
}

fn walk(calls: &[&(&str, Call)]) {
    let mut run = Run::new();
    for (name, call) in calls {
        run = call(run);
        run.assert_same();
        assert!(run.step < 1000, "{name}");
    }
    // The states, too.
    for _ in 0..2 {
        run = run.train(backward);
        run.assert_same();
    }
}

/// The fewest of these calls that still fail.
fn shrunk<'a>(mut calls: Vec<&'a (&'static str, Call)>) -> Vec<&'a str> {
    let mut at = 0;
    while at < calls.len() {
        let mut fewer = calls.clone();
        fewer.remove(at);
        match panic_of(|| walk(&fewer)) {
            Ok(()) => at += 1,
            Err(_) => calls = fewer,
        }
    }
    calls.iter().map(|(name, _)| *name).collect()
}

fn run(seeds: std::ops::Range<u64>, length: usize) {
    for seed in seeds {
        let calls = draw(seed, length);
        if let Err(text) = panic_of(|| walk(&calls)) {
            panic!("sequence {seed} of {length}, {:?}: {text}", shrunk(calls));
        }
    }
}

#[test]
fn any_order_of_calls() {
    run(0..150, 4);
    run(0..150, 12);
}

/// `SEQUENCES` of them, from number `SEQUENCES_FIRST` on.
#[test]
#[ignore = "takes as long as it is given; see tests/README.md"]
fn many_sequences() {
    let first = variable("SEQUENCES_FIRST").unwrap_or(0);
    let count = variable("SEQUENCES").unwrap_or(1000);
    run(first..first + count / 2, 6);
    run(first..first + count / 2, 14);
}
