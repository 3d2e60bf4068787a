//! Report of a step: the outcome for each parameter.

use std::collections::HashMap;

use burn::{module::ParamId, optim::LearningRate};

use super::gradients::GradientSummary;
use crate::util::progress::Recomputed;

/// Outcome of one optimizer step for a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Outcome {
    /// Stepped inside backward, the moment its gradient was complete.
    Released,
    /// Stepped at the end of backward: its lowest use does not lead to the loss.
    ReleasedLate,
    /// Stepped by `step`, from an ordinary gradient.
    Ordinary,
    /// A gradient arrived, but has overflown, so the parameter was not stepped.
    Skipped,
    /// The group of the parameter is frozen: its gradient was dropped, if one arrived.
    Frozen,
    /// No gradient arrived: neither the parameter nor any state was touched.
    Unused,
}

/// Outcome of one optimizer step, parameter by parameter.
#[derive(Clone, Debug, Default)]
pub struct StepReport {
    learning_rate: LearningRate,
    outcomes: Vec<(ParamId, Outcome)>,
    pub(super) recomputed: Recomputed,
    other_rates: HashMap<ParamId, LearningRate>,
    pub(super) gradients: GradientSummary,
}

impl StepReport {
    pub(super) fn new(
        learning_rate: LearningRate,
        other_rates: HashMap<ParamId, LearningRate>,
    ) -> Self {
        Self {
            learning_rate,
            other_rates,
            ..Self::default()
        }
    }

    /// The norm of all gradients together, before clipping and without the scale of the loss.
    /// `None` unless it was asked for
    /// ([`with_grad_norm`](crate::ReleaseOptimizer::with_grad_norm)), and for a step that left
    /// gradients out.
    pub fn grad_norm(&self) -> Option<f64> {
        self.gradients.norm
    }

    /// Factor applied to every gradient, where gradients are clipped by their global norm.
    pub fn clip_coefficient(&self) -> Option<f64> {
        self.gradients.coefficient
    }

    /// The scale of the loss in this step, if a gradient arrived.
    pub fn loss_scale(&self) -> Option<f64> {
        self.gradients.scale
    }

    /// Operations that the backward passes of the step have computed again.
    pub fn recomputed(&self) -> Recomputed {
        self.recomputed
    }

    pub(crate) fn push(&mut self, param: ParamId, outcome: Outcome) {
        self.outcomes.push((param, outcome));
    }

    /// The learning rate that was applied to a parameter: that of its group, if it has one.
    pub fn learning_rate_of(&self, param: ParamId) -> LearningRate {
        let other = self.other_rates.get(&param);
        other.copied().unwrap_or(self.learning_rate)
    }

    /// The learning rate that was applied to parameters without a rate of their own.
    pub fn learning_rate(&self) -> LearningRate {
        self.learning_rate
    }

    /// The outcome for each parameter that requires gradients, in the order of the model's fields.
    pub fn outcomes(&self) -> impl Iterator<Item = (ParamId, Outcome)> + '_ {
        self.outcomes.iter().copied()
    }

    pub(super) fn has_stepped(&self) -> bool {
        use Outcome::{Ordinary, Released, ReleasedLate};
        self.outcomes
            .iter()
            .any(|(_, found)| matches!(found, Released | ReleasedLate | Ordinary))
    }

    /// Number of parameters with this outcome.
    pub fn count(&self, outcome: Outcome) -> usize {
        self.outcomes
            .iter()
            .filter(|(_, found)| *found == outcome)
            .count()
    }
}
