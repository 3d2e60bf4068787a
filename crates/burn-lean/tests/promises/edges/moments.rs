//! The table of calls and moments: what each public call does at each moment of a step. The walks
//! of [`sequences`](super::sequences) go through the same calls in any order.
//!
//! `=` is what plain Burn does, to the bit, in this step and the next. A name is the
//! [`ReleaseError`](burn_lean::ReleaseError) that refuses the call, after which the step goes on as
//! if it had not been made; `step: Name` refuses the step that the call has spoiled; `backward`
//! panics with the way out. `.` is a call that cannot be made then.

use std::panic::resume_unwind;

use burn_lean::Refused;

use crate::harness::prelude::*;
use crate::small::{Halve, kind};

const TABLE: &str = "
                          | unarmed | armed             | forward           | backward          | micro             | micro backward    | accumulated       | last              | disarmed | stepped
optim.arm                 | =       | =                 | =                 | Unfinished        | ArmedElsewhere    | ArmedElsewhere    | =                 | =                 | =        | =
optim.arm_accumulated     | =       | =                 | =                 | Unfinished        | NotAccumulated    | NotAccumulated    | =                 | =                 | =        | =
optim.disarm              | =       | =                 | backward          | Unfinished        | ArmedElsewhere    | ArmedElsewhere    | =                 | Accumulated       | =        | =
optim.step                | =       | NoForward         | backward          | =                 | ArmedElsewhere    | ArmedElsewhere    | =                 | =                 | =        | =
optim.to_record           | =       | =                 | =                 | Unfinished        | =                 | =                 | =                 | =                 | =        | =
optim.load_record         | =       | =                 | =                 | step: Abandoned   | =                 | =                 | =                 | =                 | =        | =
drop(optim)               | =       | =                 | =                 | step: Abandoned   | =                 | =                 | =                 | =                 | =        | =
optim.into_optimizer      | =       | =                 | =                 | Unfinished        | =                 | =                 | =                 | =                 | =        | =
sums.arm                  | =       | ArmedElsewhere    | ArmedElsewhere    | ArmedElsewhere    | =                 | NotAccumulated    | =                 | ArmedElsewhere    | =        | =
sums.accumulate           | =       | =                 | =                 | ArmedElsewhere    | NoForward         | =                 | =                 | =                 | =        | =
sums.grads                | =       | =                 | =                 | =                 | NotAccumulated    | NotAccumulated    | =                 | =                 | =        | =
drop(sums)                | =       | =                 | =                 | =                 | =                 | step: Taken       | =                 | =                 | =        | =
model.clone               | =       | =                 | =                 | new               | =                 | =                 | =                 | =                 | =        | =
model.valid               | =       | =                 | =                 | new               | =                 | =                 | =                 | =                 | =        | =
model = clone             | =       | step: Copy        | step: Copy        | step: Copy        | step: Copy        | step: Copy        | =                 | step: Copy        | =        | =
model = fork              | =       | =                 | step: Copy        | step: Copy        | =                 | step: Copy        | =                 | =                 | =        | =
model = map, as it is     | =       | =                 | =                 | =                 | =                 | =                 | =                 | =                 | =        | =
model = map, computed     | =       | read              | step: Placeholder | step: Placeholder | read              | step: Placeholder | step: Placeholder | read              | =        | =
model = load_record       | =       | =                 | step: WrongModel  | step: WrongModel  | =                 | step: WrongModel  | =                 | =                 | =        | =
model.into_record         | =       | =                 | =                 | new               | =                 | =                 | =                 | =                 | =        | =
model = freeze_group      | =       | =                 | step: Unclaimed   | =                 | =                 | =                 | =                 | =                 | =        | =
model = no_grad, unfrozen | =       | =                 | step: Unclaimed   | =                 | =                 | =                 | =                 | =                 | =        | =
param.set_require_grad    | =       | step: Placeholder | =                 | =                 | step: Placeholder | step: Placeholder | step: Placeholder | step: Placeholder | =        | =
model = materialize       | =       | =                 | step: WrongModel  | step: WrongModel  | =                 | step: WrongModel  | =                 | =                 | =        | =
model = another           | =       | =                 | step: WrongModel  | step: WrongModel  | =                 | step: WrongModel  | =                 | =                 | =        | =
checkpoint                | =       | =                 | =                 | =                 | =                 | backward          | backward          | =                 | =        | =
";

/// The row of a scope, which refuses a fork itself.
const FORK_IN_A_SCOPE: &str =
    "= | scope | step: Copy | step: Copy | scope | step: Copy | = | scope | = | =";

/// What has happened before the call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Moment {
    Unarmed,
    Armed,
    Forward,
    Backward,
    /// Within a window of micro-batches: armed by the accumulator.
    MicroBatch,
    /// Its backward has run.
    MicroBackward,
    /// It has ended.
    Accumulated,
    /// The last micro-batch is armed.
    Last,
    Disarmed,
    Stepped,
}

