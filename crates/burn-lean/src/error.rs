//! Errors of gradient release.

/// Why a call was refused. A refused call has changed nothing.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ReleaseError {
    /// `step` was given another rate than the one a parameter was stepped with.
    #[error(
        "{path} was armed with the learning rate {armed}, but `step` was given {given}; pass \
         `step` the rate that `arm` was given (call the scheduler once per step, before `arm`)"
    )]
    LearningRate {
        /// Path of the parameter in the model.
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
         (`arm_accumulated`); this step cannot be finished: load the last checkpoint into the \
         model and the optimizer (`load_record`)"
    )]
    AlreadyStepped {
        /// Path of the parameter in the model.
        path: String,
    },

    /// A parameter was stepped, and its gradient was never asked for.
    #[error(
        "{path} was stepped inside backward, but its gradient was never asked for: without \
         gradient release this step would leave the parameter as it is; collect the gradients of \
         the armed model with `GradientsParams::from_grads`, arm only what is to be stepped, and \
         decide before backward whether to step; if they were dropped, this step cannot be \
         finished: load the last checkpoint into the model and the optimizer (`load_record`)"
    )]
    Unclaimed {
        /// Path of the parameter in the model.
        path: String,
    },

    /// A gradient is what an earlier backward has left of one: a mark of one NaN.
    #[error(
        "the gradient given for {path} was taken inside an earlier backward of an armed model, \
         which has left a mark in its place: it was stepped with, or its optimizer was dropped or \
         has loaded a record before `step`; give every `step` the gradients of its own backward, and \
         clip with `with_norm_clipping` (if its optimizer is gone, load the last checkpoint into \
         the model and the optimizer)"
    )]
    Taken {
        /// Path of the parameter in the model.
        path: String,
    },

    /// A gradient was changed after its parameter was stepped with it.
    #[error(
        "the gradient of {path} was changed, or added to another, after backward had stepped with \
         it; ask for what is to be done to gradients before (`with_grad_clipping` of the \
         optimizer, `arm_accumulated` for micro-batches), or do not arm for such a step; this one \
         cannot be finished: load the last checkpoint into the model and the optimizer \
         (`load_record`)"
    )]
    GradientChanged {
        /// Path of the parameter in the model.
        path: String,
    },

    /// An armed parameter was built anew, from its placeholder.
    #[error(
        "{path} was built anew from the placeholder that it has while it is armed (by a mapper, by \
         `Param::map` or `Param::set_require_grad`, by another optimizer), and no longer knows its \
         weight; if only its settings have changed, `disarm` gives the weight back, otherwise load \
         the last checkpoint; freeze and change parameters between `step` and `arm`"
    )]
    Placeholder {
        /// Path of the parameter in the model.
        path: String,
    },

    /// No forward pass was made with the armed model.
    #[error(
        "no forward pass was made with the model since it was armed, and no gradient is given: \
         those of a forward pass made before `arm` are lost; arm before the forward pass; to take \
         the arming back, `disarm`, or drop the accumulator"
    )]
    NoForward,

    /// The loss does not come from the model.
    #[error(
        "no parameter of the model is in the graph of the loss: it is the loss of another model, or \
         of this one before its last step, or it was detached; compute the loss with the model that is \
         given"
    )]
    NotInGraph,

    /// The gradients of a backward pass cannot be followed.
    #[error("{reason}")]
    Tape {
        /// The reason, and the way out.
        reason: String,
    },

    /// The model is not the one whose parameters were stepped or have sums.
    #[error(
        "{path} was stepped inside backward, or has sums of earlier micro-batches, but the model \
         given is not the one that was armed (or no longer: its parameters were loaded, moved or \
         rebuilt); pass the model that `arm` returned"
    )]
    WrongModel {
        /// Path of the parameter in the model that was armed.
        path: String,
    },

    /// A copy of the armed model was given in its place, or a model in whose place another was armed.
    #[error(
        "{path} is of a copy of the armed model, or of a model in whose place the same optimizer or \
         accumulator has armed another: its weights stay as they are; pass the model that the last \
         `arm` returned, or make an ordinary model of this one with `materialize()`"
    )]
    Copy {
        /// Path of the parameter in the model.
        path: String,
    },

    /// `TrainStep::optimize` has changed the model before the optimizer's step.
    #[error(
        "{path} was changed in `TrainStep::optimize` before `optim.step`, when backward had stepped \
         it already; change weights after `optim.step`"
    )]
    ChangedBeforeStep {
        /// Path of the parameter in the model.
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
        /// Path of the parameter in the model.
        path: String,
    },

    /// A backward has stepped parameters and `step` has not finished that step yet.
    #[error(
        "{stepped} of {armed} armed parameters have been stepped inside backward, and the step is \
         not finished; call `step` with the model and the gradients first (if `step` refuses, or \
         that backward has panicked, the model is half old, half new: load the last checkpoint \
         into the model and the optimizer with `load_record`)"
    )]
    Unfinished {
        /// Parameters stepped so far.
        stepped: usize,
        /// Parameters armed.
        armed: usize,
    },

    /// A setting of the optimizer was changed after `arm`.
    #[error(
        "`{setting}` was called between `arm` and `step`, and a step is taken with the optimizer that \
         it was armed with; `disarm` the model, or `arm` it again, and choose settings between `step` \
         and `arm` (if backward has stepped already, load the last checkpoint into the model and the \
         optimizer with `load_record`)"
    )]
    SetInStep {
        /// The name of the call.
        setting: String,
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

    /// Backward has stepped parameters of the model, and its optimizer is gone.
    #[error(
        "{path} was stepped inside a backward whose optimizer was dropped, or has loaded a record, \
         before `step`: the model may be half old, half new; load the last checkpoint into the \
         model and the optimizer (`load_record`), or take the weights as they are with \
         `materialize()`"
    )]
    Abandoned {
        /// Path of the parameter in the model.
        path: String,
    },

    /// A backward has added gradients to their sums, and `accumulate` has not ended the
    /// micro-batch.
    #[error(
        "the gradients of {added} of {armed} armed parameters are with the model; call \
         `accumulate` with the model and the gradients that backward returned first (if it \
         refuses, drop the accumulator and begin the window anew with another: no weight has \
         changed)"
    )]
    NotAccumulated {
        /// Parameters whose gradient was added inside backward.
        added: usize,
        /// Parameters armed.
        armed: usize,
    },

    /// The sums of earlier micro-batches are with the model, or with its optimizer.
    #[error(
        "the model was armed with the sums of earlier micro-batches, which would be lost; `step` \
         steps with them, also without another gradient, and `try_disarm_accumulated` hands them \
         back"
    )]
    Accumulated,

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

    /// Another optimizer, or an accumulator, has armed the parameter.
    #[error(
        "{path} is armed by another optimizer or accumulator; let every optimizer arm its own part \
         of the model, and finish or `disarm` the other step first; make an ordinary model of a copy \
         that was taken meanwhile with `materialize()`"
    )]
    ArmedElsewhere {
        /// Path of the parameter in the model.
        path: String,
    },

    /// The thread runs a scope, where parameters are read as the scope's.
    #[error(
        "this thread is running a scope of `checkpoint`: arm and step a model outside of scopes, and \
         train models side by side on threads of your own, because one of rayon's that waits in a \
         scope takes up another task"
    )]
    InScope,

    /// The model has adapters, and is a copy that was taken while it was armed.
    #[error(
        "{path} is of a copy that was taken between `arm` and `step`, of a model with adapters \
         (LoRA or another reparameterization): it cannot be armed; take copies of such a model \
         after `step`"
    )]
    CopyWithAdapters {
        /// Path of the parameter in the model.
        path: String,
    },

    /// The parameter is on a backend that is not known.
    #[error(
        "{path} is on {device}, a backend that burn-lean was not compiled for; switch its feature \
         on (flex, ndarray, wgpu or cuda, or cube for other devices of CubeCL), or train without \
         arming"
    )]
    Backend {
        /// Path of the parameter in the model.
        path: String,
        /// Its device.
        device: String,
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
        /// The setting that would be lost.
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
         of all of them; train with `two_passes`, or arm with `try_arm_to_measure`, run the same \
         forward and backward pass, and end it with `try_measured` first; the sums of earlier \
         micro-batches go to the first of the two (if backward has stepped with others already, load \
         the last checkpoint into the model and the optimizer with `load_record`)"
    )]
    NotMeasured,

    /// `step` was called after the measuring pass.
    #[error(
        "the model is armed to measure the norm of its gradients; end that pass with \
         `try_measured`, then `arm` it for the pass that steps, or `disarm` it"
    )]
    OnlyMeasured,

    /// No model is armed to measure.
    #[error(
        "no model is armed to measure the norm of its gradients, or it was measured already; arm \
         one with `try_arm_to_measure`"
    )]
    NotMeasuring,

    /// The measuring pass has found a gradient that has overflowed.
    #[error(
        "a gradient has overflowed in the measuring pass: `step` skips this step, and lets the \
         scale of the loss fall"
    )]
    Overflown,

    /// A second gradient of a parameter arrived in the measuring pass.
    #[error(
        "{path} got two gradients while its norm was measured; run one backward on the sum of the \
         losses, or accumulate the gradients of the earlier ones"
    )]
    MeasuredTwice {
        /// Path of the parameter in the model.
        path: String,
    },

    /// A second gradient of a parameter arrived in one micro-batch.
    #[error(
        "{path} got two gradients in one micro-batch, the first of which is in the sum already; \
         drop the accumulator and begin the window anew with another (no weight has changed); run \
         one backward on the sum of the losses, or end each with `accumulate`"
    )]
    AccumulatedTwice {
        /// Path of the parameter in the model.
        path: String,
    },

    /// The two forward passes of a step differ.
    #[error(
        "the two forward passes of one step gave different losses: clipping by the global norm \
         runs the forward pass twice, and both must be the same; draw random numbers with Burn's \
         tensors on a device of the model, on one thread, or before the step"
    )]
    NotRepeatable,

    /// A gradient has no finite norm (in 32 bits).
    #[error(
        "the gradient of {path} is not finite; {}",
        match stepped {
            0 => "no parameter was stepped: leave this batch out, and disarm the model if it is armed"
                .to_string(),
            stepped => format!(
                "{stepped} of {armed} armed parameters had been stepped before it came, and no \
                 other was: load the last checkpoint into the model and the optimizer \
                 (`load_record`), or measure first with `two_passes`"
            ),
        }
    )]
    NonFinite {
        /// Path of the parameter in the model.
        path: String,
        /// Parameters stepped before it.
        stepped: usize,
        /// Parameters armed.
        armed: usize,
    },

    /// No loss was scaled since the last step.
    #[error(
        "the optimizer takes the scale of a `LossScaler` off its gradients, but no loss was scaled \
         for this step; disarm the model, and run backward from `scaler.scale(loss)`"
    )]
    NotScaled,

    /// The losses of micro-batches were scaled by several factors, and the model is armed with their
    /// sums.
    #[error(
        "another optimizer that shares the `LossScaler` has changed the scale between the \
         micro-batches of this step, whose sums cannot be unscaled; disarm the model \
         (`try_disarm_accumulated`), give this optimizer a `LossScaler` of its own \
         (`with_loss_scaler`), and begin the window anew"
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

    /// The weights are in fp16, and so are the gradients, which cannot be unscaled in fp16.
    #[error(
        "{path} is in fp16, and so is its gradient, in which small numbers vanish when the scale \
         of the loss is taken off; take an optimizer that computes in fp32 (`in_five_bytes`) and give \
         it gradients in fp32 (`with_f32_gradients`), or keep the weights in fp32"
    )]
    HalfPrecision {
        /// Path of the parameter in the model.
        path: String,
    },

    /// A module takes an input in the type of its parameters or tables only, which are in f32.
    #[error(
        "{path} is a `{module}` with parameters or tables in f32, and takes no input in {dtype}: if it \
         is Burn's, make it one of `burn_lean::operations::nn` by `into()`; or, if it is a \
         normalization, name its parameters with `keep`, where its own code or yours casts its input \
         to f32 and its output back, or cast it as well, with `cast_norms()`"
    )]
    CannotMix {
        /// Path of the module in the model.
        path: String,
        /// Its name.
        module: String,
        /// The type of the model.
        dtype: String,
    },

    /// A parameter that is to be cast is in another type than f32.
    #[error(
        "{path} is in {dtype}: only parameters in f32 are cast; cast it to f32 before, or name it \
         with `keep`"
    )]
    NotF32 {
        /// Path of the parameter in the model.
        path: String,
        /// Its type.
        dtype: String,
    },

    /// The optimizer takes no gradients in f32 of weights in half precision.
    #[error(
        "the optimizer of {path} computes in the type of the weight, and takes no gradient in f32: \
         take one that computes in f32, as `in_five_bytes` of `burn_lean::optim`, or leave out \
         `with_f32_gradients`"
    )]
    F32Gradients {
        /// Path of the parameter in the model.
        path: String,
    },

    /// The optimizer does not step this parameter, or not with the state that it has.
    #[error("the optimizer of {path} does not step it: {reason}")]
    NotSteppable {
        /// Path of the parameter in the model.
        path: String,
        /// The reason, and the way out.
        reason: String,
    },

    /// The device has no such type.
    #[error(
        "{path} is on {device}, which has no {dtype}: take a type that it has (WGSL has no bf16, and \
         NdArray neither bf16 nor f16)"
    )]
    NoSuchType {
        /// Path of the parameter in the model.
        path: String,
        /// Its device.
        device: String,
        /// The type that was asked for.
        dtype: String,
    },

    /// The parameter is marked as distributed: Burn reduces its gradient.
    #[error(
        "{path} is marked as distributed: Burn reduces its gradient over the devices at the end of \
         backward, when an armed parameter has been stepped; train this model without arming"
    )]
    Distributed {
        /// Path of the parameter in the model.
        path: String,
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

/// A refused call, with the model and the gradients that it was given.
#[derive(thiserror::Error)]
#[error("{error}")]
pub struct Refused<M, G = ()> {
    model: M,
    grads: G,
    // Boxed, so that a call that goes well does not carry the room that a refusal needs.
    error: Box<ReleaseError>,
}

impl<M> Refused<M> {
    pub(super) fn new(model: M, error: ReleaseError) -> Self {
        Self {
            model,
            grads: (),
            error: Box::new(error),
        }
    }
}

impl<M, G> Refused<M, G> {
    pub(super) fn with_grads(model: M, grads: G, error: ReleaseError) -> Self {
        Self {
            model,
            grads,
            error: Box::new(error),
        }
    }

    /// Why the call was refused.
    pub fn error(&self) -> &ReleaseError {
        &self.error
    }

    pub(super) fn model(&self) -> &M {
        &self.model
    }

    /// The model, as it was given.
    pub fn into_model(self) -> M {
        self.model
    }

    /// The model, as it was given, and why the call was refused.
    pub fn into_parts(self) -> (M, ReleaseError) {
        (self.model, *self.error)
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
        *refused.error
    }
}

/// Panics with the text of an error.
pub(crate) fn expect<T, E: std::fmt::Display>(result: Result<T, E>) -> T {
    result.unwrap_or_else(|error| panic!("gradient release: {error}"))
}
