//! The optimizer a user holds.

use std::{
    marker::PhantomData,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use burn::{
    grad_clipping::GradientClipping,
    lr_scheduler::LrScheduler,
    module::AutodiffModule,
    optim::{
        GradientsParams, LearningRate, MultiGradientsParams, Optimizer, SimpleOptimizer,
        adaptor::OptimizerAdaptor,
    },
    tensor::backend::Backend,
};

use super::{
    arming::{self, Step},
    error::{Refused, ReleaseError},
    finish::{self, Grads},
    handle,
    rate::OwnedRate,
    report::StepReport,
    session::{self, DepthHints, Session},
    stepper::{Records, Stepper},
};
use crate::ReleaseBackend;

/// Turns Burn's optimizer into one that steps inside the backward pass.
pub trait WithGradientRelease {
    /// The optimizer with gradient release.
    type Output;

    /// Steps each parameter inside backward, once its model is [armed](ReleaseOptimizer::arm).
    ///
    /// Gradient clipping and the states of the optimizer are kept.
    fn with_gradient_release(self) -> Self::Output;
}

impl<O, M, B> WithGradientRelease for OptimizerAdaptor<O, M, B>
where
    O: SimpleOptimizer<B::InnerBackend> + 'static,
    M: AutodiffModule<B>,
    B: ReleaseBackend,
{
    type Output = ReleaseOptimizer<O, M, B>;

    fn with_gradient_release(self) -> Self::Output {
        self.into()
    }
}

/// An [`Optimizer`] that steps every parameter of an armed model inside the backward pass.
///
/// Wraps any [`SimpleOptimizer`] of Burn, with Burn's own gradient clipping, and keeps Burn's
/// record: a checkpoint passes from plain Burn to gradient release and back. Unarmed, it steps as
/// Burn does.
///
/// # Example
///
/// ```
/// use burn::{
///     backend::{Autodiff, Flex},
///     nn::{Linear, LinearConfig},
///     optim::{AdamConfig, GradientsParams, Optimizer},
///     tensor::{Distribution, Tensor},
/// };
/// use burn_gradient_release::{GradientRelease, Outcome, WithGradientRelease};
///
/// type B = GradientRelease<Autodiff<Flex>>;
///
/// let device = Default::default();
/// let mut model: Linear<B> = LinearConfig::new(4, 2).init(&device);
/// let mut optim = AdamConfig::new().init().with_gradient_release();
///
/// model = optim.arm(1e-3, model);
/// let batch = Tensor::<B, 2>::random([8, 4], Distribution::Default, &device);
/// let grads = model.forward(batch).powi_scalar(2).mean().backward();
/// let grads = GradientsParams::from_grads(grads, &model);
/// assert!(grads.is_empty()); // released already
/// model = optim.step(1e-3, model, grads);
///
/// assert_eq!(optim.last_step().unwrap().count(Outcome::Released), 2);
/// # let _ = model;
/// ```
pub struct ReleaseOptimizer<O, M, B>
where
    O: SimpleOptimizer<B::InnerBackend>,
    M: AutodiffModule<B>,
    B: ReleaseBackend,
{
    stepper: Stepper<O, B>,
    rate: Option<OwnedRate>,
    course: Arc<Mutex<Course<B::InnerBackend>>>,
    module: PhantomData<fn(M) -> M>,
}

/// What a handle to an optimizer shares with it, which does not depend on the module.
struct Inside<O, B>
where
    O: SimpleOptimizer<B::InnerBackend>,
    B: ReleaseBackend,
{
    stepper: Stepper<O, B>,
    course: Arc<Mutex<Course<B::InnerBackend>>>,
}

/// Where the optimizer stands from step to step. Shared by its [handles](handle).
struct Course<B: Backend> {
    hints: DepthHints,
    session: Option<Session<B>>,
    /// The rate that the session steps with.
    learning_rate: LearningRate,
    report: Option<StepReport>,
    /// What makes the states worthless until a record is loaded.
    fault: Option<ReleaseError>,
}

impl<B: Backend> Course<B> {
    fn new(hints: DepthHints) -> Self {
        Self {
            hints,
            session: None,
            learning_rate: 0.0,
            report: None,
            fault: None,
        }
    }

    /// Refuses while a backward waits for its `step`.
    fn check_idle(&self) -> Result<(), ReleaseError> {
        self.check_fault()?;
        match &self.session {
            Some(session) if session.acted() > 0 => Err(ReleaseError::Unfinished {
                stepped: session.acted(),
                armed: session.armed(),
            }),
            _ => Ok(()),
        }
    }

    fn check_fault(&self) -> Result<(), ReleaseError> {
        if let Some(fault) = &self.fault {
            return Err(fault.clone());
        }
        match &self.session {
            Some(session) if session.is_interrupted() => Err(ReleaseError::Interrupted {
                stepped: session.acted(),
                armed: session.armed(),
            }),
            _ => Ok(()),
        }
    }
}

impl<O, M, B> From<OptimizerAdaptor<O, M, B>> for ReleaseOptimizer<O, M, B>
where
    O: SimpleOptimizer<B::InnerBackend> + 'static,
    M: AutodiffModule<B>,
    B: ReleaseBackend,
{
    fn from(adaptor: OptimizerAdaptor<O, M, B>) -> Self {
        Self::new(Stepper::new(
            adaptor.optim().clone(),
            adaptor.grad_clipping().cloned(),
            adaptor.to_record(),
        ))
    }
}

impl<O, M, B> From<O> for ReleaseOptimizer<O, M, B>
where
    O: SimpleOptimizer<B::InnerBackend> + 'static,
    M: AutodiffModule<B>,
    B: ReleaseBackend,
{
    fn from(optim: O) -> Self {
        OptimizerAdaptor::from(optim).into()
    }
}

impl<O, M, B> ReleaseOptimizer<O, M, B>
where
    O: SimpleOptimizer<B::InnerBackend> + 'static,
    M: AutodiffModule<B>,
    B: ReleaseBackend,
{
    fn new(stepper: Stepper<O, B>) -> Self {
        Self {
            stepper,
            rate: None,
            course: Arc::new(Mutex::new(Course::new(DepthHints::new()))),
            module: PhantomData,
        }
    }

    fn course(&self) -> MutexGuard<'_, Course<B::InnerBackend>> {
        // A panic in the middle of a step leaves a fault behind, which says all there is to say.
        self.course.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A second handle to an optimizer that its owner keeps private, such as the one inside
    /// burn-train's `Learner`: it steps with the same states, and what one handle arms the other
    /// finishes. This is what a training strategy arms with.
    ///
    /// The owner is cloned, and the clone dropped. `None` if it has no optimizer of this type. The
    /// handle is to the optimizer the owner has now: ask for it after a record was loaded.
    pub fn handle_of<T: Clone>(owner: &T) -> Option<Self> {
        let inside: Inside<O, B> = handle::capture(|| drop(owner.clone()))?;
        Some(Self {
            stepper: inside.stepper,
            // The owner's own optimizer holds its `step` to a rate it owns.
            rate: None,
            course: inside.course,
            module: PhantomData,
        })
    }

    /// Clips every gradient before its step, as Burn does: each parameter's by itself.
    pub fn with_grad_clipping(mut self, gradient_clipping: GradientClipping) -> Self {
        self.stepper.grad_clipping = Some(gradient_clipping);
        self
    }

    /// Lets the optimizer own a constant learning rate and re-arm the model in every
    /// [`step`](Optimizer::step), so that a training loop need not change at all.
    ///
    /// The first step is armed only if [`arm`](Self::arm) is called once before the loop; else it
    /// is an ordinary one, with all gradients at once. A rate passed to `step` that differs from
    /// the one applied is refused.
    pub fn with_learning_rate(self, learning_rate: LearningRate) -> Self {
        self.with_lr_scheduler(learning_rate)
    }

    /// Lets the optimizer own a scheduler of Burn: like
    /// [`with_learning_rate`](Self::with_learning_rate), with one
    /// [`LrScheduler::step`] for every optimizer step.
    ///
    /// The record of the optimizer is Burn's and has no room for the scheduler: save
    /// [`lr_scheduler`](Self::lr_scheduler)'s own, and load it into the scheduler given here.
    pub fn with_lr_scheduler<S: LrScheduler + 'static>(mut self, scheduler: S) -> Self {
        self.rate = Some(OwnedRate::new(scheduler));
        self
    }

    /// The scheduler the optimizer owns, if it is of type `S`.
    ///
    /// While a model is armed it is one step ahead: it has given the rate of the step under way.
    pub fn lr_scheduler<S: LrScheduler + 'static>(&self) -> Option<&S> {
        self.rate.as_ref()?.scheduler()
    }

    /// Access the wrapped [`SimpleOptimizer`].
    pub fn optim(&self) -> &O {
        &self.stepper.optim
    }

    /// Access the gradient clipping.
    pub fn grad_clipping(&self) -> Option<&GradientClipping> {
        self.stepper.grad_clipping.as_ref()
    }

    /// Whether a model is armed.
    pub fn is_armed(&self) -> bool {
        self.course().session.is_some()
    }

    /// Refuses while a backward has stepped parameters and `step` has not finished that step.
    ///
    /// # Errors
    ///
    /// [`Unfinished`](ReleaseError::Unfinished), or [`Interrupted`](ReleaseError::Interrupted) after
    /// a backward that panicked half way.
    pub fn check_finished(&self) -> Result<(), ReleaseError> {
        self.course().check_idle()
    }

    /// What happened to each parameter in the last finished step.
    pub fn last_step(&self) -> Option<StepReport> {
        self.course().report.clone()
    }

    /// Arms the model for one optimizer step: until [`step`](Optimizer::step) every parameter that
    /// requires gradients is stepped inside backward with this learning rate.
    ///
    /// Arming again before a backward replaces the rate. Clones of the model keep the values they
    /// have.
    ///
    /// # Panics
    ///
    /// With the text of the [`ReleaseError`] that [`try_arm`](Self::try_arm) returns.
    pub fn arm(&mut self, lr: LearningRate, model: M) -> M {
        expect(self.try_arm(lr, model))
    }

    /// [`arm`](Self::arm), handing the model back where it refuses.
    ///
    /// # Errors
    ///
    /// - [`Unfinished`](ReleaseError::Unfinished): a backward has run and its `step` has not;
    /// - [`Interrupted`](ReleaseError::Interrupted): a backward panicked half way;
    /// - [`DuplicateParam`](ReleaseError::DuplicateParam): two parameters share an id;
    /// - [`ArmedElsewhere`](ReleaseError::ArmedElsewhere): another optimizer armed a parameter;
    /// - [`OwnedLearningRate`](ReleaseError::OwnedLearningRate): the optimizer owns another rate.
    pub fn try_arm(&mut self, lr: LearningRate, model: M) -> Result<M, Refused<M>> {
        self.try_arm_accumulated(lr, model, GradientsParams::new())
    }

    /// Arms the model for the last micro-batch of an optimizer step, with the gradients that Burn's
    /// [`GradientsAccumulator`](burn::optim::GradientsAccumulator) holds from the earlier ones: each
    /// parameter is stepped inside backward with its held sum plus the new gradient, and both are
    /// freed.
    ///
    /// The earlier micro-batches run unarmed. Arming again, and disarming, drops the gradients.
    ///
    /// ```
    /// use burn::{
    ///     backend::{Autodiff, Flex},
    ///     nn::{Linear, LinearConfig},
    ///     optim::{AdamConfig, GradientsAccumulator, GradientsParams, Optimizer},
    ///     tensor::{Distribution, Tensor},
    /// };
    /// use burn_gradient_release::{GradientRelease, Outcome, WithGradientRelease};
    ///
    /// type B = GradientRelease<Autodiff<Flex>>;
    ///
    /// let device = Default::default();
    /// let mut model: Linear<B> = LinearConfig::new(4, 2).init(&device);
    /// let mut optim = AdamConfig::new().init().with_gradient_release();
    /// let grads_of = |model: &Linear<B>| {
    ///     let batch = Tensor::<B, 2>::random([8, 4], Distribution::Default, &device);
    ///     let grads = model.forward(batch).powi_scalar(2).mean().backward();
    ///     GradientsParams::from_grads(grads, model)
    /// };
    ///
    /// let mut accumulator = GradientsAccumulator::new();
    /// for _ in 0..3 {
    ///     accumulator.accumulate(&model, grads_of(&model));
    /// }
    /// model = optim.arm_accumulated(1e-3, model, accumulator.grads());
    /// let grads = grads_of(&model);
    /// model = optim.step(1e-3, model, grads);
    ///
    /// assert_eq!(optim.last_step().unwrap().count(Outcome::Released), 2);
    /// # let _ = model;
    /// ```
    ///
    /// # Panics
    ///
    /// With the text of the [`ReleaseError`] that
    /// [`try_arm_accumulated`](Self::try_arm_accumulated) returns.
    pub fn arm_accumulated(&mut self, lr: LearningRate, model: M, grads: GradientsParams) -> M {
        expect(self.try_arm_accumulated(lr, model, grads))
    }

    /// [`arm_accumulated`](Self::arm_accumulated), handing the model back where it refuses.
    ///
    /// # Errors
    ///
    /// As [`try_arm`](Self::try_arm).
    pub fn try_arm_accumulated(
        &mut self,
        lr: LearningRate,
        model: M,
        grads: GradientsParams,
    ) -> Result<M, Refused<M>> {
        if let Err(error) = self.check_arm(lr, &model) {
            return Err(Refused::new(model, error));
        }
        let mut course = self.course();
        course.session = None;
        let (session, model) = arming::arm(&self.plan(lr), &course.hints, grads, model);
        course.session = Some(session);
        course.learning_rate = lr;
        Ok(model)
    }

    /// Arms a model in the hands of an owner that only gives copies of it, such as burn-train's
    /// `Learner`: `copy` is one, and `fork` makes the owner
    /// [fork](burn::module::Module::fork) its model on the device where it is. No other code of the
    /// model runs. `grads` as for [`arm_accumulated`](Self::arm_accumulated), empty without earlier
    /// micro-batches.
    ///
    /// # Errors
    ///
    /// As [`try_arm`](Self::try_arm), and [`NotForked`](ReleaseError::NotForked) if the fork left
    /// out a parameter.
    pub fn try_arm_by_fork(
        &mut self,
        lr: LearningRate,
        copy: M,
        grads: GradientsParams,
        fork: impl FnOnce(),
    ) -> Result<(), ReleaseError> {
        self.check_arm(lr, &copy)?;
        let mut course = self.course();
        course.session = None;
        let session = arming::arm_by_fork(&self.plan(lr), &course.hints, grads, copy, fork)?;
        course.session = Some(session);
        course.learning_rate = lr;
        Ok(())
    }

    fn plan(&self, learning_rate: LearningRate) -> Step<'_, O, B> {
        Step {
            stepper: &self.stepper,
            learning_rate,
        }
    }

    fn check_arm(&mut self, lr: LearningRate, model: &M) -> Result<(), ReleaseError> {
        self.course().check_idle()?;
        self.check_owned_rate(lr)?;
        arming::check_arm::<B, M>(self.course().session.as_ref(), model)
    }

    fn check_owned_rate(&mut self, given: LearningRate) -> Result<(), ReleaseError> {
        match self.rate.as_mut().map(OwnedRate::upcoming) {
            Some(owned) if owned.to_bits() != given.to_bits() => {
                Err(ReleaseError::OwnedLearningRate { owned, given })
            }
            _ => Ok(()),
        }
    }

    /// Takes the arming back: the model is an ordinary one again.
    ///
    /// # Panics
    ///
    /// With the text of the [`ReleaseError`] that [`try_disarm`](Self::try_disarm) returns.
    pub fn disarm(&mut self, model: M) -> M {
        expect(self.try_disarm(model))
    }

    /// [`disarm`](Self::disarm), handing the model back where it refuses.
    ///
    /// # Errors
    ///
    /// [`Unfinished`](ReleaseError::Unfinished) or [`Interrupted`](ReleaseError::Interrupted)
    /// after a backward.
    pub fn try_disarm(&mut self, model: M) -> Result<M, Refused<M>> {
        let checked = self.course().check_idle();
        if let Err(error) = checked {
            return Err(Refused::new(model, error));
        }
        self.course().session = None;
        Ok(session::disarm::<B, M>(model))
    }

    /// [`Optimizer::step`], handing the model back where it refuses.
    ///
    /// # Errors
    ///
    /// - [`LearningRate`](ReleaseError::LearningRate): another rate than the one applied;
    /// - [`AlreadyStepped`](ReleaseError::AlreadyStepped): a gradient for a parameter that was
    ///   stepped inside an earlier backward;
    /// - [`WrongModel`](ReleaseError::WrongModel): the stepped parameters are not in this model;
    /// - [`Interrupted`](ReleaseError::Interrupted): the backward panicked half way.
    pub fn try_step(
        &mut self,
        lr: LearningRate,
        model: M,
        grads: GradientsParams,
    ) -> Result<M, Refused<M>> {
        self.try_finish(lr, model, Grads::Single(grads))
    }

    /// [`Optimizer::step_multi`], handing the model back where it refuses.
    ///
    /// # Errors
    ///
    /// [`MultiDevice`](ReleaseError::MultiDevice) if a parameter was stepped inside backward, with
    /// the gradients of its own device alone; else as [`try_step`](Self::try_step).
    pub fn try_step_multi(
        &mut self,
        lr: LearningRate,
        model: M,
        grads: MultiGradientsParams,
    ) -> Result<M, Refused<M>> {
        self.try_finish(lr, model, Grads::Multi(grads))
    }

    fn try_finish(&mut self, lr: LearningRate, model: M, grads: Grads) -> Result<M, Refused<M>> {
        if let Err(error) = self.check_finish(lr, &model, &grads) {
            return Err(Refused::new(model, error));
        }
        let mut course = self.course();
        let session = course.session.take();
        // Stands if the optimizer panics below: the model is gone then, and the states are mixed.
        course.fault = Some(ReleaseError::Interrupted {
            stepped: session.as_ref().map_or(0, Session::acted),
            armed: session.as_ref().map_or(0, Session::armed),
        });
        let (report, model) =
            finish::finish(&self.stepper, &mut course.hints, lr, session, model, grads);
        course.fault = None;
        course.report = Some(report);
        drop(course);
        let Some(rate) = self.rate.as_mut() else {
            return Ok(model);
        };
        rate.applied();
        let next = rate.upcoming();
        self.try_arm(next, model)
    }

    fn check_finish(
        &mut self,
        given: LearningRate,
        model: &M,
        grads: &Grads,
    ) -> Result<(), ReleaseError> {
        let owned = self.rate.as_mut().map(OwnedRate::upcoming);
        let course = self.course();
        course.check_fault()?;
        let armed = course.session.as_ref().map(|_| course.learning_rate);
        for armed in armed.into_iter().chain(owned) {
            if armed.to_bits() != given.to_bits() {
                return Err(ReleaseError::LearningRate { armed, given });
            }
        }
        let Some(session) = &course.session else {
            return Ok(());
        };
        if let (Grads::Multi(_), stepped @ 1..) = (grads, session.acted()) {
            return Err(ReleaseError::MultiDevice {
                stepped,
                armed: session.armed(),
            });
        }
        finish::check_finish::<B, M>(session, model, grads)
    }

    /// [`Optimizer::to_record`], refusing states that are half old, half new.
    ///
    /// # Errors
    ///
    /// [`Unfinished`](ReleaseError::Unfinished) or [`Interrupted`](ReleaseError::Interrupted)
    /// after a backward.
    pub fn try_to_record(&self) -> Result<Records<O, B>, ReleaseError> {
        self.course().check_idle()?;
        Ok(self.stepper.records())
    }

    /// Removes gradient release: Burn's own optimizer with the states reached so far, step counts
    /// included.
    ///
    /// # Panics
    ///
    /// With the text of the [`ReleaseError`] that
    /// [`try_into_adaptor`](Self::try_into_adaptor) returns.
    pub fn into_adaptor(self) -> OptimizerAdaptor<O, M, B> {
        expect(self.try_into_adaptor())
    }

    /// [`into_adaptor`](Self::into_adaptor), refusing states that are half old, half new. A model
    /// that is still armed is disarmed: its weights can be used as they are.
    ///
    /// # Errors
    ///
    /// [`Unfinished`](ReleaseError::Unfinished) or [`Interrupted`](ReleaseError::Interrupted)
    /// after a backward.
    pub fn try_into_adaptor(self) -> Result<OptimizerAdaptor<O, M, B>, ReleaseError> {
        self.course().check_idle()?;
        self.course().session = None;
        let mut adaptor = OptimizerAdaptor::from(self.stepper.optim.clone());
        if let Some(clipping) = self.stepper.grad_clipping.clone() {
            adaptor = adaptor.with_grad_clipping(clipping);
        }
        Ok(adaptor.load_record(self.stepper.records()))
    }
}