const MOMENTS: [Moment; 10] = [
    Moment::Unarmed,
    Moment::Armed,
    Moment::Forward,
    Moment::Backward,
    Moment::MicroBatch,
    Moment::MicroBackward,
    Moment::Accumulated,
    Moment::Last,
    Moment::Disarmed,
    Moment::Stepped,
];

/// How a step is made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Way {
    Kept,
    /// The whole model in a scope.
    Recomputed,
    /// Each call on a thread of its own.
    Threads,
}

/// Where a run is in a window of micro-batches.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Window {
    Outside,
    /// A micro-batch is armed.
    Begun,
    /// It has ended.
    Summed,
}

/// A run with release, and plain Burn's.
pub(super) struct Run {
    way: Way,
    window: Window,
    model: Option<Small>,
    plain: Small,
    optim: ReleaseOptimizer,
    plain_optim: ModuleOptimizer,
    sums: ReleaseAccumulator,
    plain_sums: GradientsAccumulator<Small>,
    /// The sums that the model was armed with.
    plain_last: GradientsParams,
    pub(super) losses: Option<(Tensor<1>, Tensor<1>)>,
    pub(super) grads: Option<(GradientsParams, GradientsParams)>,
    /// A copy, and the values of plain Burn's.
    copy: Option<(Small, Vec<Vec<u32>>)>,
}

type Outcome = Result<(), ReleaseError>;

fn ended<G>(call: Result<Small, Refused<Small, G>>) -> (Small, Outcome) {
    match call {
        Ok(model) => (model, Ok(())),
        Err(refused) => {
            let (model, error) = refused.into_parts();
            (model, Err(error))
        }
    }
}

impl Run {
    pub(super) fn at(way: Way, moment: Moment) -> Self {
        let (model, optim) = plain(&[0]);
        let mut run = Self {
            way,
            window: Window::Outside,
            model: Some(model.clone()),
            plain: model,
            optim: optim.clone().with_gradient_release(),
            plain_optim: optim,
            sums: ReleaseAccumulator::new(),
            plain_sums: GradientsAccumulator::new(),
            plain_last: GradientsParams::new(),
            losses: None,
            grads: None,
            copy: None,
        };
        use Moment::*;
        match moment {
            Unarmed => {}
            MicroBatch | MicroBackward | Accumulated | Last => run.arm_micro_batch().unwrap(),
            _ => run.arm().unwrap(),
        }
        if !matches!(moment, Unarmed | Armed | MicroBatch | Disarmed) {
            run.forward(1);
            if moment != Forward {
                run.backward();
            }
        }
        match moment {
            Accumulated => run.accumulate().unwrap(),
            Last => {
                run.accumulate().unwrap();
                run.arm_last().unwrap();
            }
            Disarmed => run.disarm().unwrap(),
            Stepped => run.step().unwrap(),
            _ => {}
        }
        run
    }

    fn model(&self) -> &Small {
        self.model.as_ref().unwrap()
    }

    /// Makes a call that takes the model, and hands it back if it refuses.
    fn call(&mut self, call: impl FnOnce(&mut Self, Small) -> (Small, Outcome)) -> Outcome {
        let model = self.model.take().unwrap();
        let (model, outcome) = call(self, model);
        self.model = Some(model);
        outcome
    }

    /// Changes both models.
    fn change(&mut self, change: impl Fn(Small) -> Small) -> Outcome {
        self.plain = change(self.plain.clone());
        self.model = self.model.take().map(change);
        Ok(())
    }

    fn arm(&mut self) -> Outcome {
        self.call(|run, model| ended(run.optim.try_arm(LR, model)))
    }

    fn arm_micro_batch(&mut self) -> Outcome {
        self.call(|run, model| ended(run.sums.try_arm(model)))?;
        self.window = Window::Begun;
        Ok(())
    }

    fn arm_last(&mut self) -> Outcome {
        let sums = self.sums.try_grads()?;
        self.call(|run, model| ended(run.optim.try_arm_accumulated(LR, model, sums)))?;
        let mut sums = GradientsAccumulator::<Small>::new();
        sums.accumulate(&self.plain, std::mem::take(&mut self.plain_last));
        sums.accumulate(&self.plain, self.plain_sums.grads());
        self.plain_last = sums.grads();
        self.window = Window::Outside;
        Ok(())
    }

    fn disarm(&mut self) -> Outcome {
        self.call(|run, model| ended(run.optim.try_disarm(model)))
    }

    /// Whether a forward pass made now is of an armed model, and stays so in the next arming.
    pub(super) fn is_armed(&self) -> bool {
        self.window == Window::Begun || self.window == Window::Outside && self.optim.is_armed()
    }

