use burn_gradient_release::Outcome;

use super::{MonitorMetric, monitor_metric::Reading};
use crate::monitor::Iteration;

/// How many of the parameters that were stepped were stepped the moment their gradient was
/// complete, in percent.
///
/// Anything below 100 is a finding: the entry then says how many came late (at the end of backward)
/// and how many were not armed at all (an ordinary step).
pub type ReleasedMetric = MonitorMetric<Released>;

/// Input of [`ReleasedMetric`].
#[derive(Clone, Copy, Debug)]
pub struct Released;

impl Reading for Released {
    const NAME: &str = "Released";
    const DESCRIPTION: &str = "Parameters stepped the moment their gradient was complete.";
    const UNIT: Option<&str> = Some("%");
    const PRECISION: usize = 1;
    const HIGHER_IS_BETTER: bool = true;

    fn value(iteration: &Iteration) -> Option<f64> {
        let [released, late, ordinary] = counts(iteration)?;
        let stepped = released + late + ordinary;
        (stepped > 0).then(|| 100.0 * released as f64 / stepped as f64)
    }

    fn remark(iteration: &Iteration) -> Option<String> {
        let [released, late, ordinary] = counts(iteration)?;
        let stepped = released + late + ordinary;
        let mut remark = format!("{released} of {stepped} parameters");
        for (count, what) in [(late, "late"), (ordinary, "not armed")] {
            if count > 0 {
                remark += &format!(", {count} {what}");
            }
        }
        Some(remark)
    }
}

/// Numbers of parameters released, released late, and not armed.
fn counts(iteration: &Iteration) -> Option<[usize; 3]> {
    let report = iteration.report.as_ref()?;
    let outcomes = [Outcome::Released, Outcome::ReleasedLate, Outcome::Ordinary];
    Some(outcomes.map(|outcome| report.count(outcome)))
}
