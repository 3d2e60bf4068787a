//! The table of calls and moments: what each public call does at each moment of a step. The walks
//! of [`sequences`](super::sequences) go through the same calls in any order.
//!
//! `=` is what plain Burn does, to the bit, in this step and the next. A name is the
//! [`ReleaseError`](burn_lean::ReleaseError) that refuses the call, after which the step goes on as
//! if it had not been made; `step: Name` refuses the step that the call has spoiled. Other words are
//! those of a panic: [`in_short`]. `.` is a call that makes nodes on the tape of the backward pass
//! that runs: it waits for its end, and is not made here.
//!
//! After a panic in backward, the model is half old, half new: `step: Name` refuses the next step,
//! as it does after a call that is refused itself.

use std::collections::HashMap;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use burn_lean::{GradientRecord, Refused};

use crate::harness::prelude::*;
use crate::small::{Halve, kind};
use crate::threads::{fail_at_the_third, saved};

const TABLE: &str = "
                           | unarmed            | armed              | forward            | backward          | disarmed           | stepped
optim.arm                  | =                  | =                  | =                  | Unfinished        | =                  | =
optim.arm_accumulated      | =                  | =                  | =                  | Unfinished        | =                  | =
optim.arm_to_measure       | step: OnlyMeasured | step: OnlyMeasured | step: OnlyMeasured | Unfinished        | step: OnlyMeasured | step: OnlyMeasured
optim.measured             | NotMeasuring       | NotMeasuring       | NotMeasuring       | NotMeasuring      | NotMeasuring       | NotMeasuring
optim.two_passes           | =                  | =                  | combine            | Unfinished        | =                  | =
optim.disarm               | =                  | =                  | backward           | Unfinished        | =                  | =
optim.step                 | =                  | NoForward          | backward           | =                 | =                  | =
optim.to_record            | =                  | =                  | =                  | Unfinished        | =                  | =
optim.load_record          | =                  | =                  | =                  | step: Abandoned   | =                  | =
optim.gradient_record      | =                  | =                  | =                  | Unfinished        | =                  | =
optim.load_gradient_record | =                  | =                  | =                  | =                 | =                  | =
optim.with_norm_clipping   | step: NotMeasured  | step: NotMeasured  | step: NotMeasured  | step: NotMeasured | step: NotMeasured  | step: NotMeasured
optim.with_loss_scaler     | step: NotScaled    | step: NotScaled    | step: NotScaled    | step: NotScaled   | step: NotScaled    | step: NotScaled
optim.with_group           | =                  | step: SetInStep    | step: SetInStep    | step: SetInStep   | =                  | =
optim.with_f32_gradients   | =                  | step: SetInStep    | step: SetInStep    | step: SetInStep   | =                  | =
optim.with_grad_norm ..    | =                  | =                  | =                  | =                 | =                  | =
drop(optim)                | =                  | =                  | =                  | step: Abandoned   | =                  | =
optim.into_optimizer       | =                  | =                  | =                  | Unfinished        | =                  | =
sums.arm                   | =                  | ArmedElsewhere     | ArmedElsewhere     | ArmedElsewhere    | =                  | =
sums.accumulate            | =                  | =                  | =                  | ArmedElsewhere    | =                  | =
sums.grads                 | =                  | =                  | =                  | =                 | =                  | =
sums.load_record           | =                  | =                  | =                  | =                 | =                  | =
drop(sums)                 | =                  | =                  | =                  | =                 | =                  | =
model.clone                | =                  | =                  | =                  | new               | =                  | =
model.valid                | =                  | =                  | =                  | new               | =                  | =
model.visit                | =                  | =                  | =                  | =                 | =                  | =
model = clone              | =                  | step: Copy         | step: Copy         | step: Copy        | =                  | =
model = train              | =                  | =                  | =                  | =                 | =                  | =
model = fork               | =                  | =                  | step: Copy         | step: Copy        | =                  | =
model = fork, in a scope   | =                  | scope              | step: Copy         | step: Copy        | =                  | =
model = map, as it is      | =                  | =                  | =                  | =                 | =                  | =
model = map, computed      | =                  | read               | step: Placeholder  | step: Placeholder | =                  | =
model = load_record        | =                  | =                  | step: WrongModel   | step: WrongModel  | =                  | =
model.into_record          | =                  | =                  | =                  | new               | =                  | =
model.into_record_group    | =                  | =                  | =                  | new               | =                  | =
model = freeze_group       | =                  | =                  | step: Unclaimed    | =                 | =                  | =
model = no_grad, unfrozen  | =                  | =                  | step: Unclaimed    | =                 | =                  | =
param.set_require_grad     | =                  | step: Placeholder  | =                  | =                 | =                  | =
model = materialize        | =                  | =                  | step: WrongModel   | step: WrongModel  | =                  | =
model = another            | =                  | =                  | step: WrongModel   | step: WrongModel  | =                  | =
drop(model)                | =                  | =                  | step: WrongModel   | step: WrongModel  | =                  | =
load_record of both        | =                  | =                  | =                  | =                 | =                  | =
checkpoint                 | =                  | =                  | =                  | =                 | =                  | =

                           | micro             | micro backward    | accumulated        | last