/// The panicking twin of a fallible call; Burn's [`Optimizer`] leaves no other way.
pub(super) fn expect<T, E: std::fmt::Display>(result: Result<T, E>) -> T {
    result.unwrap_or_else(|error| panic!("gradient release: {error}"))
}

impl<O, M, B> Optimizer<M, B> for ReleaseOptimizer<O, M, B>
where
    O: SimpleOptimizer<B::InnerBackend> + 'static,
    M: AutodiffModule<B>,
    B: ReleaseBackend,
{
    type Record = Records<O, B>;

    /// Finishes the step: promotes what backward has stepped, applies the ordinary step to any
    /// gradient that is there, and disarms.
    ///
    /// # Panics
    ///
    /// With the text of the [`ReleaseError`] that [`ReleaseOptimizer::try_step`] returns.
    fn step(&mut self, lr: LearningRate, module: M, grads: GradientsParams) -> M {
        expect(self.try_step(lr, module, grads))
    }

    fn step_multi(&mut self, lr: LearningRate, module: M, grads: MultiGradientsParams) -> M {
        expect(self.try_step_multi(lr, module, grads))
    }

    /// # Panics
    ///
    /// With the text of the [`ReleaseError`] that [`ReleaseOptimizer::try_to_record`] returns.
    fn to_record(&self) -> Self::Record {
        expect(self.try_to_record())
    }

    /// Loads the states, and is the way back after an interrupted step.
    fn load_record(mut self, record: Self::Record) -> Self {
        let hints = {
            let mut course = self.course();
            course.session = None;
            std::mem::take(&mut course.hints)
        };
        self.course = Arc::new(Mutex::new(Course::new(hints)));
        self.stepper = Stepper::new(
            self.stepper.optim.clone(),
            self.stepper.grad_clipping.clone(),
            record,
        );
        self
    }
}

