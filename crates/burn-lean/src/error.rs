//! Errors of gradient release.

/// Why a call was refused. A refused call has changed nothing, unless the error says so.
///
/// The text of an error says what to do. `docs/troubleshooting.md` in the repository has more about some.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ReleaseError {
    /// The loss does not come from the model. Nothing has changed, in no part of the pass.
    #[error(
        "no parameter of the model that requires gradients is in the graph of the loss: it is the loss \
         of another model, or of this one before its last step, or it was detached, or everything is \
         frozen; compute the loss with the model that is given"
    )]
    NotInGraph,

    /// The gradients of a backward pass cannot be followed.
    #[error("{reason}")]
    Tape {
        /// The reason, and the way out.
        reason: String,
    },

    /// A step or a micro-batch was interrupted, as by a panic of the optimizer.
    #[error(
        "an optimizer step was interrupted after {stepped} of {of} parameters had been stepped, so some \
         states or sums are those after it, and others are not; load the last checkpoint into the model \
         and the optimizer (`load_record`)"
    )]
    Interrupted {
        /// Parameters stepped before it.
        stepped: usize,
        /// Parameters of the pass.
        of: usize,
    },

    /// A parameter has gradients of earlier micro-batches, and is not in the model.
    #[error(
        "the optimizer has gradients of earlier micro-batches for {path}, which is not in the model \
         that is given; pass the model of those micro-batches, or end their window with `take_sums`"
    )]
    WrongModel {
        /// Path of the parameter, or its id.
        path: String,
    },

    /// Two parameters of the model have one id.
    #[error(
        "two parameters of the model, {first} and {second}, share an id, and optimizer states are \
         kept by id; to tie weights, keep one `Param` and use it in both places; to keep a copy in the \
         model (an average, a target), give it ids of its own: `Param::from_mapped_value` with \
         `ParamId::new()`"
    )]
    DuplicateParam {
        /// Path of the one in the model.
        first: String,
        /// Path of the other.
        second: String,
    },

    /// The thread runs a scope.
    #[error(
        "this thread is running a scope of `checkpoint`, whose backward pass would have to wait for \
         itself: step a model outside of scopes, and train models side by side on threads of your own, \
         because one of rayon's that waits in a scope takes up another task"
    )]
    InScope,

    /// A parameter cannot be stepped with these settings, or with the state that it has.
    #[error("{path} cannot be stepped: {reason}")]
    NotSteppable {
        /// Path of the parameter in the model.
        path: String,
        /// The reason, and the way out.
        reason: String,
    },

    /// A group has no parameter of the model.
    #[error(
        "no parameter of the model is in the group of {group}; the nearest paths are {}",
        near.join(", ")
    )]
    EmptyGroup {
        /// The patterns of the group.
        group: String,
        /// The nearest paths in the model.
        near: Vec<String>,
    },

    /// Burn's optimizer lacks a setting of this one.
    #[error(
        "Burn's optimizer has no {what}, which would be silently lost; build it anew, and \
         load `to_record` into it"
    )]
    NotBurns {
        /// What would be lost.
        what: String,
    },

    /// A learning rate, or a setting of clipping or loss scaling, is out of range.
    #[error("{setting} is {value}, which is out of range: nothing could be stepped with it")]
    OutOfRange {
        /// Its name.
        setting: String,
        /// Its value.
        value: f64,
    },

    /// Clipping by the global norm needs the norm before the first step, and it was not measured, or not
    /// that of each gradient.
    #[error(
        "the gradients are clipped by their global norm, and no backward pass has measured it, or not \
         of all of them; train with `two_passes`, or `measure` the loss of the same forward pass first \
         (if the step had begun, load the last checkpoint into the model and the optimizer)"
    )]
    NotMeasured,

    /// The two forward passes of a step differ.
    #[error(
        "the two forward passes of one step gave different losses: clipping by the global norm \
         runs the forward pass twice, and both must be the same; draw random numbers with Burn's \
         tensors on a device of the model, on one thread, or before the step"
    )]
    NotRepeatable,

    /// A gradient has no finite norm.
    #[error(
        "the gradient of {path} is not finite; {}",
        match stepped {
            0 => "no parameter was stepped: leave this batch out".to_string(),
            stepped => format!(
                "{stepped} of {of} parameters had been stepped before it came, and no other was: load \
                 the last checkpoint into the model and the optimizer (`load_record`), or measure \
                 first with `two_passes`"
            ),
        }
    )]
    NonFinite {
        /// Path of the parameter in the model.
        path: String,
        /// Parameters stepped before it.
        stepped: usize,
        /// Parameters of the pass.
        of: usize,
    },

    /// No loss was scaled since the last backward pass.
    #[error(
        "the optimizer takes the scale of a `LossScaler` off its gradients, but no loss was scaled \
         since its last backward pass; run each one from `scaler.scale(loss)`, scaled after the one \
         before"
    )]
    NotScaled,

    /// The losses of micro-batches were scaled by several factors.
    #[error(
        "the scale of the loss has changed between the micro-batches of this step, whose sums cannot \
         be unscaled: another optimizer that shares the `LossScaler` has changed it, or the scaler was \
         set in between; give this optimizer a `LossScaler` of its own (`with_loss_scaler`), and begin \
         the window anew, after `take_sums`"
    )]
    SeveralScales,

    /// A gradient has overflowed at the least scale of a `LossScaler`, and every later step would be
    /// skipped.
    #[error(
        "a gradient has overflowed though the scale of the loss has fallen to {scale:e}: it is not \
         finite at any scale; look for what is not finite in the batches and the weights, and go on \
         from an earlier checkpoint with its `GradientRecord`, or with a new `LossScaler`"
    )]
    LossScale {
        /// The scale.
        scale: f64,
    },

    /// The replicas of the model cannot go on together
    /// ([`with_reduction`](crate::ReleaseOptimizer::with_reduction)). Every call is refused with it
    /// from then on.
    #[error("{reason}; let the process end, which ends the others, and go on from a checkpoint")]
    Reduction {
        /// The reason.
        reason: String,
    },

    /// Each replica has the optimizer states of a part of the parameters.
    #[error(
        "this replica has the optimizer states of its share of the parameters alone, and those of \
         the others would be lost; write them to a file with `DataParallel::save_states`, or put them \
         together with `DataParallel::gather_states`, on all replicas"
    )]
    Sharded,
}

