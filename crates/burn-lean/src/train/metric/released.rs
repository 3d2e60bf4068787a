use super::{MonitorMetric, Reading};
use crate::Outcome;
use crate::train::monitor::Iteration;

/// Share of the stepped parameters that were stepped the moment their gradient was complete, in
/// percent.
///
/// Below 100 the entry shows the number of late steps (at the end of backward, as in the first
/// pass) and of ordinary steps (parameters that were not armed).
pub type ReleasedMetric = MonitorMetric<Released>;

/// The reading of [`ReleasedMetric`].
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

/// The numbers of parameters that were released, late and not armed.
fn counts(iteration: &Iteration) -> Option<[usize; 3]> {
    let (report, _) = iteration.step.as_ref()?;
    let outcomes = [Outcome::Released, Outcome::ReleasedLate, Outcome::Ordinary];
    Some(outcomes.map(|outcome| report.count(outcome)))
}