/// A clone has states of its own and is not armed. A clone taken between a backward and its `step`
/// has half of them new, and refuses every call until a record is loaded.
impl<O, M, B> Clone for ReleaseOptimizer<O, M, B>
where
    O: SimpleOptimizer<B::InnerBackend> + 'static,
    M: AutodiffModule<B>,
    B: ReleaseBackend,
{
    fn clone(&self) -> Self {
        handle::offer(|| Inside {
            stepper: self.stepper.clone(),
            course: self.course.clone(),
        });
        let course = self.course();
        Self {
            stepper: self.stepper.fork(),
            rate: self.rate.clone(),
            course: Arc::new(Mutex::new(Course {
                hints: course.hints.clone(),
                session: None,
                learning_rate: course.learning_rate,
                report: course.report.clone(),
                fault: course.check_idle().err(),
            })),
            module: PhantomData,
        }
    }
}

impl<O, M, B> std::fmt::Debug for ReleaseOptimizer<O, M, B>
where
    O: SimpleOptimizer<B::InnerBackend> + 'static,
    M: AutodiffModule<B>,
    B: ReleaseBackend,
{
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReleaseOptimizer")
            .field("armed", &self.is_armed())
            .field("rate", &self.rate)
            .finish_non_exhaustive()
    }
}