optim.arm                  | ArmedElsewhere    | ArmedElsewhere    | =                  | =
optim.arm_accumulated      | NotAccumulated    | NotAccumulated    | =                  | =
optim.arm_to_measure       | NotAccumulated    | NotAccumulated    | step: OnlyMeasured | step: OnlyMeasured
optim.measured             | NotMeasuring      | NotMeasuring      | NotMeasuring       | NotMeasuring
optim.two_passes           | NotAccumulated    | NotAccumulated    | =                  | =
optim.disarm               | ArmedElsewhere    | ArmedElsewhere    | =                  | Accumulated
optim.step                 | ArmedElsewhere    | ArmedElsewhere    | =                  | =
optim.to_record            | =                 | =                 | =                  | =
optim.load_record          | =                 | =                 | =                  | =
optim.gradient_record      | =                 | =                 | =                  | =
optim.load_gradient_record | =                 | =                 | =                  | =
optim.with_norm_clipping   | step: NotMeasured | step: NotMeasured | step: NotMeasured  | step: NotMeasured
optim.with_loss_scaler     | step: NotScaled   | step: NotScaled   | step: NotScaled    | step: NotScaled
optim.with_group           | =                 | =                 | =                  | step: SetInStep
optim.with_f32_gradients   | =                 | =                 | =                  | step: SetInStep
optim.with_grad_norm ..    | =                 | =                 | =                  | =
drop(optim)                | =                 | =                 | =                  | =
optim.into_optimizer       | =                 | =                 | =                  | =
sums.arm                   | =                 | NotAccumulated    | =                  | ArmedElsewhere
sums.accumulate            | NoForward         | =                 | =                  | =
sums.grads                 | NotAccumulated    | NotAccumulated    | =                  | =
sums.load_record           | NotAccumulated    | NotAccumulated    | =                  | =
drop(sums)                 | =                 | step: Taken       | =                  | =
model.clone                | =                 | =                 | =                  | =
model.valid                | =                 | =                 | =                  | =
model.visit                | =                 | =                 | =                  | =
model = clone              | step: Copy        | step: Copy        | =                  | step: Copy
model = train              | =                 | =                 | =                  | =
model = fork               | =                 | step: Copy        | =                  | =
model = fork, in a scope   | scope             | step: Copy        | =                  | scope
model = map, as it is      | =                 | =                 | =                  | =
model = map, computed      | read              | step: Placeholder | step: Placeholder  | read
model = load_record        | =                 | step: WrongModel  | =                  | =
model.into_record          | =                 | =                 | =                  | =
model.into_record_group    | =                 | =                 | =                  | =
model = freeze_group       | =                 | =                 | =                  | =
model = no_grad, unfrozen  | =                 | =                 | =                  | =
param.set_require_grad     | step: Placeholder | step: Placeholder | step: Placeholder  | step: Placeholder
model = materialize        | =                 | step: WrongModel  | =                  | =
model = another            | =                 | step: WrongModel  | =                  | =
drop(model)                | =                 | step: WrongModel  | =                  | =
load_record of both        | =                 | =                 | =                  | =
checkpoint                 | =                 | backward          | backward           | =

                           | in backward       | on a thread       | scope panicked   | step panicked
