//! The parts of a backward pass: optimizers, each with a model.

use std::rc::Rc;

use burn::Tensor;
use burn::backend::TensorMetadata;
use burn::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::module::{Module, ParamId};
use burn::tensor::Gradients;

use super::checks::Survey;
use super::model::{Found, Sums, look, put, take};
use super::pass::{Entry, Pass, Progress, Purpose};
use super::report::{Outcome, StepReport};
use super::{HERE, ReleaseOptimizer};
use crate::backward::{self, Frame};
use crate::error::{Refused, ReleaseError, expect};
use crate::gradients::GradNorm;
use crate::marks;
use crate::recompute::{check_outside_of_scopes, forget_random};
use crate::wide::is_half;

/// Runs backward once for several optimizers or models: `parts` is a tuple of what
/// [`stepping`](ReleaseOptimizer::stepping), [`accumulating`](ReleaseOptimizer::accumulating) and
/// [`measuring`](ReleaseOptimizer::measuring) return. Returns what each of them gives back, and the
/// gradients of all that is in none of the models.
///
/// One optimizer steps several models as a tuple: `optim.backward(lr, loss, (a, b))`. A parameter that is
/// in two parts is the first one's, as with Burn's `GradientsParams`.
///
/// ```
/// use burn::nn::{Linear, LinearConfig};
/// use burn::optim::{AdamWConfig, SgdConfig};
/// use burn::tensor::{Device, Tensor};
/// use burn_lean::{WithGradientRelease, backward};
///
/// let device = Device::flex().autodiff();
/// let encoder: Linear = LinearConfig::new(8, 4).init(&device);
/// let decoder: Linear = LinearConfig::new(4, 8).init(&device);
/// let mut adam = AdamWConfig::new().init().with_gradient_release();
/// let mut sgd = SgdConfig::new().init().with_gradient_release();
///
/// let x = Tensor::<2>::ones([2, 8], &device);
/// let loss = decoder.forward(encoder.forward(x)).square().mean();
/// let parts = (adam.stepping(1e-3, encoder), sgd.stepping(1e-2, decoder));
/// let ((encoder, decoder), _) = backward(loss, parts);
/// # let _ = (encoder, decoder);
/// ```
///
/// A part has its optimizer and its model until the pass is over. So an optimizer is in one part:
///
/// ```compile_fail,E0499
/// # use burn::nn::{Linear, LinearConfig};
/// # use burn::optim::AdamWConfig;
/// # use burn::tensor::{Device, Tensor};
/// # use burn_lean::{WithGradientRelease, backward};
/// # let device = Device::flex().autodiff();
/// # let a: Linear = LinearConfig::new(8, 8).init(&device);
/// # let b: Linear = LinearConfig::new(8, 8).init(&device);
/// # let x = Tensor::<2>::ones([2, 8], &device);
/// # let mut optim = AdamWConfig::new().init().with_gradient_release();
/// let loss = b.forward(a.forward(x)).mean();
/// let parts = (optim.stepping(1e-3, a), optim.stepping(1e-3, b));
/// backward(loss, parts);
/// ```
///
/// No other code reads the model that a part steps:
///
/// ```compile_fail,E0382
/// # use burn::nn::{Linear, LinearConfig};
/// # use burn::optim::AdamWConfig;
/// # use burn::tensor::{Device, Tensor};
/// # use burn_lean::{WithGradientRelease, backward};
/// # let device = Device::flex().autodiff();
/// # let a: Linear = LinearConfig::new(8, 8).init(&device);
/// # let b: Linear = LinearConfig::new(8, 8).init(&device);
/// # let x = Tensor::<2>::ones([2, 8], &device);
/// # let mut optim = AdamWConfig::new().init().with_gradient_release();
/// let loss = b.forward(a.forward(x.clone())).mean();
/// let part = optim.stepping(1e-3, a);
/// a.forward(x); // the part has it
/// backward(loss, part);
/// ```
///
/// And no pass runs twice:
///
/// ```compile_fail,E0382
/// # use burn::nn::{Linear, LinearConfig};
/// # use burn::optim::AdamWConfig;
/// # use burn::tensor::{Device, Tensor};
/// # use burn_lean::{WithGradientRelease, backward};
/// # let device = Device::flex().autodiff();
/// # let a: Linear = LinearConfig::new(8, 8).init(&device);
/// # let b: Linear = LinearConfig::new(8, 8).init(&device);
/// # let x = Tensor::<2>::ones([2, 8], &device);
/// # let mut optim = AdamWConfig::new().init().with_gradient_release();
/// let (first, second) = (a.forward(x.clone()).mean(), a.forward(x).mean());
/// let part = optim.accumulating(&a);
/// backward(first, part);
/// backward(second, part);
/// ```
///
/// # Panics
///
/// With the text of the [`ReleaseError`] that [`try_backward`] returns.
pub fn backward<P: Part, const D: usize>(loss: Tensor<D>, parts: P) -> (P::Output, Gradients) {
    expect(try_backward(loss, parts).map_err(ReleaseError::from))
}

