//! Errors of calls that are refused, each with the way out.

use burn::module::ParamId;

use crate::slot::reduction::ReductionError;

/// Why a call was refused. A refused call has changed nothing.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ReleaseError {
    /// `step` was given another rate than the one the parameters were stepped with.
    #[error(
        "the parameters were armed with the learning rate {armed}, but `step` was given {given}; \
         pass `step` the rate that `arm` was given (call the scheduler once per step, before \
         `arm`)"
    )]
    LearningRate {
        /// The rate that inside-backward steps use.
        armed: f64,
        /// The rate given to `step`.
        given: f64,
    },

    /// A second gradient arrived for a parameter that was already stepped.
    #[error(
        "parameter {param} was stepped inside an earlier backward of this optimizer step, and now \
         a second gradient for it has arrived; run one backward per step on the sum of the losses, \
         or accumulate the gradients of the earlier ones and arm with them before the last \
         (`arm_accumulated`)"
    )]
    AlreadyStepped {
        /// The parameter.
        param: ParamId,
    },

    /// A parameter was stepped, and the gradients of that backward were never asked for its own.
    #[error(
        "parameter {param} was stepped inside backward, but its gradient was never asked for: \
         without gradient release this step would leave the parameter as it is; collect the \
         gradients of the armed model with `GradientsParams::from_grads`, arm only what is to be \
         stepped, and decide before backward whether to step (if the gradients of that backward are \
         gone: load the last checkpoint into the model and the optimizer, or begin the window anew \
         with a new accumulator)"
    )]
    Unclaimed {
        /// The parameter.
        param: ParamId,
    },

    /// The model is not the one that was armed.
    #[error(
        "the gradient of parameter {param} was used inside backward, or was given to `arm_accumulated`, \
         but the model given is not the one that was armed (or no longer: its parameters were loaded or \
         rebuilt); pass the model that `arm` returned"
    )]
    WrongModel {
        /// A parameter whose gradient was used, or waits, and that is not in the model given.
        param: ParamId,
    },

    /// A backward has stepped parameters and `step` has not finished that step yet.
    #[error(
        "{stepped} of {armed} armed parameters have been stepped inside backward, and the step is \
         not finished; call `step` with the model and the gradients first (if `step` refuses, load \
         the last checkpoint into the model and the optimizer)"
    )]
    Unfinished {
        /// Parameters stepped so far.
        stepped: usize,
        /// Parameters armed.
        armed: usize,
    },

    /// A backward, or the `step` after it, panicked after some of the parameters were stepped.
    #[error(
        "an optimizer step was interrupted after {stepped} of {armed} armed parameters had been \
         stepped inside backward: the model is half old, half new; load the last checkpoint into \
         the model and the optimizer (`load_record`)"
    )]
    Interrupted {
        /// Parameters stepped inside backward before the panic.
        stepped: usize,
        /// Parameters armed.
        armed: usize,
    },

    /// A backward has added gradients to their sums, and `accumulate` has not ended the
    /// micro-batch.
    #[error(
        "the gradients of {added} of {armed} armed parameters are with the model; call `accumulate` \
         with the model and the gradients that backward returned first"
    )]
    NotAccumulated {
        /// Parameters whose gradient was added inside backward.
        added: usize,
        /// Parameters armed.
        armed: usize,
    },

    /// A backward panicked after some of the gradients were added to their sums.
    #[error(
        "a backward was interrupted after the gradients of {added} of {armed} armed parameters had \
         been added to their sums: no weight has changed, but the sums are of no use; begin the \
         window anew with a new accumulator"
    )]
    HalfAccumulated {
        /// Parameters whose gradient was added before the panic.
        added: usize,
        /// Parameters armed.
        armed: usize,
    },

    /// Two parameters of the model have the same id.
    #[error(
        "two parameters of the model share the id {param}, and optimizer states are kept by id; to \
         tie weights, keep one `Param` and use it in both places"
    )]
    DuplicateParam {
        /// The id.
        param: ParamId,
    },

    /// Two parameters of the model are the same tensor, for which Burn has one gradient.
    #[error(
        "parameters {first} and {second} are the same tensor, for which Burn has one gradient and \
         trains the first of them alone; to tie weights, keep one `Param` and use it in both places, \
         or else make the second one from `tensor.detach()`"
    )]
    SharedTensor {
        /// The one that comes first in the model.
        first: ParamId,
        /// The other.
        second: ParamId,
    },

    /// Another optimizer, or an accumulator, has armed the parameter.
    #[error(
        "parameter {param} is armed by another optimizer or accumulator; let every optimizer arm \
         its own part of the model, and finish or `disarm` the other step first"
    )]
    ArmedElsewhere {
        /// The parameter.
        param: ParamId,
    },

    /// The optimizer that stepped the parameter was dropped, or loaded a record, before `step`.
    #[error(
        "parameter {param} was stepped inside backward by an optimizer that was dropped, or loaded \
         a record, before it finished the step: its gradient is gone and other parameters may not \
         be stepped; load the last checkpoint into the model, or go on with the weights as they \
         are with `model.fork(&device)`"
    )]
    Abandoned {
        /// The parameter.
        param: ParamId,
    },

    /// The optimizer owns its rate and was asked to arm with another.
    #[error(
        "the optimizer owns its learning rate and steps with {owned} next, but `arm` was given \
         {given}; pass that rate, or build the optimizer without a rate of its own"
    )]
    OwnedLearningRate {
        /// The rate of the next step.
        owned: f64,
        /// The rate given to `arm`.
        given: f64,
    },

    /// The owner of the model did not fork it when asked to.
    #[error(
        "parameter {param} could not be armed: the fork did not pass it on (it must fork the model \
         of which a copy was given, on the device where that is)"
    )]
    NotForked {
        /// The parameter.
        param: ParamId,
    },

    /// A group has no parameter of the model.
    #[error(
        "no parameter of the model is in the group of {group}; the nearest paths are {}",
        near.join(", ")
    )]
    EmptyGroup {
        /// The pattern of the group.
        group: String,
        /// The paths of the model that are most similar to it.
        near: Vec<String>,
    },

    /// The rates of the groups are not those of this step.
    #[error(
        "the groups have rates of a scheduler that gave {} for this step, but {given} was given; step \
         that scheduler once before each step and pass on what it returns (a clone of it has rates of \
         its own)",
        published.map_or("nothing yet".to_string(), |rate| rate.to_string())
    )]
    GroupRates {
        /// The rate that the scheduler returned last.
        published: Option<f64>,
        /// The rate given.
        given: f64,
    },

    /// The optimizer owns its rate, and groups have rates of a [`ModuleLrScheduler`].
    ///
    /// [`ModuleLrScheduler`]: crate::ModuleLrScheduler
    #[error(
        "the optimizer owns its learning rate, and its groups have those of a `ModuleLrScheduler`; build \
         it without a rate of its own, give it the `rates()` of that scheduler (`with_learning_rates`), \
         and pass what its `step` returns to `arm` and `step`"
    )]
    OwnedGroupRates,

    /// A setting of this optimizer has no place in Burn's.
    #[error(
        "Burn's optimizer has no {what}, which would be lost without a word; build it anew, and load \
         `to_record` into it"
    )]
    NotBurns {
        /// The setting that would be lost.
        what: String,
    },

    /// A learning rate, or a setting of clipping, loss scaling or a group, is out of range.
    #[error("{setting} is {value}, which is out of range: nothing could be stepped with it")]
    OutOfRange {
        /// Its name.
        setting: String,
        /// Its value.
        value: f64,
    },

    /// The norm of all gradients, which must be known before the first step, was not measured.
    #[error(
        "no backward pass has measured the norm of all gradients, those of earlier micro-batches \
         included, or it is not finite; train with `two_passes` (with the Learner, \
         `GradientReleaseStrategy::with_two_passes`), or arm with `try_arm_to_measure`, which takes \
         the gradients of earlier micro-batches, and end that pass with `try_measured` first"
    )]
    NotMeasured,

    /// The model is armed to measure, which takes no step.
    #[error(
        "the model is armed to measure the norm of its gradients; end that pass with `try_measured`, then \
         `arm` it for the pass that steps, or `disarm` it"
    )]
    OnlyMeasured,

    /// No pass that measures has begun.
    #[error(
        "no model is armed to measure the norm of its gradients; arm one with `try_arm_to_measure`"
    )]
    NotMeasuring,

    /// The pass that measures has found a gradient that has overflown.
    #[error(
        "a gradient has overflown in the pass that measures: `step` skips this step, and lets the \
         scale of the loss fall"
    )]
    Overflown,

    /// A second gradient of a parameter arrived in the pass that measures.
    #[error(
        "parameter {param} got two gradients while its norm was measured; run one backward on the sum \
         of the losses, or accumulate the gradients of the earlier ones"
    )]
    MeasuredTwice {
        /// The parameter.
        param: ParamId,
    },

    /// The two forward passes of a step differ.
    #[error(
        "the two forward passes of one step gave different losses, or drew other random numbers: \
         clipping by the global norm runs the forward pass twice, and both must be the same; draw \
         random numbers with Burn's tensors of this backend, or before the step"
    )]
    NotRepeatable,

    /// A gradient has no finite norm (in 32 bits).
    #[error(
        "the gradient of {path} is not finite; {}",
        match (stepped, armed) {
            (0, 0) => "no parameter was stepped: leave this batch out".into(),
            (0, _) => "no parameter was stepped: leave this batch out, and disarm the model".into(),
            _ => format!(
                "{stepped} of {armed} armed parameters had been stepped before it came, and no other \
                 was: load the last checkpoint into the model and the optimizer (`load_record`), or \
                 measure first with `two_passes`"
            ),
        }
    )]
    NonFinite {
        /// Path of the parameter in the model, or its id.
        path: String,
        /// Parameters that were stepped before with earlier gradients.
        stepped: usize,
        /// Parameters armed.
        armed: usize,
    },

    /// The loss was not scaled.
    #[error(
        "the optimizer takes the scale of a `LossScaler` off its gradients, but no loss was scaled for \
         this step; disarm the model, and run backward from `scaler.scale(loss)`"
    )]
    NotScaled,

    /// The losses of micro-batches were scaled by several factors, and their gradients are added up.
    #[error(
        "another optimizer that shares the `LossScaler` has changed the scale between the micro-batches \
         of this step, whose sums cannot be unscaled; disarm the model, give this optimizer a \
         `LossScaler` of its own (`with_loss_scaler`), and begin the window anew"
    )]
    SeveralScales,

    /// A gradient has overflown at the least scale of a `LossScaler`, and every later step would be
    /// skipped.
    #[error(
        "a gradient has overflown though the scale of the loss has fallen to {scale:e}: it is not \
         finite at any scale; look for what is not finite in the batches and the weights, and go on \
         from an earlier checkpoint with its `GradientRecord`, or with a new `LossScaler`"
    )]
    LossScale {
        /// The scale.
        scale: f64,
    },

    /// The weights are in fp16, and so are the gradients that are divided by the scale.
    #[error(
        "{path} is in fp16, and so is its gradient, in which small numbers vanish when the scale of the \
         loss is taken off; keep the weights in fp32, and cast them where the forward pass computes"
    )]
    HalfPrecision {
        /// Path of the parameter in the model.
        path: String,
    },

    /// The replicas of a model do not agree.
    #[error("{reason}; let the process end, which ends the others, and go on from a checkpoint")]
    Reduction {
        /// The error of the [`GradientReduction`](crate::GradientReduction).
        reason: String,
    },

    /// A parameter is marked as distributed (with the feature `distributed`): Burn reduces its
    /// gradient.
    #[error(
        "parameter {param} is marked as distributed: Burn reduces its gradient over the devices at the \
         end of backward, when an armed parameter has been stepped; take the mark off with \
         `model.fork(&device)`, and give the optimizer a reduction (`with_reduction`) that takes its \
         place; or leave the model unarmed, without one"
    )]
    Distributed {
        /// The parameter.
        param: ParamId,
    },

    /// Gradients of several devices came for a model that was stepped inside backward, or for an
    /// optimizer that looks at gradients before the first step.
    #[error(
        "{}",
        match stepped {
            0 => "clipping by the global norm, a loss scaler and a stop at gradients that are not \
                  finite look at each gradient before the first step, when those of several devices \
                  are not added up yet; add them up on one device, and call `step`".to_string(),
            stepped => format!(
                "{stepped} of {armed} armed parameters were stepped with the gradients of one device \
                 before those of the others could be added; do not arm for multi-device training: \
                 unarmed, `step_multi` is Burn's"
            ),
        }
    )]
    MultiDevice {
        /// Parameters stepped.
        stepped: usize,
        /// Parameters armed.
        armed: usize,
    },
}

