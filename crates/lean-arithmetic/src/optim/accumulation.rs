//! Gradients of micro-batches that go into the moments, and not into a sum.

use std::num::NonZeroUsize;

use thiserror::Error;

use super::{Moments, Noise};

/// The place of a gradient in its optimizer step: the whole step, unless gradients of several
/// micro-batches go into the moments.
#[derive(Clone, Copy, Debug)]
pub struct MicroBatch {
    /// Whether moments decay and a step is counted.
    pub decays: bool,
    /// Whether the weight moves.
    pub moves: bool,
    /// Index of the micro-batch in the step, from 0.
    pub index: usize,
}

impl Default for MicroBatch {
    fn default() -> Self {
        Self {
            decays: true,
            moves: true,
            index: 0,
        }
    }
}

impl MicroBatch {
    /// The number of this step after `steps` earlier ones.
    pub fn time(self, steps: usize) -> usize {
        steps + usize::from(self.decays || steps == 0)
    }

    /// The noise that moments in 8 bits are rounded with in step number `time`.
    pub fn noise(self, time: usize) -> Noise {
        Noise::of_step(self.index as u64, time)
    }

    /// The decay rate of a moment: `beta`, or one if moments do not decay.
    pub fn kept<F: From<u8>>(self, beta: F) -> F {
        if self.decays { beta } else { F::from(1) }
    }
}

/// How often moments decay while gradients of micro-batches are added to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MomentDecay {
    /// With each micro-batch, as if each were a step that does not move the weight: what optimi
    /// calls optimizer accumulation. Moments then remember as many micro-batches as they would
    /// remember steps.
    EachMicroBatch,
    /// With the first micro-batch of a step: AdamA, Zhang et al. (2023), "Adam Accumulation to
    /// Reduce Memory Footprints of both Activations and Gradients for Large-scale DNN Training",
    /// <https://arxiv.org/abs/2305.19982>.
    ///
    /// The first moment, and the velocity of SGD, are those of accumulated gradients but for
    /// rounding. The second moment is the sum of the squares of the gradients, and not the square
    /// of their sum.
    EachStep,
}

/// Why an optimizer cannot add the gradients of micro-batches to its moments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CannotAccumulate {
    /// No micro-batch would ever move the weights.
    #[error("a step of zero micro-batches would never come: accumulate over one or more")]
    NoMicroBatches,
    /// The optimizer keeps no moment.
    #[error(
        "SGD without momentum has no moment that gradients could go into: give it momentum, or \
         accumulate gradients in sums"
    )]
    NoMoment,
    /// The step uses the last gradient by itself.
    #[error(
        "{optimizer} moves a weight by its last gradient too, so that those of the earlier \
         micro-batches would count for less: take `MomentDecay::EachMicroBatch`, or accumulate \
         gradients"
    )]
    StepsWithGradient {
        /// The name of the optimizer.
        optimizer: &'static str,
    },
    /// Moments in bf16 stand still where each takes the gradients of a step without decaying.
    #[error(
        "moments in bf16 that decay once a step stand still: what a micro-batch adds is less than \
         bf16 can hold; take `MomentDecay::EachMicroBatch`, or keep the moments in 32 bits or in 8"
    )]
    Bf16Moments,
}

/// How gradients of micro-batches go into the moments.
#[derive(Clone, Copy, Debug)]
pub struct MicroBatches {
    count: NonZeroUsize,
    decay: MomentDecay,
}

impl MicroBatches {
    /// Settings for `count` micro-batches in a step.
    ///
    /// # Errors
    ///
    /// [`NoMicroBatches`](CannotAccumulate::NoMicroBatches) if there are none.
    pub fn new(count: usize, decay: MomentDecay) -> Result<Self, CannotAccumulate> {
        let count = NonZeroUsize::new(count).ok_or(CannotAccumulate::NoMicroBatches)?;
        Ok(Self { count, decay })
    }

    /// Refuses bf16 for moments that decay once a step: between its micro-batches they keep all of
    /// themselves, and of many gradients the last ones would be rounded away.
    ///
    /// # Errors
    ///
    /// [`Bf16Moments`](CannotAccumulate::Bf16Moments).
    pub fn check_moments(&self, moments: Moments) -> Result<(), CannotAccumulate> {
        match self.keeps_all() && moments == Moments::Bf16 {
            true => Err(CannotAccumulate::Bf16Moments),
            false => Ok(()),
        }
    }

    /// The shares that moments keep of themselves with a gradient, of those that they keep in a
    /// step.
    pub fn kept_shares(&self, of_step: Vec<(&'static str, f64)>) -> Vec<(&'static str, f64)> {
        match self.keeps_all() {
            true => vec![("the share kept with `MomentDecay::EachStep`", 1.0)],
            false => of_step,
        }
    }

    fn keeps_all(&self) -> bool {
        self.decay == MomentDecay::EachStep && self.count.get() > 1
    }

    /// The place of the next gradient in its step, and the number of gradients in the moments after
    /// it.
    pub fn next(&self, gradients: usize) -> (MicroBatch, usize) {
        // `gradients` is larger if the record comes from a run with longer steps.
        let moves = gradients + 1 >= self.count.get();
        let micro_batch = MicroBatch {
            decays: gradients == 0 || self.decay == MomentDecay::EachMicroBatch,
            moves,
            index: gradients,
        };
        (micro_batch, if moves { 0 } else { gradients + 1 })
    }
}

impl MomentDecay {
    /// Refuses moments that decay once a step, for an optimizer that uses the last gradient by
    /// itself.
    ///
    /// # Errors
    ///
    /// [`StepsWithGradient`](CannotAccumulate::StepsWithGradient).
    pub fn steps_with_gradient(self, optimizer: &'static str) -> Result<(), CannotAccumulate> {
        match self {
            Self::EachMicroBatch => Ok(()),
            Self::EachStep => Err(CannotAccumulate::StepsWithGradient { optimizer }),
        }
    }
}