/// A refused call, with the model that it was given, and with gradients or a loss.
// Boxed, so that a call that goes well does not carry the room that a refusal needs.
pub struct Refused<M, G = (), E = ReleaseError>(Box<Given<M, G, E>>);

struct Given<M, G, E> {
    model: M,
    grads: G,
    error: E,
}

impl<M, E> Refused<M, (), E> {
    pub(super) fn new(model: M, error: E) -> Self {
        Self::with_grads(model, (), error)
    }
}

impl<M, G, E> Refused<M, G, E> {
    pub(super) fn with_grads(model: M, grads: G, error: E) -> Self {
        Self(Box::new(Given {
            model,
            grads,
            error,
        }))
    }

    /// Why the call was refused.
    pub fn error(&self) -> &E {
        &self.0.error
    }

    /// The model that was given.
    pub fn into_model(self) -> M {
        self.0.model
    }

    /// The model that was given, and why the call was refused.
    pub fn into_parts(self) -> (M, E) {
        (self.0.model, self.0.error)
    }

    /// The model, and the gradients or the loss, as they were given, to try again with.
    pub fn into_given(self) -> (M, G) {
        (self.0.model, self.0.grads)
    }
}

// Not derived: the output of a model is long, and it need not be `Debug`.
impl<M, G, E: std::fmt::Debug> std::fmt::Debug for Refused<M, G, E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Refused")
            .field("error", &self.0.error)
            .finish_non_exhaustive()
    }
}

impl<M, G, E: std::fmt::Display> std::fmt::Display for Refused<M, G, E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.error.fmt(f)
    }
}

impl<M, G, E: std::error::Error> std::error::Error for Refused<M, G, E> {}

impl<M, G> From<Refused<M, G>> for ReleaseError {
    fn from(refused: Refused<M, G>) -> Self {
        refused.0.error
    }
}

/// Panics with the text of an error.
pub(crate) fn expect<T, E: std::fmt::Display>(result: Result<T, E>) -> T {
    result.unwrap_or_else(|error| panic!("gradient release: {error}"))
}
