//! A slot as its optimizer sees it, whatever its backend.

use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;

use burn::Tensor;
use burn::backend::DispatchTensor;

use crate::error::ReleaseError;
use crate::path::Path;

/// The slot of an armed parameter on some backend.
#[cfg_attr(not(feature = "train"), allow(dead_code))] // Only burn-train's Learner calls some.
pub(crate) trait ArmedSlot: Send + Sync + Debug {
    fn path(&self) -> &Path;
    fn leaf_id(&self) -> u64;
    fn step_state(&self) -> StepState;
    /// Takes the sum of earlier micro-batches, unless a step has used it.
    fn take_sum(&self) -> Option<DispatchTensor>;
    /// Returns the sum of earlier micro-batches, and keeps it.
    fn sum(&self) -> Option<DispatchTensor>;
    fn has_sum(&self) -> bool;
    /// Whether a forward pass has used the parameter.
    fn is_used(&self) -> bool;
    fn arm_for(&self, purpose: Purpose, sum: Option<DispatchTensor>);
    fn has_ended(&self) -> bool;
    /// Ends the arming, and returns the weight.
    fn end(&self, how: Ended) -> DispatchTensor;
    /// Receives the mean over all replicas: measures it or steps with it. Without a gradient, takes
    /// the weight from the replica that steps the parameter.
    fn reduced(&self, grad: Option<Tensor<1>>) -> Result<(), ReleaseError>;
    /// Ends a micro-batch or a measuring pass: another pass over the same weight follows.
    fn rest(&self);
    /// Steps with an ordinary gradient.
    fn step_now(&self, grad: DispatchTensor);
    /// Notes that another parameter goes on with the weight.
    fn go_on(&self);
    /// Begins to watch for mappers that visit the parameter.
    fn watch(&self);
    /// Whether a mapper has visited the parameter since [`watch`](Self::watch).
    fn was_mapped(&self) -> bool;
    /// Whether backward has stepped the parameter, and no call has ended that step.
    fn is_stepped(&self) -> bool;
    /// Whether a copy of the model exists that was taken after the step.
    fn has_stepped_copy(&self) -> bool;
    /// Ends the arming, and keeps the weight for models that still hold the slot's placeholder.
    fn abandon(&self);
    /// The `ParamMapper` of the parameter.
    fn mapper(&self) -> Arc<dyn Any + Send + Sync>;
}

/// The purpose for which a slot takes a complete gradient.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Steps with it.
    Step,
    /// Measures its norm, and drops it.
    MeasureNorm,
    /// Adds it to the sum of a window of micro-batches.
    Hold,
}

/// How an arming has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// By `step` or `accumulate`.
    Finished,
    /// By `disarm`.
    Disarmed,
    /// Another model was armed or finished in its place. The slot keeps the weight.
    Abandoned,
}

/// The fate of a slot's gradient in this step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StepState {
    /// The gradient was taken: stepped with, added to the sum or sent to the other replicas.
    pub(crate) taken: bool,
    /// The gradient was taken, and the weight is unchanged.
    pub(crate) skipped: bool,
    /// Another gradient came after the one that was taken.
    pub(crate) second: bool,
    /// The step was at the end of backward, where all gradients exist.
    pub(crate) late: bool,
}
