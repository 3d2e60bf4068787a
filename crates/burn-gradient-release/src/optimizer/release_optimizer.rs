//! The optimizer a user holds.

use std::marker::PhantomData;

use burn::{
    grad_clipping::GradientClipping,
    lr_scheduler::LrScheduler,
    module::AutodiffModule,
    optim::{
        GradientsParams, LearningRate, MultiGradientsParams, Optimizer, SimpleOptimizer,
        adaptor::OptimizerAdaptor,
    },
};

use super::{
    error::{Refused, ReleaseError},
    rate::OwnedRate,
    report::StepReport,
    session::{self, DepthHints, Grads, Session},
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
    hints: DepthHints,
    session: Option<Session<B::InnerBackend>>,
    rate: Option<OwnedRate>,
    report: Option<StepReport>,
    /// What makes the states worthless until a record is loaded.
    fault: Option<ReleaseError>,
    module: PhantomData<fn(M) -> M>,
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
            hints: DepthHints::new(),
            session: None,
            rate: None,
            report: None,
            fault: None,
            module: PhantomData,
        }
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
        self.session.is_some()
    }

    /// What happened to each parameter in the last finished step.
    pub fn last_step(&self) -> Option<&StepReport> {
        self.report.as_ref()
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
        match self.check_arm(lr, &model) {
            Ok(()) => Ok(self.arm_checked(lr, model)),
            Err(error) => Err(Refused::new(model, error)),
        }
    }

    fn check_arm(&mut self, lr: LearningRate, model: &M) -> Result<(), ReleaseError> {
        self.check_idle()?;
        if let Some(owned) = self.rate.as_mut().map(OwnedRate::upcoming)
            && owned.to_bits() != lr.to_bits()
        {
            return Err(ReleaseError::OwnedLearningRate { owned, given: lr });
        }
        session::check_arm::<B, M>(self.session.as_ref(), model)
    }

    fn arm_checked(&mut self, lr: LearningRate, model: M) -> M {
        self.session = None;
        let (session, model) = session::arm(&self.stepper, &self.hints, lr, model);
        self.session = Some(session);
        model
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
        if let Err(error) = self.check_idle() {
            return Err(Refused::new(model, error));
        }
        self.session = None;
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
        let session = self.session.take();
        // Stands if the optimizer panics below: the model is gone then, and the states are mixed.
        self.fault = Some(ReleaseError::Interrupted {
            stepped: session.as_ref().map_or(0, Session::stepped),
            armed: session.as_ref().map_or(0, Session::armed),
        });
        let (report, model) =
            session::finish(&self.stepper, &mut self.hints, lr, session, model, grads);
        self.fault = None;
        self.report = Some(report);
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
        self.check_fault()?;
        let armed = match &self.session {
            Some(session) => Some(session.learning_rate()),
            None => self.rate.as_mut().map(OwnedRate::upcoming),
        };
        if let Some(armed) = armed
            && armed.to_bits() != given.to_bits()
        {
            return Err(ReleaseError::LearningRate { armed, given });
        }
        let Some(session) = &self.session else {
            return Ok(());
        };
        if let (Grads::Multi(_), stepped @ 1..) = (grads, session.stepped()) {
            return Err(ReleaseError::MultiDevice {
                stepped,
                armed: session.armed(),
            });
        }
        session::check_finish::<B, M>(session, model, grads)
    }

    /// [`Optimizer::to_record`], refusing states that are half old, half new.
    ///
    /// # Errors
    ///
    /// [`Unfinished`](ReleaseError::Unfinished) or [`Interrupted`](ReleaseError::Interrupted)
    /// after a backward.
    pub fn try_to_record(&self) -> Result<Records<O, B>, ReleaseError> {
        self.check_idle()?;
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
    pub fn try_into_adaptor(mut self) -> Result<OptimizerAdaptor<O, M, B>, ReleaseError> {
        self.check_idle()?;
        self.session = None;
        let mut adaptor = OptimizerAdaptor::from(self.stepper.optim.clone());
        if let Some(clipping) = self.stepper.grad_clipping.clone() {
            adaptor = adaptor.with_grad_clipping(clipping);
        }
        Ok(adaptor.load_record(self.stepper.records()))
    }

    /// Refuses while a backward waits for its `step`.
    fn check_idle(&self) -> Result<(), ReleaseError> {
        self.check_fault()?;
        match &self.session {
            Some(session) if session.stepped() > 0 => Err(ReleaseError::Unfinished {
                stepped: session.stepped(),
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
                stepped: session.stepped(),
                armed: session.armed(),
            }),
            _ => Ok(()),
        }
    }
}

/// The panicking twin of a fallible call; Burn's [`Optimizer`] leaves no other way.
fn expect<T, E: std::fmt::Display>(result: Result<T, E>) -> T {
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
        self.session = None;
        self.fault = None;
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
        Self {
            stepper: self.stepper.fork(),
            hints: self.hints.clone(),
            session: None,
            rate: self.rate.clone(),
            report: self.report.clone(),
            fault: self.check_idle().err(),
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