/// A refused call, with its arguments: the model, or an optimizer, and the gradients if it was given
/// any.
#[derive(thiserror::Error)]
#[error("{error}")]
pub struct Refused<M, G = ()> {
    model: M,
    grads: G,
    error: ReleaseError,
}

impl<M> Refused<M> {
    pub(crate) fn new(model: M, error: ReleaseError) -> Self {
        Self {
            model,
            grads: (),
            error,
        }
    }
}

impl<M, G> Refused<M, G> {
    pub(crate) fn with_grads(model: M, grads: G, error: ReleaseError) -> Self {
        Self {
            model,
            grads,
            error,
        }
    }

    /// Why the call was refused.
    pub fn error(&self) -> &ReleaseError {
        &self.error
    }

    /// The model, as it was given.
    pub fn into_model(self) -> M {
        self.model
    }

    /// The model, as it was given, and why the call was refused.
    pub fn into_parts(self) -> (M, ReleaseError) {
        (self.model, self.error)
    }

    /// The model and the gradients, as they were given, to try again with.
    pub fn into_given(self) -> (M, G) {
        (self.model, self.grads)
    }
}

// Not derived: the output of a model is long, and it need not be `Debug`.
impl<M, G> std::fmt::Debug for Refused<M, G> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Refused")
            .field("error", &self.error)
            .finish_non_exhaustive()
    }
}

impl<M, G> From<Refused<M, G>> for ReleaseError {
    fn from(refused: Refused<M, G>) -> Self {
        refused.error
    }
}

/// Panics with the text of an error, where Burn's [`Optimizer`](burn::optim::Optimizer) cannot
/// return one.
pub(crate) fn expect<T, E: std::fmt::Display>(result: Result<T, E>) -> T {
    result.unwrap_or_else(|error| panic!("gradient release: {error}"))
}

impl From<ReductionError> for ReleaseError {
    fn from(error: ReductionError) -> Self {
        Self::Reduction {
            reason: error.to_string(),
        }
    }
}