/// [`backward()`], which hands back where it refuses: the models, and the loss if backward has not run.
///
/// # Errors
///
/// A [`ReleaseError`], with nothing changed if the loss is handed back. After that, no parameter was
/// stepped where the error says so; else load the last checkpoint.
pub fn try_backward<P: Part, const D: usize>(
    loss: Tensor<D>,
    mut parts: P,
) -> Result<(P::Output, Gradients), RefusedPass<P, D>> {
    let checked = check_outside_of_scopes().and_then(|()| match loss.is_tracked() {
        true => parts.check(),
        false => Err(ReleaseError::NotInGraph),
    });
    if let Err(error) = checked {
        return Err(Refused::with_grads(parts.give_back(), Some(loss), error));
    }
    forget_random();
    let mut frame = Frame::default();
    if let Err(error) = parts.begin(&mut frame) {
        return Err(Refused::with_grads(parts.give_back(), Some(loss), error));
    }
    let (grads, is_understood) = backward::backward(loss.into_dispatch(), &frame);
    frame.finish();
    drop(frame);
    let ended = match is_understood {
        true => parts.end(),
        false => Err(unknown_tape()),
    };
    match ended {
        Ok(()) => Ok((parts.output(), grads)),
        Err(error) => Err(Refused::with_grads(parts.give_back(), None, error)),
    }
}

fn unknown_tape() -> ReleaseError {
    ReleaseError::Tape {
        reason:
            "this version of Burn writes its tape in another way than those that burn-lean knows, \
                 and nothing was stepped; take a version of Burn that its `Cargo.toml` names"
                .into(),
    }
}

/// A refused pass, with the models, and with the loss if backward has not run.
pub type RefusedPass<P, const D: usize> = Refused<<P as sealed::Run>::Given, Option<Tensor<D>>>;

/// A part of a backward pass: an optimizer with what it does, or a tuple of such.
pub trait Part: sealed::Run {}

impl<P: sealed::Run> Part for P {}

pub(super) mod sealed {
    use super::{Frame, ReleaseError};

    pub trait Run {
        /// What the pass gives back: the model that was stepped, or the norm that was measured.
        type Output;
        /// What is handed back where the pass is refused.
        type Given;

        /// Whether the pass can begin. Nothing has changed.
        fn check(&mut self) -> Result<(), ReleaseError>;
        /// Nothing has changed after an error.
        fn begin(&mut self, frame: &mut Frame) -> Result<(), ReleaseError>;
        /// Ends what backward has begun.
        fn end(&mut self) -> Result<(), ReleaseError>;
        fn output(self) -> Self::Output;
        fn give_back(self) -> Self::Given;
    }
}

