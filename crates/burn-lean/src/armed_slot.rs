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
    fn phase(&self) -> Phase;
    /// Whether the parameter's step is at the end of backward, where all gradients exist.
    fn is_late(&self) -> bool;
    /// Takes the sum of earlier micro-batches, unless a step has used it.
    fn take_sum(&self) -> Option<DispatchTensor>;
    /// Returns the sum of earlier micro-batches, and keeps it.
    fn sum(&self) -> Option<DispatchTensor>;
    fn has_sum(&self) -> bool;
    /// Whether a forward pass has used the parameter.
    fn is_used(&self) -> bool;
    fn arm_for(&self, purpose: Purpose, sum: Option<DispatchTensor>);
    /// Ends the arming, and returns the weight.
    fn end(&self) -> DispatchTensor;
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

/// The life of a parameter in one arming.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// No gradient has come yet.
    Waiting,
    /// A gradient was taken.
    Taken(Taken),
    /// Another one has come after it.
    TakenTwice(Taken),
    /// Another model was armed or finished in its place. The slot keeps the weight for those that
    /// still have its placeholder.
    Abandoned(Option<Taken>),
    /// The arming has ended, and the `Param` has its weight back.
    Ended,
}

/// What was done with a gradient.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// It is in flight to the other replicas, and the weight is the old one.
    InFlight,
    /// It has made the weight the new one.
    Stepped,
    /// It was dropped, and the weight is the old one.
    Skipped,
    /// It was added to the sum of a window of micro-batches.
    Added,
    /// Its norm was measured.
    Measured,
}

impl Phase {
    pub(crate) fn has_ended(self) -> bool {
        matches!(self, Self::Abandoned(_) | Self::Ended)
    }

    /// What was done with the gradient, if one was taken.
    pub(crate) fn taken(self) -> Option<Taken> {
        match self {
            Self::Taken(taken) | Self::TakenTwice(taken) | Self::Abandoned(Some(taken)) => {
                Some(taken)
            }
            Self::Waiting | Self::Abandoned(None) | Self::Ended => None,
        }
    }

    pub(crate) fn is_taken(self) -> bool {
        self.taken().is_some()
    }

    pub(crate) fn is_taken_twice(self) -> bool {
        matches!(self, Self::TakenTwice(_))
    }

    /// The phase once this was done with the gradient.
    pub(crate) fn after(self, taken: Taken) -> Self {
        match self {
            Self::TakenTwice(_) => Self::TakenTwice(taken),
            _ => Self::Taken(taken),
        }
    }
}
