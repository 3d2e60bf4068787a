//! The optimizer a user holds.

use std::marker::PhantomData;

use burn::{
    grad_clipping::GradientClipping,
    lr_scheduler::LrScheduler,
    module::AutodiffModule,
    optim::{
        GradientsParams, LearningRate, MultiGradientsParams, Optimizer, SimpleOptimizer,
        adaptor::{GradAdaptor, OptimizerAdaptor},
    },
};

use super::{
    arming::{self, Step},
    error::{Refused, ReleaseError},
    finish::{self, Grads},
    handle,
    rate::OwnedRate,
    report::StepReport,
    session,
    shared_state::SharedState,
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
    state: SharedState<B::InnerBackend>,
    module: PhantomData<fn(M) -> M>,
}

/// What a handle to an optimizer shares with it, which does not depend on the module.
struct HandleParts<O, B>
where
    O: SimpleOptimizer<B::InnerBackend>,
    B: ReleaseBackend,
{
    stepper: Stepper<O, B>,
    state: SharedState<B::InnerBackend>,
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
            state: SharedState::new(),
            module: PhantomData,
        }
    }

    /// A second handle to an optimizer that its owner keeps private, such as the one inside
    /// burn-train's `Learner`: it steps with the same states, and what one handle arms the other
    /// finishes. This is what a training strategy arms with.
    ///
    /// The owner is cloned, and the clone dropped. `None` if it has no optimizer of this type. The
    /// handle is to the optimizer the owner has now: ask for it after a record was loaded.
    pub fn handle_of<T: Clone>(owner: &T) -> Option<Self> {
        let parts: HandleParts<O, B> = handle::capture(|| drop(owner.clone()))?;
        Some(Self {
            stepper: parts.stepper,
            // The owner's own optimizer holds its `step` to a rate it owns.
            rate: None,
            state: parts.state,
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

    /// The scheduler the optimizer owns, if it is of type `S`: as it is after the last finished step,
    /// so that its record resumes where the optimizer's does.
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
        self.state.armed().is_some()
    }

    /// The rate of the next step: what the model is armed with, or what the rate that the optimizer
    /// owns will be. `None` if the next call decides.
    pub fn next_learning_rate(&self) -> Option<LearningRate> {
        let owned = || self.rate.as_ref().map(OwnedRate::peek);
        self.state.armed().or_else(owned)
    }

    /// Refuses while a backward has stepped parameters and `step` has not finished that step.
    ///
    /// # Errors
    ///
    /// [`Unfinished`](ReleaseError::Unfinished), or [`Interrupted`](ReleaseError::Interrupted) after
    /// a backward that panicked half way.
    pub fn check_finished(&self) -> Result<(), ReleaseError> {
        self.state.check_idle()
    }

    /// What happened to each parameter in the last finished step.
    pub fn last_step(&self) -> Option<StepReport> {
        self.state.report()
    }

    /// Arms the model for one optimizer step: until [`step`](Optimizer::step) every parameter that
    /// requires gradients is stepped inside backward with this learning rate.
    ///
    /// Arming again before a backward replaces the rate, for forward passes that have run already,
    /// too. Clones of the model keep the values they have.
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
    /// - [`Abandoned`](ReleaseError::Abandoned): another optimizer stepped a parameter and is gone;
    /// - [`OwnedLearningRate`](ReleaseError::OwnedLearningRate): the optimizer owns another rate.
    pub fn try_arm(&mut self, lr: LearningRate, model: M) -> Result<M, Refused<M>> {
        match self.check_arm(lr, &model) {
            Ok(()) => Ok(self.arm_checked(lr, model, GradientsParams::new())),
            Err(error) => Err(Refused::new(model, error)),
        }
    }

    /// Arms the model for the last micro-batch of an optimizer step, with the gradients that Burn's
    /// [`GradientsAccumulator`](burn::optim::GradientsAccumulator) holds from the earlier ones: each
    /// parameter is stepped inside backward with its held sum plus the new gradient, and both are
    /// freed.
    ///
    /// The earlier micro-batches run unarmed. Arming again keeps the gradients and adds those it is
    /// given; disarming drops them.
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

    /// [`arm_accumulated`](Self::arm_accumulated), handing model and gradients back where it refuses.
    ///
    /// # Errors
    ///
    /// As [`try_arm`](Self::try_arm).
    pub fn try_arm_accumulated(
        &mut self,
        lr: LearningRate,
        model: M,
        grads: GradientsParams,
    ) -> Result<M, Refused<M, GradientsParams>> {
        match self.check_arm(lr, &model) {
            Ok(()) => Ok(self.arm_checked(lr, model, grads)),
            Err(error) => Err(Refused::with_grads(model, grads, error)),
        }
    }

    fn arm_checked(&mut self, lr: LearningRate, model: M, grads: GradientsParams) -> M {
        let before = self.state.take_session();
        if let Some(before) = &before {
            before.free_discarded();
        }
        let (armed, model) = arming::arm(&self.plan(lr), model);
        self.state.arm(lr, armed.replace(before, grads));
        model
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
    /// out a parameter; with the gradients.
    pub fn try_arm_by_fork(
        &mut self,
        lr: LearningRate,
        copy: M,
        grads: GradientsParams,
        fork: impl FnOnce(),
    ) -> Result<(), Refused<(), GradientsParams>> {
        let armed = self
            .check_arm(lr, &copy)
            .and_then(|()| arming::arm_by_fork(&self.plan(lr), copy, fork));
        match armed {
            Ok(armed) => {
                let before = self.state.take_session();
                self.state.arm(lr, armed.replace(before, grads));
                Ok(())
            }
            Err(error) => Err(Refused::with_grads((), grads, error)),
        }
    }

    fn plan(&self, learning_rate: LearningRate) -> Step<'_, O, B> {
        Step {
            stepper: &self.stepper,
            learning_rate,
        }
    }

    fn check_arm(&mut self, lr: LearningRate, model: &M) -> Result<(), ReleaseError> {
        self.state.check_idle()?;
        self.check_owned_rate(lr)?;
        self.check_arm_params(model)
    }

    fn check_arm_params(&self, model: &M) -> Result<(), ReleaseError> {
        self.state
            .with_session(|session| arming::check_arm::<B, M>(session, model))
    }

    fn check_owned_rate(&mut self, given: LearningRate) -> Result<(), ReleaseError> {
        match self.rate.as_mut().map(OwnedRate::upcoming) {
            Some(owned) if owned.to_bits() != given.to_bits() => {
                Err(ReleaseError::OwnedLearningRate { owned, given })
            }
            _ => Ok(()),
        }
    }

    /// Takes the arming back: the model is an ordinary one again, and a forward pass that has run
    /// already gives ordinary gradients. Gradients it was armed with are dropped.
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
    /// after a backward; [`ArmedElsewhere`](ReleaseError::ArmedElsewhere) or
    /// [`Abandoned`](ReleaseError::Abandoned) for a model that another optimizer has armed.
    pub fn try_disarm(&mut self, model: M) -> Result<M, Refused<M>> {
        let own = |session: Option<&_>| arming::check_own::<B, M>(session, &model);
        let checked = self.state.check_idle();
        if let Err(error) = checked.and_then(|()| self.state.with_session(own)) {
            return Err(Refused::new(model, error));
        }
        if let Some(session) = self.state.take_session() {
            session.free_discarded();
        }
        Ok(session::disarm::<B, M>(model))
    }

    /// [`Optimizer::step`], handing model and gradients back where it refuses.
    ///
    /// # Errors
    ///
    /// - [`LearningRate`](ReleaseError::LearningRate): another rate than the one applied;
    /// - [`AlreadyStepped`](ReleaseError::AlreadyStepped): a gradient for a parameter that was
    ///   stepped inside an earlier backward;
    /// - [`Unclaimed`](ReleaseError::Unclaimed): nobody asked for the gradient of a parameter that
    ///   was stepped;
    /// - [`WrongModel`](ReleaseError::WrongModel): the stepped parameters are not in this model;
    /// - [`ArmedElsewhere`](ReleaseError::ArmedElsewhere), [`Abandoned`](ReleaseError::Abandoned): a
    ///   parameter was stepped by another optimizer, which has not finished;
    /// - [`DuplicateParam`](ReleaseError::DuplicateParam): the optimizer owns its rate and would arm
    ///   a model in which two parameters share an id;
    /// - [`Interrupted`](ReleaseError::Interrupted): the backward panicked half way.
    pub fn try_step(
        &mut self,
        lr: LearningRate,
        model: M,
        grads: GradientsParams,
    ) -> Result<M, Refused<M, GradientsParams>> {
        match self.check_finish(lr, &model, &grads) {
            Ok(()) => Ok(self.finish(lr, model, grads.into())),
            Err(error) => Err(Refused::with_grads(model, grads, error)),
        }
    }

    /// [`Optimizer::step_multi`], handing model and gradients back where it refuses.
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
    ) -> Result<M, Refused<M, MultiGradientsParams>> {
        match self.check_finish(lr, &model, &grads) {
            Ok(()) => Ok(self.finish(lr, model, grads.into())),
            Err(error) => Err(Refused::with_grads(model, grads, error)),
        }
    }

    fn finish(&mut self, lr: LearningRate, model: M, grads: GradAdaptor) -> M {
        let session = self.state.begin_finish();
        if let Some(session) = &session {
            session.free_discarded();
        }
        let (report, model) = finish::finish(&self.stepper, lr, session, model, grads);
        self.state.finish(report);
        match &mut self.rate {
            Some(rate) => {
                rate.applied();
                let next = rate.upcoming();
                self.arm_checked(next, model, GradientsParams::new())
            }
            None => model,
        }
    }

    fn check_finish(
        &mut self,
        given: LearningRate,
        model: &M,
        grads: &impl Grads,
    ) -> Result<(), ReleaseError> {
        self.state.check_fault()?;
        let owned = self.rate.as_mut().map(OwnedRate::upcoming);
        for armed in self.state.armed().into_iter().chain(owned) {
            if armed.to_bits() != given.to_bits() {
                return Err(ReleaseError::LearningRate { armed, given });
            }
        }
        if owned.is_some() {
            // The model will be armed anew, which must not fail once it is stepped.
            self.check_arm_params(model)?;
        }
        self.state.with_session(|session| {
            let stepped = session.map_or(0, |session| session.acted());
            if grads.is_multi() && stepped > 0 {
                let armed = session.map_or(0, |session| session.armed());
                return Err(ReleaseError::MultiDevice { stepped, armed });
            }
            finish::check_finish::<B, M>(session, model, grads)
        })
    }

    /// [`Optimizer::to_record`], refusing states that are half old, half new.
    ///
    /// # Errors
    ///
    /// [`Unfinished`](ReleaseError::Unfinished) or [`Interrupted`](ReleaseError::Interrupted)
    /// after a backward.
    pub fn try_to_record(&self) -> Result<Records<O, B>, ReleaseError> {
        self.state.check_idle()?;
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
        self.state.check_idle()?;
        drop(self.state.take_session());
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

    /// Loads the states, and is the way back after an interrupted step. Disarms: a forward pass that
    /// has run already gives ordinary gradients.
    fn load_record(mut self, record: Self::Record) -> Self {
        drop(self.state.take_session());
        self.state = SharedState::new();
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
        handle::offer(|| HandleParts {
            stepper: self.stepper.clone(),
            state: self.state.share(),
        });
        Self {
            stepper: self.stepper.fork(),
            rate: self.rate.clone(),
            state: self.state.fork(),
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