/// An optimizer that steps a model in the next backward pass: see
/// [`stepping`](ReleaseOptimizer::stepping).
#[must_use = "`backward` runs it"]
pub struct Stepping<'a, M> {
    held: Held<'a>,
    lr: ModuleLearningRate,
    model: Option<M>,
}

/// An optimizer that adds the gradients of the next backward pass to its sums: see
/// [`accumulating`](ReleaseOptimizer::accumulating).
#[must_use = "`backward` runs it"]
pub struct Accumulating<'a, M> {
    held: Held<'a>,
    model: &'a M,
}

/// An optimizer that measures the norm of the gradients of the next backward pass: see
/// [`measuring`](ReleaseOptimizer::measuring).
#[must_use = "`backward` runs it"]
pub struct Measuring<'a, M> {
    held: Held<'a>,
    model: &'a M,
    measured: Option<GradNorm>,
}

impl ReleaseOptimizer {
    /// Steps a model in one backward pass with others: a part for [`backward()`]. `lr` is a number, or a
    /// [`ModuleLearningRate`] with rates for groups of parameters.
    pub fn stepping<M: Module>(
        &mut self,
        lr: impl Into<ModuleLearningRate>,
        model: M,
    ) -> Stepping<'_, M> {
        Stepping {
            held: Held::new(self),
            lr: lr.into(),
            model: Some(model),
        }
    }

    /// Adds gradients to the sums of a window in one backward pass with others: a part for
    /// [`backward()`].
    pub fn accumulating<'a, M: Module>(&'a mut self, model: &'a M) -> Accumulating<'a, M> {
        Accumulating {
            held: Held::new(self),
            model,
        }
    }

    /// Measures gradients in one backward pass with others: a part for [`backward()`].
    pub fn measuring<'a, M: Module>(&'a mut self, model: &'a M) -> Measuring<'a, M> {
        Measuring {
            held: Held::new(self),
            model,
            measured: None,
        }
    }
}

/// An optimizer, and what it has given to the pass that runs. It has it back when this is dropped, also
/// by a panic.
struct Held<'a> {
    optimizer: &'a mut ReleaseOptimizer,
    pass: Option<Rc<Pass>>,
    survey: Survey,
    /// What a pass has left.
    entries: Vec<Entry>,
}

impl<'a> Held<'a> {
    fn new(optimizer: &'a mut ReleaseOptimizer) -> Self {
        Self {
            optimizer,
            pass: None,
            survey: Survey::default(),
            entries: Vec::new(),
        }
    }

    fn check<M: Module>(&mut self, model: &M) -> Result<(), ReleaseError> {
        self.survey = self.optimizer.check(model)?;
        let has_sums = !self.optimizer.sums.is_empty();
        self.optimizer
            .stepper()
            .pipeline
            .check_scaled(has_sums, true)
    }

    fn begin(
        &mut self,
        found: Found,
        purpose: Purpose,
        frame: &mut Frame,
    ) -> Result<(), ReleaseError> {
        let pass = self.start(found.entries, purpose);
        let mut are_taken = !found.leaves.is_empty();
        for leaf in found.leaves {
            let (owner, place) = (pass.clone(), leaf.place);
            are_taken &= !frame.wait_for(leaf.node, leaf.take, None, owner, place);
        }
        if !are_taken {
            return Ok(());
        }
        // Another part has the whole model, and this one would get nothing.
        let path = pass.state().entries[0].path.to_string();
        let (first, second) = (path.clone(), path);
        Err(ReleaseError::DuplicateParam { first, second })
    }

    fn start(&mut self, entries: Vec<Entry>, purpose: Purpose) -> Rc<Pass> {
        let stepper = self.optimizer.stepper.take().expect(HERE);
        if let Some(in_flight) = &stepper.in_flight {
            in_flight.begin_pass();
        }
        let pass = Rc::new(Pass::new(entries, purpose, stepper));
        self.pass = Some(pass.clone());
        pass
    }

