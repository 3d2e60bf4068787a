//! The optimizer as users hold it.

mod arm;
mod measure;
mod step;

use std::{marker::PhantomData, sync::Arc};

use burn::{
    grad_clipping::GradientClipping,
    lr_scheduler::LrScheduler,
    module::AutodiffModule,
    optim::{
        GradientsParams, LearningRate, MultiGradientsParams, Optimizer, SimpleOptimizer,
        adaptor::OptimizerAdaptor,
    },
    tensor::backend::AutodiffBackend,
};

use super::{
    gradients::{GradientRecord, LossScaler, NormClipping},
    group_options::GroupOptions,
    handle,
    rate::OwnedRate,
    report::StepReport,
    shared_state::SharedState,
    stepper::{Records, Stepper},
};
use crate::{
    ReleaseBackend,
    error::{ReleaseError, expect},
    groups::{ModuleLearningRates, ParamGroup},
    planner::Recompute,
    planner::trace::Tracer,
    slot::reduction::GradientReduction,
};

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
///
/// # Panics
///
/// A method with a `try_` twin panics with the text of the [`ReleaseError`] that the twin returns.
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

/// Parts of an optimizer that its handles share. They do not depend on the module.
type HandleParts<O, B> = (
    Stepper<O, B>,
    SharedState<<B as AutodiffBackend>::InnerBackend>,
);

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
    /// finishes. Training strategies arm with it.
    ///
    /// The owner is cloned, and the clone dropped. Returns `None` if it has no optimizer of this
    /// type. The handle belongs to the optimizer that the owner has now: ask for it after loading a
    /// record.
    pub fn handle_of<T: Clone>(owner: &T) -> Option<Self> {
        let parts = handle::capture(|| drop(owner.clone()));
        let (stepper, state): HandleParts<O, B> = parts?;
        Some(Self {
            stepper,
            // The owner's own optimizer checks its `step` against a rate that it owns.
            rate: None,
            state,
            module: PhantomData,
        })
    }

    /// Clips every gradient before its step, as Burn does: each by itself.
    pub fn with_grad_clipping(mut self, gradient_clipping: GradientClipping) -> Self {
        self.stepper.grad_clipping = Some(gradient_clipping);
        self
    }

    /// Clips gradients by norms other than that of a single gradient.
    ///
    /// With a rule that [needs two passes](NormClipping::needs_two_passes), take steps with
    /// [`two_passes`](Self::two_passes): [`arm`](Self::arm) alone is refused. An ordinary `step`
    /// has all gradients, and clips them as well.
    pub fn with_norm_clipping(mut self, clipping: NormClipping) -> Self {
        self.stepper.gradients.clipping = Some(clipping);
        self
    }

    /// Adds the norm of all gradients together to the [report](StepReport::grad_norm) of every
    /// step.
    ///
    /// Each gradient is squared and summed when it is complete, which takes a temporary of its
    /// size.
    pub fn with_grad_norm(mut self) -> Self {
        self.stepper.gradients.measures_norm = true;
        self
    }

    /// Stops at the first gradient that is not finite, before its weight changes: neither that
    /// parameter nor any later one is stepped, and `step` is refused with the path of the parameter
    /// ([`NonFinite`](ReleaseError::NonFinite)). In [two passes](Self::two_passes), and in an
    /// ordinary step, nothing at all is stepped.
    ///
    /// Each norm is read when its gradient is complete: on a GPU this waits for the device. With a
    /// [`LossScaler`] such a gradient is an overflow, and is skipped.
    pub fn with_non_finite_stop(mut self) -> Self {
        self.stepper.gradients.stops_at_non_finite = true;
        self
    }

    /// Divides every gradient by the scale of this scaler. Run each backward pass from
    /// [`scaler.scale(loss)`](LossScaler::scale); keep a clone of the scaler for that.
    ///
    /// If a gradient overflows, a step in [two passes](Self::two_passes), or an ordinary one, is
    /// skipped as a whole, as in PyTorch. In one pass only the parameters whose gradient has
    /// overflown are skipped: others were stepped by then, and the [report](StepReport) says which.
    /// The scale falls in both cases. If a gradient overflows at the least scale, further steps are
    /// refused ([`LossScale`](ReleaseError::LossScale)).
    pub fn with_loss_scaler(mut self, scaler: LossScaler) -> Self {
        self.stepper.gradients.scaler = Some(scaler.0.for_optimizer());
        self
    }

    /// Steps with the mean of each gradient over the replicas of the model: see
    /// [`GradientReduction`].
    pub fn with_reduction(
        mut self,
        reduction: Arc<dyn GradientReduction<B::InnerBackend>>,
    ) -> Self {
        self.stepper.reduction = Some(reduction);
        self
    }

    /// State kept of gradients from step to step: see [`GradientRecord`].
    pub fn gradient_record(&self) -> GradientRecord {
        self.stepper.gradients.to_record()
    }

    /// Loads such a state.
    pub fn load_gradient_record(self, record: GradientRecord) -> Self {
        self.stepper.gradients.load_record(record);
        self
    }

    /// Steps the parameters of a group with other options than the rest. If a parameter is in
    /// several groups, the last one counts.
    ///
    /// Which parameters are in a group is found by their paths whenever a model is armed or
    /// stepped. A group without any is refused then ([`EmptyGroup`](ReleaseError::EmptyGroup)).
    pub fn with_group(mut self, group: ParamGroup, options: GroupOptions<O>) -> Self {
        self.stepper.groups.push((group, options));
        self
    }

    /// Takes the learning rates of groups from the [`rates`](crate::ModuleLrScheduler::rates) of a
    /// [`ModuleLrScheduler`](crate::ModuleLrScheduler). Pass the scheduler's own rate to
    /// [`arm`](Self::arm) and `step` as before.
    pub fn with_learning_rates(mut self, rates: ModuleLearningRates) -> Self {
        self.stepper.learning_rates = Some(rates);
        self
    }

    /// Access the learning rates of groups.
    pub fn learning_rates(&self) -> Option<&ModuleLearningRates> {
        self.stepper.learning_rates.as_ref()
    }

    /// Recomputes activations in the backward passes of models that this optimizer arms: see
    /// [`Recompute`].
    ///
    /// # Panics
    ///
    /// If it is a [budget](Recompute::Budget) of 0 bytes.
    pub fn with_recompute(mut self, recompute: Recompute) -> Self {
        self.stepper.tracer = Tracer::new(recompute.checked());
        self
    }

    /// What is recomputed in the backward passes of models that this optimizer arms.
    pub fn recompute(&self) -> Recompute {
        let tracer = self.stepper.tracer.as_ref();
        tracer.map_or(Recompute::None, |tracer| tracer.policy())
    }

    /// Lets the optimizer own a constant learning rate and re-arm the model in every
    /// [`step`](Optimizer::step), so that a training loop needs no change.
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

    /// The scheduler the optimizer owns, if it is of type `S`: as it is after the last finished
    /// step, so that its record resumes where the optimizer's does.
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

    /// Whether steps are taken with [`two_passes`](Self::two_passes).
    pub fn needs_two_passes(&self) -> bool {
        self.stepper.gradients.needs_two_passes()
    }

    /// Whether a model is armed to be stepped.
    pub fn is_armed(&self) -> bool {
        self.state.armed().is_some()
    }

    /// The rate of the next step: that of the armed model, or the next one that the optimizer owns.
    /// `None` if the next call decides.
    pub fn next_learning_rate(&self) -> Option<LearningRate> {
        let owned = || self.rate.as_ref().map(OwnedRate::peek);
        self.state.armed().or_else(owned)
    }

    /// Refuses while a backward has stepped parameters and `step` has not finished that step.
    ///
    /// # Errors
    ///
    /// [`Unfinished`](ReleaseError::Unfinished), or [`Interrupted`](ReleaseError::Interrupted)
    /// after a backward that panicked midway.
    pub fn check_finished(&self) -> Result<(), ReleaseError> {
        self.state.check_idle()
    }

    /// Outcome of the last finished step, for each parameter.
    pub fn last_step(&self) -> Option<StepReport> {
        self.state.report()
    }
}