optim.arm                  | Unfinished        | Unfinished        | Unfinished       | Interrupted
optim.arm_accumulated      | Unfinished        | Unfinished        | Unfinished       | Interrupted
optim.arm_to_measure       | Unfinished        | Unfinished        | Unfinished       | Interrupted
optim.measured             | NotMeasuring      | NotMeasuring      | NotMeasuring     | NotMeasuring
optim.two_passes           | Unfinished        | Unfinished        | Unfinished       | Interrupted
optim.disarm               | Unfinished        | Unfinished        | Unfinished       | Interrupted
optim.step                 | InScope           | Unclaimed         | Unclaimed        | Interrupted
optim.to_record            | Unfinished        | Unfinished        | Unfinished       | Interrupted
optim.load_record          | step: Abandoned   | step: Abandoned   | step: Abandoned  | step: Abandoned
optim.gradient_record      | Unfinished        | Unfinished        | Unfinished       | Interrupted
optim.load_gradient_record | =                 | =                 | step: Unfinished | step: Interrupted
optim.with_norm_clipping   | step: NotMeasured | step: NotMeasured | step: Unfinished | step: Interrupted
optim.with_loss_scaler     | step: NotScaled   | step: NotScaled   | step: Unfinished | step: Interrupted
optim.with_group           | step: SetInStep   | step: SetInStep   | step: Unfinished | step: Interrupted
optim.with_f32_gradients   | step: SetInStep   | step: SetInStep   | step: Unfinished | step: Interrupted
optim.with_grad_norm ..    | =                 | =                 | step: Unfinished | step: Interrupted
drop(optim)                | step: Abandoned   | step: Abandoned   | step: Abandoned  | step: Abandoned
optim.into_optimizer       | Unfinished        | Unfinished        | Unfinished       | Interrupted
sums.arm                   | InScope           | ArmedElsewhere    | ArmedElsewhere   | ArmedElsewhere
sums.accumulate            | =                 | =                 | step: Unfinished | step: Interrupted
sums.grads                 | =                 | =                 | step: Unfinished | step: Interrupted
sums.load_record           | =                 | =                 | step: Unfinished | step: Interrupted
drop(sums)                 | =                 | =                 | step: Unfinished | step: Interrupted
model.clone                | new               | new               | step: Unfinished | step: Interrupted
model.valid                | new               | new               | step: Unfinished | step: Interrupted
model.visit                | =                 | =                 | step: Unfinished | step: Interrupted
model = clone              | step: Copy        | step: Copy        | step: Unfinished | step: Interrupted
model = train              | =                 | =                 | step: Unfinished | step: Interrupted
model = fork               | .                 | .                 | step: Unfinished | lost
model = map, as it is      | =                 | =                 | step: Unfinished | step: Interrupted
model = map, computed      | step: Placeholder | step: Placeholder | step: Unfinished | step: Interrupted
model = load_record        | step: WrongModel  | step: WrongModel  | step: Unfinished | step: Interrupted
model.into_record          | new               | new               | new              | save
model.into_record_group    | =                 | =                 | step: Unfinished | save
model = freeze_group       | step: Unclaimed   | step: Unclaimed   | step: Unfinished | step: Interrupted
model = no_grad, unfrozen  | step: Unclaimed   | step: Unclaimed   | step: Unfinished | step: Interrupted
param.set_require_grad     | =                 | =                 | step: Unfinished | step: Interrupted
model = materialize        | .                 | .                 | step: Unfinished | lost
model = another            | step: WrongModel  | step: WrongModel  | step: Unfinished | step: Interrupted
drop(model)                | step: WrongModel  | step: WrongModel  | step: Unfinished | step: Interrupted
load_record of both        | =                 | =                 | =                | =
checkpoint                 | .                 | .                 | step: Unfinished | scope
";

/// Ends the name of a row that is of a scope alone.
const IN_A_SCOPE: &str = ", in a scope";

/// What has happened before the call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Moment {
    Unarmed,
    Armed,
    Forward,
    Backward,
    Disarmed,
    Stepped,
    /// Within a window of micro-batches: armed by the accumulator.
    MicroBatch,
    /// Its backward has run.
    MicroBackward,
    /// It has ended.
    Accumulated,
    /// The last micro-batch is armed.
    Last,
    /// Backward runs a scope again, which makes the call. Two parameters were stepped.
    Replayed,
    /// The same, on another thread than that of backward.
    Meanwhile,
    /// The scope has panicked.
    ReplayPanicked,
    /// The optimizer has panicked in the step of the third parameter.
    StepPanicked,
}