    /// Steps, or measures, what backward has left. Returns how far the pass has come.
    fn end(&mut self) -> Result<Progress, ReleaseError> {
        let pass = self.pass.clone().expect("the pass has begun");
        pass.state().end_backward();
        let progress = self.close();
        match pass.state().stop.take() {
            None => Ok(progress),
            Some(error) => {
                if progress.stepped > 0 {
                    self.optimizer.interrupted = Some((progress.stepped, self.entries.len()));
                }
                self.optimizer.stepper_mut().pipeline.forget_measured();
                Err(error)
            }
        }
    }

    /// Takes everything back from the pass, if it was not taken back yet.
    fn close(&mut self) -> Progress {
        let Some(pass) = self.pass.take() else {
            return Progress::default();
        };
        let mut state = pass.state();
        self.optimizer.stepper = state.stepper.take();
        self.entries = std::mem::take(&mut state.entries);
        for entry in &mut self.entries {
            if let Some(sum) = entry.sum.take() {
                self.optimizer.sums.insert(entry.id, sum);
            }
        }
        state.progress
    }

    /// The outcomes of a step, in the order of the model's fields.
    fn outcomes(&self) -> Vec<(ParamId, Outcome)> {
        let entries = self.entries.iter();
        entries.map(|entry| (entry.id, entry.outcome)).collect()
    }

    fn late(&self) -> Vec<ParamId> {
        let late = self.entries.iter().filter(|entry| entry.is_late);
        late.map(|entry| entry.id).collect()
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if self.pass.is_none() {
            return;
        }
        // Backward has panicked, unless it was refused before it stepped anything.
        let progress = self.close();
        if progress.is_stepping || progress.stepped > 0 || progress.has_added {
            self.optimizer.interrupted = Some((progress.stepped, self.entries.len()));
        }
        self.optimizer.stepper_mut().pipeline.forget_measured();
    }
}

impl<M: Module> Stepping<'_, M> {
    /// Steps with gradients that exist already, when it [ends](sealed::Run::end).
    pub(super) fn begin_ordinary(&mut self, survey: Survey, mut grads: Sums) {
        let model = self.model.take().expect(MODEL);
        let (model, mut found) = take(model, &survey, &mut grads);
        self.model = Some(model);
        for entry in &mut found.entries {
            let is_wide = entry.sum.as_ref().is_some_and(|sum| !is_half(sum.dtype()));
            let stepper = self.held.optimizer.stepper();
            entry.takes_f32 = is_wide && survey.takes_f32(stepper, entry.id);
        }
        self.held.survey = survey;
        self.held
            .start(found.entries, Purpose::Step(self.lr.clone()));
    }
}

impl<M: Module> sealed::Run for Stepping<'_, M> {
    type Output = M;
    type Given = M;

    fn check(&mut self) -> Result<(), ReleaseError> {
        let model = self.model.as_ref().expect(MODEL);
        self.held.check(model)?;
        self.held.survey.check_rates(&self.lr)?;
        self.held.optimizer.check_steps(&self.held.survey)?;
        self.held.optimizer.stepper().pipeline.check_measured()
    }

    fn begin(&mut self, frame: &mut Frame) -> Result<(), ReleaseError> {
        let model = self.model.take().expect(MODEL);
        marks::parameters(&model);
        let (model, found) = take(model, &self.held.survey, &mut self.held.optimizer.sums);
        self.model = Some(model);
        self.held
            .begin(found, Purpose::Step(self.lr.clone()), frame)
    }

    fn end(&mut self) -> Result<(), ReleaseError> {
        let progress = self.held.end()?;
        let report = StepReport {
            outcomes: self.held.outcomes(),
            late: self.held.late(),
            in_place: progress.in_place,
            ..StepReport::default()
        };
        let params = self.held.survey.ids();
        self.held.optimizer.end_step(report, &params, &self.lr)
    }

    fn output(self) -> M {
        let model = self.give_back();
        // A weight may have come from another replica.
        marks::parameters(&model);
        model
    }

    fn give_back(mut self) -> M {
        self.held.close();
        let entries = std::mem::take(&mut self.held.entries);
        put(self.model.take().expect(MODEL), entries)
    }
}