impl<O, M, B> Optimizer<M, B> for ReleaseOptimizer<O, M, B>
where
    O: SimpleOptimizer<B::InnerBackend> + 'static,
    M: AutodiffModule<B>,
    B: ReleaseBackend,
{
    type Record = Records<O, B>;

    /// Finishes the step: promotes the parameters that backward has stepped, applies the ordinary
    /// step to the others that have a gradient, and disarms.
    fn step(&mut self, lr: LearningRate, module: M, grads: GradientsParams) -> M {
        expect(self.try_step(lr, module, grads))
    }

    fn step_multi(&mut self, lr: LearningRate, module: M, grads: MultiGradientsParams) -> M {
        expect(self.try_step_multi(lr, module, grads))
    }

    fn to_record(&self) -> Self::Record {
        expect(self.try_to_record())
    }

    /// Loads the states, also after an interrupted step. Disarms: a forward pass that has already
    /// run gives ordinary gradients, and those a model was armed with are dropped.
    fn load_record(mut self, record: Self::Record) -> Self {
        drop(self.state.take_session());
        self.state = SharedState::new();
        self.stepper = self.stepper.with_records(record);
        self
    }
}

/// A clone has states of its own and is not armed. In a clone taken between a backward and its
/// `step`, some states are new and some old: it refuses every call until a record is loaded.
impl<O, M, B> Clone for ReleaseOptimizer<O, M, B>
where
    O: SimpleOptimizer<B::InnerBackend> + 'static,
    M: AutodiffModule<B>,
    B: ReleaseBackend,
{
    fn clone(&self) -> Self {
        handle::offer::<HandleParts<O, B>>(|| (self.stepper.clone(), self.state.share()));
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
            .field("rate", &self.next_learning_rate())
            .finish_non_exhaustive()
    }
}
