//! What gradient release refuses, and the way out.

/// A call that cannot be carried out as asked. Nothing was changed by it.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ReleaseError {
    /// `step` was given another rate than the one a parameter was stepped with.
    #[error(
        "{path} was armed with the learning rate {armed}, but `step` was given {given}; pass \
         `step` the rate that `arm` was given (call the scheduler once per step, before `arm`)"
    )]
    LearningRate {
        /// Where the parameter is in the model.
        path: String,
        /// The rate that steps inside backward use.
        armed: f64,
        /// The rate given to `step`.
        given: f64,
    },

    /// A second gradient arrived for a parameter that was already stepped.
    #[error(
        "{path} was stepped inside an earlier backward of this optimizer step, and now a second \
         gradient for it has arrived; run one backward per step on the sum of the losses, or \
         accumulate the gradients of the earlier ones and arm with them before the last \
         (`arm_accumulated`)"
    )]
    AlreadyStepped {
        /// Where the parameter is in the model.
        path: String,
    },

    /// A parameter was stepped, and its gradient was never asked for.
    #[error(
        "{path} was stepped inside backward, but its gradient was never asked for: without \
         gradient release this step would leave the parameter as it is; collect the gradients of \
         the armed model with `GradientsParams::from_grads`, arm only what is to be stepped, and \
         decide before backward whether to step"
    )]
    Unclaimed {
        /// Where the parameter is in the model.
        path: String,
    },

    /// A gradient was changed after its parameter was stepped with it.
    #[error(
        "the gradient of {path} was changed, or added to another, after backward had stepped with \
         it; ask for what is to be done to gradients before (`with_grad_clipping` of the \
         optimizer, `arm_accumulated` for micro-batches), or do not arm for this step"
    )]
    GradientChanged {
        /// Where the parameter is in the model.
        path: String,
    },

    /// Something was computed from the placeholder of an armed parameter.
    #[error(
        "{path} was computed from the placeholder that it has while it is armed (by a mapper, by \
         `Param::map`, by another optimizer): its weight is lost; load the last checkpoint, and \
         change weights between `step` and `arm`"
    )]
    Placeholder {
        /// Where the parameter is in the model.
        path: String,
    },

    /// No forward pass was made with the armed model.
    #[error(
        "no forward pass was made with the model since it was armed, and no gradient is given: \
         those of a forward pass made before `arm` are lost; arm before the forward pass, or \
         `disarm` to take the arming back"
    )]
    NoForward,

    /// The model is not the one whose parameters were stepped.
    #[error(
        "{path} was stepped inside backward, but the model given is not the one that was armed (or \
         no longer: its parameters were loaded, moved or rebuilt); pass the model that `arm` \
         returned"
    )]
    WrongModel {
        /// Where the parameter is in the model that was armed.
        path: String,
    },

    /// A copy of the armed model was given in its place.
    #[error(
        "{path} is of a copy of the armed model, whose weights stay as they were when it was \
         taken; pass the model that `arm` returned"
    )]
    Copy {
        /// Where the parameter is in the model.
        path: String,
    },

    /// `TrainStep::optimize` has changed the model before the optimizer's step.
    #[error(
        "{path} was changed in `TrainStep::optimize` before `optim.step`, when backward had stepped \
         it already; change weights after `optim.step`"
    )]
    ChangedBeforeStep {
        /// Where the parameter is in the model.
        path: String,
    },

    /// A copy of the model was taken between backward and `step`, where plain Burn's weights are
    /// the old ones.
    #[error(
        "a copy of {path} was taken after backward had stepped it, and is kept over `step`: it has \
         the new weight, where plain Burn's has the old one; take a copy that is to be kept before \
         backward, in `TrainStep::step`"
    )]
    SteppedCopy {
        /// Where the parameter is in the model.
        path: String,
    },

    /// A backward has stepped parameters and `step` has not finished that step yet.
    #[error(
        "{stepped} of {armed} armed parameters have been stepped inside backward, and the step is \
         not finished; call `step` with the model and the gradients first (if that backward has \
         panicked, the model is half old, half new: load the last checkpoint into the model and \
         the optimizer)"
    )]
    Unfinished {
        /// Parameters stepped so far.
        stepped: usize,
        /// Parameters armed.
        armed: usize,
    },

    /// The optimizer panicked in the middle of a step.
    #[error(
        "an optimizer step was interrupted after {stepped} of {armed} armed parameters had been \
         stepped: the model is half old, half new; load the last checkpoint into the model and the \
         optimizer (`load_record`)"
    )]
    Interrupted {
        /// Parameters stepped before the panic.
        stepped: usize,
        /// Parameters armed.
        armed: usize,
    },

    /// A backward has added gradients to their sums, and `accumulate` has not ended the
    /// micro-batch.
    #[error(
        "the gradients of {added} of {armed} armed parameters are with the model; call \
         `accumulate` with the model and the gradients that backward returned first"
    )]
    NotAccumulated {
        /// Parameters whose gradient was added inside backward.
        added: usize,
        /// Parameters armed.
        armed: usize,
    },

    /// The sums of earlier micro-batches are with the model.
    #[error(
        "the model was armed with the sums of earlier micro-batches, which would be lost; `step` \
         steps with them, also without another gradient"
    )]
    Accumulated,

    /// Two parameters of the model have one id.
    #[error(
        "two parameters of the model, {first} and {second}, share an id, and optimizer states are \
         kept by id; to tie weights, keep one `Param` and use it in both places"
    )]
    DuplicateParam {
        /// Where the one is in the model.
        first: String,
        /// Where the other is.
        second: String,
    },

    /// Another optimizer, or an accumulator, has armed the parameter.
    #[error(
        "{path} is armed by another optimizer or accumulator; let every optimizer arm its own part \
         of the model, and finish or `disarm` the other step first"
    )]
    ArmedElsewhere {
        /// Where the parameter is in the model.
        path: String,
    },

    /// The model has adapters, and is a copy that was taken while it was armed.
    #[error(
        "{path} is of a copy that was taken between `arm` and `step`, of a model with adapters \
         (LoRA or another reparameterization): it cannot be armed; take copies of such a model \
         after `step`"
    )]
    CopyWithAdapters {
        /// Where the parameter is in the model.
        path: String,
    },

    /// The parameter is on a backend that is not known.
    #[error(
        "{path} is on {device}, a backend that burn-lean was not compiled for; switch its feature \
         on (flex, ndarray, wgpu or cuda), or train without arming"
    )]
    Backend {
        /// Where the parameter is in the model.
        path: String,
        /// Its device.
        device: String,
    },

    /// The parameter is marked as distributed: Burn reduces its gradient.
    #[error(
        "{path} is marked as distributed: Burn reduces its gradient over the devices at the end of \
         backward, when an armed parameter has been stepped; train this model without arming"
    )]
    Distributed {
        /// Where the parameter is in the model.
        path: String,
    },
}

/// A refused call, with what it was given: the model, and the gradients where it was given some.
#[derive(thiserror::Error)]
#[error("{error}")]
pub struct Refused<M, G = ()> {
    model: M,
    grads: G,
    error: ReleaseError,
}

impl<M> Refused<M> {
    pub(super) fn new(model: M, error: ReleaseError) -> Self {
        Self {
            model,
            grads: (),
            error,
        }
    }
}

impl<M, G> Refused<M, G> {
    pub(super) fn with_grads(model: M, grads: G, error: ReleaseError) -> Self {
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

// Not derived: a model prints pages, and need not be `Debug`.
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

/// The panicking twin of a fallible call.
pub(crate) fn expect<T, E: std::fmt::Display>(result: Result<T, E>) -> T {
    result.unwrap_or_else(|error| panic!("gradient release: {error}"))
}