    pub(super) fn is_ordinary(&self) -> bool {
        self.window == Window::Outside && !self.optim.is_armed()
    }

    pub(super) fn forward(&mut self, batch: usize) {
        let loss = match self.way {
            Way::Recomputed => recomputed(self.model(), batch),
            Way::Kept | Way::Threads => self.model().loss(batch),
        };
        self.losses = Some((self.plain.loss(batch), loss));
    }

    pub(super) fn backward(&mut self) {
        let (plain, loss) = self.losses.take().unwrap();
        let plain = GradientsParams::from_grads(plain.backward(), &self.plain);
        let grads = GradientsParams::from_grads(loss.backward(), self.model());
        self.grads = Some((plain, grads));
    }

    fn accumulate(&mut self) -> Outcome {
        let (plain, grads) = self.grads.take().unwrap_or_default();
        let model = self.model.take().unwrap();
        let refused = self.sums.try_accumulate(&model, grads).err();
        self.model = Some(model);
        if let Some(refused) = refused {
            let error = refused.error().clone();
            let given = (plain, refused.into_given().1);
            self.grads = Some(given).filter(|(plain, _)| !plain.is_empty());
            return Err(error);
        }
        let is_ordinary = !plain.is_empty();
        self.plain_sums.accumulate(&self.plain, plain);
        if self.window == Window::Begun || is_ordinary {
            self.window = Window::Summed;
        }
        Ok(())
    }

    fn step(&mut self) -> Outcome {
        let (plain, grads) = self.grads.take().unwrap_or_default();
        let mut left = GradientsParams::new();
        let outcome = self.call(|run, model| match run.optim.try_step(LR, model, grads) {
            Ok(model) => (model, Ok(())),
            Err(refused) => {
                let error = refused.error().clone();
                let (model, grads) = refused.into_given();
                left = grads;
                (model, Err(error))
            }
        });
        if outcome.is_err() {
            self.grads = Some((plain, left)).filter(|(plain, _)| !plain.is_empty());
            return outcome;
        }
        let mut sums = GradientsAccumulator::<Small>::new();
        sums.accumulate(&self.plain, std::mem::take(&mut self.plain_last));
        sums.accumulate(&self.plain, plain);
        self.plain = self.plain_optim.step(LR, self.plain.clone(), sums.grads());
        Ok(())
    }

    /// Goes on from wherever the call has led, to the end of the step and of another one.
    pub(super) fn finish(mut self) -> Outcome {
        if self.window == Window::Begun {
            if self.grads.is_none() {
                if self.losses.is_none() {
                    self.forward(1);
                }
                self.backward();
            }
            self.accumulate()?;
        }
        if self.window == Window::Summed {
            self.arm_last()?;
        } else if !self.optim.is_armed() && self.losses.is_none() && self.grads.is_none() {
            self.arm()?;
        }
        if self.grads.is_none() {
            if self.losses.is_none() {
                self.forward(2);
            }
            self.backward();
        }
        self.step()?;
        assert!(bits(self.model()) == bits(&self.plain), "after the step");
        if let Some((copy, values)) = &self.copy {
            assert!(&copy.values() == values, "new weights");
        }
        self.arm()?;
        self.forward(3);
        self.backward();
        self.step()?;
        assert!(bits(self.model()) == bits(&self.plain), "in the next step");
        Ok(())
    }
}

fn recomputed(model: &Small, batch: usize) -> Tensor<1> {
    let x = numbers::<2>([3, 4], batch, &flex());
    checkpoint(model, x, Small::forward).square().mean()
}

pub(super) type Call = fn(&mut Run) -> Outcome;

impl Way {
    pub(super) fn make(self, call: Call, run: &mut Run) -> Outcome {
        match self {
            Way::Threads => std::thread::scope(|threads| {
                let thread = threads.spawn(|| call(run));
                thread.join().unwrap_or_else(|panic| resume_unwind(panic))
            }),
            Way::Kept | Way::Recomputed => call(run),
        }
    }
}

fn first() -> ParamGroup {
    ParamGroup::from_predicate("first")
}

/// Maps nothing.
struct Keep;

impl ModuleMapper for Keep {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param
    }
}

