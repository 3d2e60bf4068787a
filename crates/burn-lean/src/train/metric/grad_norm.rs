use super::{MonitorMetric, Reading};
use crate::train::monitor::Iteration;

/// The norm of all gradients of a step together, before clipping.
///
/// The optimizer must measure it: see
/// [`with_grad_norm`](crate::ReleaseOptimizer::with_grad_norm). Clipping by the global norm does so,
/// too.
pub type GradNormMetric = MonitorMetric<GradNorm>;

/// The reading of [`GradNormMetric`].
#[derive(Clone, Copy, Debug)]
pub struct GradNorm;

impl Reading for GradNorm {
    const NAME: &str = "Gradient Norm";
    const DESCRIPTION: &str = "The norm of all gradients together, before clipping.";
    const UNIT: Option<&str> = None;
    const PRECISION: usize = 4;
    const HIGHER_IS_BETTER: bool = false;

    fn value(iteration: &Iteration) -> Option<f64> {
        iteration.step.as_ref()?.0.grad_norm()
    }

    fn remark(iteration: &Iteration) -> Option<String> {
        let coefficient = iteration.step.as_ref()?.0.clip_coefficient()?;
        (coefficient < 1.0).then(|| format!("clipped by {coefficient:.4}"))
    }
}