const MOMENTS: &[(&str, Moment)] = &[
    ("unarmed", Moment::Unarmed),
    ("armed", Moment::Armed),
    ("forward", Moment::Forward),
    ("backward", Moment::Backward),
    ("disarmed", Moment::Disarmed),
    ("stepped", Moment::Stepped),
    ("micro", Moment::MicroBatch),
    ("micro backward", Moment::MicroBackward),
    ("accumulated", Moment::Accumulated),
    ("last", Moment::Last),
    ("in backward", Moment::Replayed),
    ("on a thread", Moment::Meanwhile),
    ("scope panicked", Moment::ReplayPanicked),
    ("step panicked", Moment::StepPanicked),
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
        use Moment::*;
        let ((model, optim), steps_left) = match moment {
            StepPanicked => saved(),
            _ => (plain(&[0]), Arc::default()),
        };
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
        match moment {
            Unarmed => {}
            MicroBatch | MicroBackward | Accumulated | Last => run.arm_micro_batch().unwrap(),
            _ => run.arm().unwrap(),
        }
        match moment {
            Forward => run.forward(1),
            Backward | MicroBackward | Accumulated | Last | Stepped => {
                run.forward(1);
                run.backward();
            }
            _ => {}
        }
        match moment {
            Accumulated => run.accumulate().unwrap(),
            Last => {
                run.accumulate().unwrap();
                run.arm_last().unwrap();
            }
            Disarmed => run.disarm().unwrap(),
            Stepped => run.step().unwrap(),
            ReplayPanicked => {
                let loss = loss_and(run.model(), 1, || panic!("in backward"));
                assert_panics(|| loss.backward(), "in backward");
            }
            StepPanicked => fail_at_the_third(&steps_left, || grads_of(run.model(), 1)),
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
        self.arm_with_sums(|optim, model, sums| ended(optim.try_arm_accumulated(LR, model, sums)))
    }

    fn arm_to_measure(&mut self) -> Outcome {
        self.arm_with_sums(|optim, model, sums| ended(optim.try_arm_to_measure(model, sums)))
    }

    fn arm_with_sums(
        &mut self,
        arm: impl FnOnce(&mut ReleaseOptimizer, Small, GradientsParams) -> (Small, Outcome),
    ) -> Outcome {
        let [plain, sums] = self.take_sums()?;
        self.call(|run, model| arm(&mut run.optim, model, sums))?;
        self.plain_last = self.plain_sum(plain);
        Ok(())
    }

    /// Takes the sums of plain Burn's accumulator and of ours. A call that refuses them drops both.
    fn take_sums(&mut self) -> Result<[GradientsParams; 2], ReleaseError> {
        let sums = self.sums.try_grads()?;
        self.window = Window::Outside;
        Ok([self.plain_sums.grads(), sums])
    }

    /// Takes the sums that plain Burn's model was armed with, and adds to them.
    fn plain_sum(&mut self, grads: GradientsParams) -> GradientsParams {
        let mut sums = GradientsAccumulator::<Small>::new();
        sums.accumulate(&self.plain, std::mem::take(&mut self.plain_last));
        sums.accumulate(&self.plain, grads);
        sums.grads()
    }

    fn step_plain(&mut self, grads: GradientsParams) {
        let grads = self.plain_sum(grads);
        self.plain = self.plain_optim.step(LR, self.plain.clone(), grads);
    }

    fn measured(&mut self) -> Outcome {
        let (plain, grads) = self.grads.take().unwrap_or_default();
        let model = self.model.as_ref().unwrap();
        let measured = self.optim.try_measured(model, grads);
        let outcome = measured.map(|_| ());
        outcome.map_err(|refused| self.handed_back(plain, refused))
    }

    fn two_passes(&mut self) -> Outcome {
        let [plain, sums] = self.take_sums()?;
        let way = self.way;
        self.call(|run, model| {
            let forward = |model: &Small| way.loss(model, 1);
            let stepped = run.optim.try_two_passes(LR, model, sums, forward);
            ended(stepped.map(|(model, _)| model))
        })?;
        self.plain_last = self.plain_sum(plain);
        self.step_plain(grads_of(&self.plain, 1));
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

    /// Whether the group of the rows is frozen.
    pub(super) fn is_frozen(&self) -> bool {
        !self.plain.first.weight.is_require_grad()
    }

    pub(super) fn forward(&mut self, batch: usize) {
        let loss = self.way.loss(self.model(), batch);
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
        let model = self.model.as_ref().unwrap();
        if let Err(refused) = self.sums.try_accumulate(model, grads) {
            return Err(self.handed_back(plain, refused));
        }
        let is_ordinary = !plain.is_empty();
        self.plain_sums.accumulate(&self.plain, plain);
        if self.window == Window::Begun || is_ordinary {
            self.window = Window::Summed;
        }
        Ok(())
    }

    /// Keeps the gradients of a call that was refused.
    fn handed_back(
        &mut self,
        plain: GradientsParams,
        refused: Refused<(), GradientsParams>,
    ) -> ReleaseError {
        let error = refused.error().clone();
        let given = (plain, refused.into_given().1);
        self.grads = Some(given).filter(|(plain, _)| !plain.is_empty());
        error
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
        self.step_plain(plain);
        Ok(())
    }

    /// Changes the settings of the optimizer.
    fn set(&mut self, set: impl FnOnce(ReleaseOptimizer) -> ReleaseOptimizer) -> Outcome {
        let optim = std::mem::replace(&mut self.optim, adamw().with_gradient_release());
        self.optim = set(optim);
        Ok(())
    }

    fn load_model(&mut self) -> Outcome {
        let record = numbered_from(self.plain.clone(), 80).into_record();
        self.change(|model| model.load_record(record.clone()))
    }

    /// States are compared by the next steps that they make.
    fn load_optim(&mut self) -> Outcome {
        let states = plain(&[0, 4]).1;
        let optim = adamw().with_gradient_release();
        self.optim = optim.load_record(states.to_record());
        self.plain_optim = states;
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

/// The loss of a batch. When backward runs the scope over the first layer again, two parameters were
/// stepped, and `then` is called.
fn loss_and(model: &Small, batch: usize, then: impl Fn() + Send + Sync + 'static) -> Tensor<1> {
    let runs = AtomicUsize::new(0);
    let x = numbers::<2>([3, 4], batch, &flex()).matmul(model.tied.val());
    let x = checkpoint(&model.first, x, move |layer, x| {
        if runs.fetch_add(1, Ordering::Relaxed) == 1 {
            then();
        }
        gelu(layer.forward(x))
    });
    let x = model.second.forward(x);
    x.matmul(model.tied.val().transpose()).square().mean()
}

fn recomputed(model: &Small, batch: usize) -> Tensor<1> {
    let x = numbers::<2>([3, 4], batch, &flex());
    checkpoint(model, x, Small::forward).square().mean()
}

pub(super) type Call = fn(&mut Run) -> Outcome;

impl Way {
    fn loss(self, model: &Small, batch: usize) -> Tensor<1> {
        match self {
            Way::Recomputed => recomputed(model, batch),
            Way::Kept | Way::Threads => model.loss(batch),
        }
    }

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
    ("optim.arm_to_measure", Run::arm_to_measure),
    ("optim.measured", Run::measured),
    ("optim.two_passes", Run::two_passes),
    ("optim.disarm", Run::disarm),
    ("optim.step", Run::step),
    ("optim.to_record", |run| {
        run.optim = adamw()
            .load_record(run.optim.try_to_record()?)
            .with_gradient_release();
        run.plain_optim = adamw().load_record(run.plain_optim.to_record());
        Ok(())
    }),
    ("optim.load_record", Run::load_optim),
    ("optim.gradient_record", |run| {
        run.optim.try_gradient_record().map(drop)
    }),
    ("optim.load_gradient_record", |run| {
        run.set(|optim| optim.load_gradient_record(GradientRecord::default()))
    }),
    ("optim.with_norm_clipping", |run| {
        let clipping = NormClipping::GlobalNorm { max_norm: 1.0 };
        run.set(|optim| optim.with_norm_clipping(clipping))
    }),
    ("optim.with_loss_scaler", |run| {
        run.set(|optim| optim.with_loss_scaler(LossScalerConfig::new().init()))
    }),
    ("optim.with_group", |run| {
        let plain = run.plain_optim.clone();
        run.plain_optim = plain.with_group(first(), SgdConfig::new().build(), None);
        run.set(|optim| optim.with_group(first(), SgdConfig::new().build(), None))
    }),
    ("optim.with_f32_gradients", |run| {
        run.set(ReleaseOptimizer::with_f32_gradients)
    }),
    // And the others that change no number.
    ("optim.with_grad_norm ..", |run| {
        run.set(|optim| {
            let optim = optim.with_grad_norm().with_non_finite_stop();
            optim.with_first_pass(FirstPass::Exact)
        })
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
    ("sums.load_record", |run| {
        let record = run.sums.try_to_record(run.model())?;
        let sums = std::mem::take(&mut run.sums);
        match sums.load_record(run.model(), record) {
            Ok(sums) => run.sums = sums,
            // Sums of what was frozen since.
            Err(_) => run.plain_sums = GradientsAccumulator::new(),
        }
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
    ("model.visit", |run| {
        assert_eq!(run.model().num_params(), run.plain.num_params());
        Ok(())
    }),
    ("model = clone", |run| run.change(|model| model.clone())),
    ("model = train", |run| run.change(|model| model.train())),
    ("model = fork", |run| {
        run.change(|model| model.fork(&flex()))
    }),
    ("model = map, as it is", |run| {
        run.change(|model| model.map(&mut Keep))
    }),
    ("model = map, computed", |run| {
        run.change(|model| model.map(&mut Halve))
    }),
    ("model = load_record", Run::load_model),
    ("model.into_record", |run| {
        let saved = small().load_record(run.model().clone().into_record());
        assert!(bits(&saved) == bits(&run.plain), "new weights");
        Ok(())
    }),
    ("model.into_record_group", |run| {
        let part = run.model().clone().into_record_group(first());
        let saved = small().load_record(part.allow_partial(true));
        assert!(bits(&saved.first) == bits(&run.plain.first), "new weights");
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
    // A new one of the same ids takes its place.
    ("drop(model)", |run| {
        run.model = Some(run.plain.clone());
        Ok(())
    }),
    // Back to a checkpoint: what is left of the step is dropped, but for sums that the model was armed
    // with.
    ("load_record of both", |run| {
        (run.losses, run.grads, run.window) = (None, None, Window::Outside);
        (run.sums, run.plain_sums) = (ReleaseAccumulator::new(), GradientsAccumulator::new());
        run.load_model()?;
        run.load_optim()
    }),
    ("checkpoint", |run| {
        run.losses = Some((run.plain.loss(2), recomputed(run.model(), 2)));
        Ok(())
    }),
];

impl Moment {
    fn is_in_backward(self) -> bool {
        matches!(self, Self::Replayed | Self::Meanwhile)
    }

    fn is_after_a_panic(self) -> bool {
        matches!(self, Self::ReplayPanicked | Self::StepPanicked)
    }

    /// Makes a call at this moment.
    fn make(self, way: Way, call: Call) -> (Run, Outcome) {
        let mut run = Run::at(way, self);
        match self {
            Self::Replayed => in_backward(run, Way::Kept, call),
            Self::Meanwhile => in_backward(run, Way::Threads, call),
            _ => {
                let outcome = way.make(call, &mut run);
                (run, outcome)
            }
        }
    }
}

/// Makes a call while backward runs.
fn in_backward(run: Run, way: Way, call: Call) -> (Run, Outcome) {
    let shared = Arc::new(Mutex::new((run, None)));
    let inside = shared.clone();
    let make = move || {
        let (run, outcome) = &mut *inside.lock().unwrap();
        // Backward goes on after a panic.
        *outcome = Some(panic_of(|| way.make(call, run)));
    };
    let (plain_loss, loss) = {
        let (run, _) = &*shared.lock().unwrap();
        (run.plain.loss(1), loss_and(run.model(), 1, make))
    };
    let grads = loss.backward();
    let shared = Arc::into_inner(shared).expect("backward drops the scope");
    let (mut run, outcome) = shared.into_inner().unwrap();
    let outcome = outcome.expect("backward runs the scope again");
    let outcome = outcome.unwrap_or_else(|text| panic!("{text}"));
    let plain = GradientsParams::from_grads(plain_loss.backward(), &run.plain);
    let grads = GradientsParams::from_grads(grads, run.model());
    run.grads = Some((plain, grads));
    (run, outcome)
}

fn cell(way: Way, call: Call, moment: Moment) -> String {
    let (mut run, outcome) = match panic_of(|| moment.make(way, call)) {
        Ok(made) => made,
        Err(text) => return in_short(&text),
    };
    let finished = panic_of(|| {
        if moment.is_after_a_panic() {
            run.arm()?;
        }
        run.finish()
    });
    match (outcome, finished) {
        (Ok(()), Ok(Ok(()))) => "=".into(),
        (Ok(()), Ok(Err(error))) => format!("step: {}", kind(&error)),
        (Ok(()), Err(text)) => in_short(&text),
        (Err(error), Ok(Ok(()))) => kind(&error),
        (Err(error), Ok(Err(next))) if is_half(moment, &next) => kind(&error),
        (Err(error), finished) => format!("{}, and then {finished:?}", kind(&error)),
    }
}

/// Whether the step after the one that has panicked is refused, as it must be.
fn is_half(moment: Moment, error: &ReleaseError) -> bool {
    match moment {
        Moment::ReplayPanicked => matches!(error, ReleaseError::Unfinished { .. }),
        Moment::StepPanicked => matches!(error, ReleaseError::Interrupted { .. }),
        _ => false,
    }
}

/// What a panic says, in a word.
fn in_short(text: &str) -> String {
    let words = [
        ("run backward before `step` or `disarm`", "backward"),
        ("something was computed from the placeholder", "read"),
        ("new weights", "new"),
        ("which a scope cannot use", "scope"),
        ("Combine losses before backward", "combine"),
        ("was lost when its optimizer panicked", "lost"),
        ("save after `step`", "save"),
    ];
    let word = words.iter().find(|(part, _)| text.contains(part));
    word.map_or_else(|| text.into(), |(_, word)| (*word).into())
}

/// What each call comes to, by row and column.
fn table() -> HashMap<(&'static str, &'static str), &'static str> {
    let mut cells = HashMap::new();
    for block in TABLE.trim().split("\n\n") {
        let mut rows = block.lines().map(|row| row.split('|').map(str::trim));
        let head = rows.next().expect("a block has a head");
        let columns: Vec<_> = head.skip(1).collect();
        for mut row in rows {
            let name = row.next().expect("a row has a name");
            let row = columns.iter().zip(row);
            cells.extend(row.map(|(column, cell)| ((name, *column), cell)));
        }
    }
    cells
}

fn assert_table(way: Way) {
    let table = table();
    let is_call = |name: &str| CALLS.iter().any(|(call, _)| *call == name);
    let mut rows = table
        .keys()
        .map(|(row, _)| row.trim_end_matches(IN_A_SCOPE));
    assert!(rows.all(is_call), "a row of no call");
    let mut wrong = Vec::new();
    for (name, call) in CALLS {
        for (column, moment) in MOMENTS {
            if moment.is_in_backward() && way != Way::Kept {
                continue;
            }
            let in_a_scope = format!("{name}{IN_A_SCOPE}");
            let own = table.get(&(in_a_scope.as_str(), *column));
            let own = own.filter(|_| way == Way::Recomputed);
            let expected = *own.unwrap_or_else(|| &table[&(*name, *column)]);
            if expected == "." {
                continue;
            }
            let found = cell(way, *call, *moment);
            if found != expected {
                wrong.push(format!("{name}, {column}: {found}, and not {expected}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{way:?}:\n{}", wrong.join("\n"));
}

#[test]
fn each_call_at_each_moment() {
    assert_table(Way::Kept);
}

#[test]
fn each_call_at_each_moment_with_scopes() {
    assert_table(Way::Recomputed);
}

#[test]
fn each_call_at_each_moment_on_a_thread() {
    assert_table(Way::Threads);
}