pub(super) const CALLS: &[(&str, Call)] = &[
    ("optim.arm", Run::arm),
    ("optim.arm_accumulated", Run::arm_last),
    ("optim.disarm", Run::disarm),
    ("optim.step", Run::step),
    ("optim.to_record", |run| {
        // States are compared by the next steps that they make.
        run.optim = adamw()
            .load_record(run.optim.try_to_record()?)
            .with_gradient_release();
        run.plain_optim = adamw().load_record(run.plain_optim.to_record());
        Ok(())
    }),
    ("optim.load_record", |run| {
        let states = plain(&[0, 4]).1;
        run.optim = adamw()
            .with_gradient_release()
            .load_record(states.to_record());
        run.plain_optim = states;
        Ok(())
    }),
    ("drop(optim)", |run| {
        run.optim = adamw().with_gradient_release();
        run.plain_optim = adamw();
        Ok(())
    }),
    ("optim.into_optimizer", |run| {
        let optim = std::mem::replace(&mut run.optim, adamw().with_gradient_release());
        let (optim, outcome) = match optim.try_into_optimizer() {
            Ok(optim) => (optim.with_gradient_release(), Ok(())),
            Err(refused) => {
                let (optim, error) = refused.into_parts();
                (optim, Err(error))
            }
        };
        run.optim = optim;
        outcome
    }),
    ("sums.arm", Run::arm_micro_batch),
    ("sums.accumulate", Run::accumulate),
    ("sums.grads", |run| {
        let grads = run.sums.try_grads()?;
        let plain = run.plain_sums.grads();
        assert_eq!(grads.len(), plain.len());
        Ok(())
    }),
    ("drop(sums)", |run| {
        run.sums = ReleaseAccumulator::new();
        run.plain_sums = GradientsAccumulator::new();
        Ok(())
    }),
    ("model.clone", |run| {
        run.copy = Some((run.model().clone(), run.plain.values()));
        Ok(())
    }),
    ("model.valid", |run| {
        run.copy = Some((run.model().valid(), run.plain.values()));
        Ok(())
    }),
    ("model = clone", |run| run.change(|model| model.clone())),
    ("model = fork", |run| {
        run.change(|model| model.fork(&flex()))
    }),
    ("model = map, as it is", |run| {
        run.change(|model| model.map(&mut Keep))
    }),
    ("model = map, computed", |run| {
        run.change(|model| model.map(&mut Halve))
    }),
    ("model = load_record", |run| {
        run.change(|model| {
            let source = numbered_from(model.clone().materialize(), 80);
            model.load_record(source.into_record())
        })
    }),
    ("model.into_record", |run| {
        let saved = small().load_record(run.model().clone().into_record());
        assert!(bits(&saved) == bits(&run.plain), "new weights");
        Ok(())
    }),
    ("model = freeze_group", |run| {
        run.change(|model| model.freeze_group(first()))
    }),
    ("model = no_grad, unfrozen", |run| {
        run.change(|model| model.no_grad().set_require_grad(true))
    }),
    ("param.set_require_grad", |run| {
        run.change(|mut model| {
            model.tied = model.tied.set_require_grad(true);
            model
        })
    }),
    ("model = materialize", |run| {
        run.change(|model| model.materialize())?;
        // The slots that held the sums of an optimizer that is gone are left.
        if !run.optim.is_armed() {
            run.plain_last = GradientsParams::new();
        }
        Ok(())
    }),
    ("model = another", |run| run.change(|_| small())),
    ("checkpoint", |run| {
        run.losses = Some((run.plain.loss(2), recomputed(run.model(), 2)));
        Ok(())
    }),
];

fn cell(way: Way, call: Call, moment: Moment) -> String {
    let mut run = Run::at(way, moment);
    let refused = match panic_of(|| way.make(call, &mut run)) {
        Err(text) => return in_short(&text),
        Ok(called) => called.err(),
    };
    match (refused, panic_of(|| run.finish())) {
        (None, Ok(Ok(()))) => "=".into(),
        (None, Ok(Err(error))) => format!("step: {}", kind(&error)),
        (None, Err(text)) => in_short(&text),
        (Some(error), Ok(Ok(()))) => kind(&error),
        (Some(error), finished) => format!("{}, and then {finished:?}", kind(&error)),
    }
}

/// What a panic says, in a word.
fn in_short(text: &str) -> String {
    let words = [
        ("run backward before `step` or `disarm`", "backward"),
        ("something was computed from the placeholder", "read"),
        ("new weights", "new"),
        ("which a scope cannot use", "scope"),
    ];
    let word = words.iter().find(|(part, _)| text.contains(part));
    word.map_or_else(|| text.into(), |(_, word)| (*word).into())
}

#[test]
fn each_call_at_each_moment() {
    let rows = TABLE.lines().skip(2);
    assert_eq!(rows.clone().count(), CALLS.len());
    for (row, (name, call)) in rows.zip(CALLS) {
        for way in [Way::Kept, Way::Recomputed, Way::Threads] {
            let found = MOMENTS.map(|moment| cell(way, *call, moment));
            let mut expected: Vec<&str> = row.split('|').map(str::trim).collect();
            assert_eq!(expected.remove(0), *name);
            if way == Way::Recomputed && *name == "model = fork" {
                expected = FORK_IN_A_SCOPE.split('|').map(str::trim).collect();
            }
            assert_eq!(found[..], expected[..], "{name}, {way:?}, at {MOMENTS:?}");
        }
    }
}
