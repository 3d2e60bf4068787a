//! The report of a step, parameter by parameter.

use burn::module::ParamId;

use crate::gradients::StepGradients;

/// The outcome of one optimizer step for a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Outcome {
    /// Stepped inside backward, the moment its gradient was complete.
    Released,
    /// Stepped when backward had ended: with gradients of earlier micro-batches alone, after an
    /// operation that registers a gradient less often than it uses the parameter, with a gradient that
    /// was in flight to [replicas](crate::ReleaseOptimizer::with_reduction), or by
    /// [`step`](crate::ReleaseOptimizer::step).
    AtEnd,
    /// Not stepped, because its gradient has overflowed ([`LossScaler`](crate::LossScaler)).
    Skipped,
    /// No gradient arrived: neither the parameter nor any state was touched.
    Unused,
}

/// The outcomes of one optimizer step.
#[derive(Clone, Debug, Default)]
pub struct StepReport {
    pub(super) outcomes: Vec<(ParamId, Outcome)>,
    pub(super) late: Vec<ParamId>,
    pub(super) in_place: usize,
    pub(super) gradients: StepGradients,
}

impl StepReport {
    /// The event of a step, for whoever listens.
    #[cfg(feature = "tracing")]
    pub(super) fn trace(&self) {
        tracing::debug!(
            target: "burn_lean::step",
            released = self.count(Outcome::Released),
            at_end = self.count(Outcome::AtEnd),
            skipped = self.count(Outcome::Skipped),
            unused = self.count(Outcome::Unused),
            late = self.late.len(),
            in_place = self.in_place,
            grad_norm = self.grad_norm(),
            clip_coefficient = self.clip_coefficient(),
            loss_scale = self.loss_scale(),
            "step"
        );
    }

    /// The parameters that were stepped.
    pub(super) fn stepped(&self) -> impl Iterator<Item = ParamId> + '_ {
        let outcomes = self.outcomes.iter();
        let stepped =
            outcomes.filter(|(_, outcome)| !matches!(outcome, Outcome::Skipped | Outcome::Unused));
        stepped.map(|(param, _)| *param)
    }

    /// The outcome for each parameter that requires gradients, in the order of the model's fields.
    pub fn outcomes(&self) -> impl Iterator<Item = (ParamId, Outcome)> + '_ {
        self.outcomes.iter().copied()
    }

    /// Number of parameters with this outcome.
    pub fn count(&self, outcome: Outcome) -> usize {
        let outcomes = self.outcomes.iter();
        outcomes.filter(|(_, found)| *found == outcome).count()
    }

    /// The parameters whose gradients were complete only at the end of backward. These gradients
    /// may all have existed at the same time. The gradients of a first layer always are. Others are
    /// reached by way of a function of parameters alone, as the weight of a
    /// [`Linear`](burn::nn::Linear) can be: [`EarlyGradients`](crate::EarlyGradients) lets them
    /// come one by one.
    pub fn late(&self) -> impl Iterator<Item = ParamId> + '_ {
        self.late.iter().copied()
    }

    /// Number of parameters that were stepped in place. A living copy of the model prevents it, since
    /// it shares their memory.
    pub fn in_place(&self) -> usize {
        self.in_place
    }

    /// The global norm of the gradients, before clipping and without the scale of the loss. `None` of
    /// a step that left gradients out, and where no setting needs norms:
    /// [`with_grad_norm`](crate::ReleaseOptimizer::with_grad_norm) asks for them.
    pub fn grad_norm(&self) -> Option<f64> {
        self.gradients.norm
    }

    /// Factor for every gradient, where gradients are clipped by a norm of all of them.
    pub fn clip_coefficient(&self) -> Option<f64> {
        self.gradients.coefficient
    }

    /// The scale of the loss in this step, with a [`LossScaler`](crate::LossScaler).
    pub fn loss_scale(&self) -> Option<f64> {
        self.gradients.scale
    }
}
