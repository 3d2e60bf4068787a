//! What a step did to each parameter.

use burn::{module::ParamId, optim::LearningRate};

use crate::progress::Recomputed;

/// What happened to a parameter in one optimizer step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Outcome {
    /// Stepped inside backward, the moment its gradient was complete.
    Released,
    /// Stepped at the end of backward: its lowest use does not lead to the loss.
    ReleasedLate,
    /// Stepped by `step`, from an ordinary gradient.
    Ordinary,
    /// No gradient arrived: neither the parameter nor any state was touched.
    Unused,
}

/// What happened in one optimizer step, parameter by parameter.
#[derive(Clone, Debug, Default)]
pub struct StepReport {
    learning_rate: LearningRate,
    outcomes: Vec<(ParamId, Outcome)>,
    recomputed: Recomputed,
}

impl StepReport {
    pub(crate) fn new(learning_rate: LearningRate) -> Self {
        Self {
            learning_rate,
            outcomes: Vec::new(),
            recomputed: Recomputed::default(),
        }
    }

    pub(crate) fn set_recomputed(&mut self, recomputed: Recomputed) {
        self.recomputed = recomputed;
    }

    /// What the backward passes of the step have computed again.
    pub fn recomputed(&self) -> Recomputed {
        self.recomputed
    }

    pub(crate) fn push(&mut self, param: ParamId, outcome: Outcome) {
        self.outcomes.push((param, outcome));
    }

    /// The learning rate that was applied.
    pub fn learning_rate(&self) -> LearningRate {
        self.learning_rate
    }

    /// The parameters that require gradients, in the order of the model's fields, and what happened
    /// to each.
    pub fn outcomes(&self) -> impl Iterator<Item = (ParamId, Outcome)> + '_ {
        self.outcomes.iter().copied()
    }

    /// How many parameters had this outcome.
    pub fn count(&self, outcome: Outcome) -> usize {
        self.outcomes
            .iter()
            .filter(|(_, found)| *found == outcome)
            .count()
    }
}
