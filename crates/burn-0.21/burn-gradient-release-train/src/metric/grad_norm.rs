use super::{MonitorMetric, monitor_metric::Reading};
use crate::monitor::Iteration;

/// The norm of all gradients of a step together, before clipping.
///
/// For an optimizer that measures it:
/// [`with_grad_norm`](burn_gradient_release::ReleaseOptimizer::with_grad_norm), or a rule of
/// clipping that needs it.
pub type GradNormMetric = MonitorMetric<GradNorm>;

/// Input of [`GradNormMetric`].
#[derive(Clone, Copy, Debug)]
pub struct GradNorm;

impl Reading for GradNorm {
    const NAME: &str = "Gradient Norm";
    const DESCRIPTION: &str = "The norm of all gradients together, before clipping.";
    const UNIT: Option<&str> = None;
    const PRECISION: usize = 4;
    const HIGHER_IS_BETTER: bool = false;

    fn value(iteration: &Iteration) -> Option<f64> {
        iteration.report.as_ref()?.grad_norm()
    }

    fn remark(iteration: &Iteration) -> Option<String> {
        let coefficient = iteration.report.as_ref()?.clip_coefficient()?;
        (coefficient < 1.0).then(|| format!("clipped by {coefficient:.4}"))
    }
}