impl<M: Module> sealed::Run for Accumulating<'_, M> {
    type Output = ();
    type Given = ();

    fn check(&mut self) -> Result<(), ReleaseError> {
        self.held.check(self.model)
    }

    fn begin(&mut self, frame: &mut Frame) -> Result<(), ReleaseError> {
        let optimizer = &mut *self.held.optimizer;
        let has_sums = optimizer.has_sums();
        let pipeline = &mut optimizer.stepper_mut().pipeline;
        // The norm of the window is another one from here on.
        pipeline.forget_measured();
        if !has_sums {
            pipeline.begin_window();
        }
        let in_f32 = optimizer.sums_are_in_f32();
        let found = look(self.model, &self.held.survey, &mut optimizer.sums);
        self.held
            .begin(found, Purpose::Accumulate { in_f32 }, frame)
    }

    fn end(&mut self) -> Result<(), ReleaseError> {
        self.held.end()?;
        self.held.optimizer.stepper().pipeline.end_pass();
        Ok(())
    }

    fn output(self) {}

    fn give_back(mut self) {
        self.held.close();
    }
}

impl<M: Module> sealed::Run for Measuring<'_, M> {
    type Output = GradNorm;
    type Given = ();

    fn check(&mut self) -> Result<(), ReleaseError> {
        self.held.check(self.model)?;
        self.held.optimizer.check_steps(&self.held.survey)
    }

    fn begin(&mut self, frame: &mut Frame) -> Result<(), ReleaseError> {
        let optimizer = &mut *self.held.optimizer;
        optimizer.stepper_mut().pipeline.forget_measured();
        let found = look(self.model, &self.held.survey, &mut optimizer.sums);
        self.held.begin(found, Purpose::Measure, frame)
    }

    fn end(&mut self) -> Result<(), ReleaseError> {
        self.held.end()?;
        let Held {
            optimizer,
            survey,
            entries,
            ..
        } = &mut self.held;
        let measured = optimizer.end_measuring(survey, entries)?;
        self.measured = Some(measured);
        Ok(())
    }

    fn output(self) -> GradNorm {
        self.measured.expect("the pass has ended")
    }

    fn give_back(mut self) {
        self.held.close();
    }
}

const MODEL: &str = "it is here but while it is mapped";

macro_rules! tuples {
    ($($part:ident $at:tt),+) => {
        impl<$($part: sealed::Run),+> sealed::Run for ($($part,)+) {
            type Output = ($($part::Output,)+);
            type Given = ($($part::Given,)+);

            fn check(&mut self) -> Result<(), ReleaseError> {
                $(self.$at.check()?;)+
                Ok(())
            }

            fn begin(&mut self, frame: &mut Frame) -> Result<(), ReleaseError> {
                $(self.$at.begin(frame)?;)+
                Ok(())
            }

            fn end(&mut self) -> Result<(), ReleaseError> {
                // All of them end, also after an error of one.
                let mut ended = Ok(());
                $(ended = ended.and(self.$at.end());)+
                ended
            }

            fn output(self) -> Self::Output {
                ($(self.$at.output(),)+)
            }

            fn give_back(self) -> Self::Given {
                ($(self.$at.give_back(),)+)
            }
        }
    };
}

tuples!(A 0);
tuples!(A 0, B 1);
tuples!(A 0, B 1, C 2);
tuples!(A 0, B 1, C 2, D 3);

macro_rules! debug {
    ($($part:ident),+) => {$(
        // A model need not be `Debug`.
        impl<M> std::fmt::Debug for $part<'_, M> {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                let mut debug = f.debug_struct(stringify!($part));
                debug.field("optimizer", &self.held.optimizer).finish_non_exhaustive()
            }
        }
    )+};
}

debug!(Stepping, Accumulating, Measuring);
