//! What a step did to each parameter.

use burn::module::ParamId;

/// What happened to a parameter in one optimizer step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Outcome {
    /// Stepped inside backward, the moment its gradient was complete.
    Released,
    /// Stepped at the end of backward: in the first pass, where nothing is known of the tape yet
    /// ([`FirstPass`](crate::FirstPass)).
    ReleasedLate,
    /// Stepped by `step`, from an ordinary gradient.
    Ordinary,
    /// No gradient arrived: neither the parameter nor any state was touched.
    Unused,
}

/// What happened in one optimizer step, parameter by parameter.
#[derive(Clone, Debug, Default)]
pub struct StepReport {
    pub(super) outcomes: Vec<(ParamId, Outcome)>,
    pub(super) in_place: usize,
    pub(super) is_plain: bool,
}

impl StepReport {
    /// The parameters that require gradients, in the order of the model's fields, and what happened to
    /// each.
    pub fn outcomes(&self) -> impl Iterator<Item = (ParamId, Outcome)> + '_ {
        self.outcomes.iter().copied()
    }

    /// How many parameters had this outcome.
    pub fn count(&self, outcome: Outcome) -> usize {
        self.outcomes.iter().filter(|(_, found)| *found == outcome).count()
    }

    /// How many of those stepped inside backward were alone in their memory, and so could be written in
    /// place. A living copy of the model keeps the others.
    pub fn in_place(&self) -> usize {
        self.in_place
    }

    /// Whether every gradient is known to have been added up in plain Burn's order, so that its bits are
    /// plain Burn's. If not, the last bits may differ: in the first pass with
    /// [`FirstPass::Small`](crate::FirstPass), and where a forward pass is shorter than those before it.
    pub fn is_plain(&self) -> bool {
        self.is_plain
    }
}
