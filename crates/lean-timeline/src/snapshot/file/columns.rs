//! The JSON of a snapshot: its rows as columns of small numbers.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::snapshot::{
    data::{Category, Holder, Parameter, Phase, PhaseKind, Sample, Snapshot},
    format::{FORMAT, VERSION},
};

/// The JSON object of a snapshot.
#[derive(Serialize, Deserialize)]
pub(super) struct Contents<'a> {
    format: Cow<'a, str>,
    version: u64,
    title: Cow<'a, str>,
    backend: Cow<'a, str>,
    parameters: Cow<'a, [Parameter]>,
    operations: Cow<'a, [String]>,
    warnings: Cow<'a, [String]>,
    categories: Vec<Category>,
    times: Vec<u64>,
    holders: Holders,
    phases: Phases,
    samples: Samples,
}

#[derive(Default, Serialize, Deserialize)]
struct Holders {
    bytes: Vec<u64>,
    category: Vec<usize>,
    parameter: Vec<Option<usize>>,
    operation: Vec<usize>,
    from: Vec<u64>,
    ticks: Vec<u64>,
}

#[derive(Default, Serialize, Deserialize)]
struct Phases {
    kind: Vec<Kind>,
    parameter: Vec<Option<usize>>,
    iteration: Vec<usize>,
    from: Vec<u64>,
    ticks: Vec<u64>,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Kind {
    Forward,
    Backward,
    Optimizer,
    Step,
}

#[derive(Default, Serialize, Deserialize)]
struct Samples {
    tick: Vec<u64>,
    in_use: Vec<i64>,
    above: Vec<i64>,
    operation: Vec<Option<usize>>,
}

/// The part of [`Contents`] that every version of the format has.
#[derive(Deserialize)]
pub(super) struct Header {
    pub(super) format: String,
    pub(super) version: u64,
}

impl<'a> Contents<'a> {
    pub(super) fn of(snapshot: &'a Snapshot) -> Self {
        let mut holders = Holders::default();
        let mut last = 0;
        for holder in &snapshot.holders {
            holders.bytes.push(holder.bytes);
            holders.category.push(holder.category.layer());
            holders.parameter.push(holder.parameter);
            holders.operation.push(holder.operation);
            holders.from.push((holder.from - last) as u64);
            holders.ticks.push((holder.until - holder.from) as u64);
            last = holder.from;
        }
        let mut phases = Phases::default();
        let mut last = 0;
        for phase in &snapshot.phases {
            let (kind, parameter) = match phase.kind {
                PhaseKind::Forward => (Kind::Forward, None),
                PhaseKind::Backward => (Kind::Backward, None),
                PhaseKind::Optimizer => (Kind::Optimizer, None),
                PhaseKind::Step(parameter) => (Kind::Step, Some(parameter)),
            };
            phases.kind.push(kind);
            phases.parameter.push(parameter);
            phases.iteration.push(phase.iteration);
            phases.from.push((phase.from - last) as u64);
            phases.ticks.push((phase.until - phase.from) as u64);
            last = phase.from;
        }
        let mut samples = Samples::default();
        let mut last = (0, 0);
        for sample in &snapshot.samples {
            samples.tick.push((sample.tick - last.0) as u64);
            samples.in_use.push(sample.in_use as i64 - last.1);
            samples
                .above
                .push(sample.peak as i64 - sample.in_use as i64);
            samples.operation.push(sample.operation);
            last = (sample.tick, sample.in_use as i64);
        }
        let mut last = 0;
        let times = snapshot.times.iter().map(|time| {
            let since = time - last;
            last = *time;
            since
        });
        Self {
            format: FORMAT.into(),
            version: VERSION,
            title: snapshot.title.as_str().into(),
            backend: snapshot.backend.as_str().into(),
            parameters: snapshot.parameters.as_slice().into(),
            operations: snapshot.operations.as_slice().into(),
            warnings: snapshot.warnings.as_slice().into(),
            categories: Category::ALL.into(),
            times: times.collect(),
            holders,
            phases,
            samples,
        }
    }

    pub(super) fn into_snapshot(self) -> Result<Snapshot, String> {
        let times = sums(self.times.into_iter(), "times")?;
        let holders = self.holders.into_rows(&self.categories)?;
        Ok(Snapshot {
            title: self.title.into_owned(),
            backend: self.backend.into_owned(),
            parameters: self.parameters.into_owned(),
            operations: self.operations.into_owned(),
            times,
            holders,
            phases: self.phases.into_rows()?,
            samples: self.samples.into_rows()?,
            warnings: self.warnings.into_owned(),
        })
    }
}

impl Holders {
    fn into_rows(self, categories: &[Category]) -> Result<Vec<Holder>, String> {
        let count = self.bytes.len();
        lengths(
            "holders",
            count,
            &[
                self.category.len(),
                self.parameter.len(),
                self.operation.len(),
                self.from.len(),
                self.ticks.len(),
            ],
        )?;
        let spans = spans(self.from, self.ticks, "holders")?;
        let row = |(number, (from, until)): (usize, (usize, usize))| {
            let category = self.category[number];
            let category = categories.get(category).copied().ok_or_else(|| {
                let count = categories.len();
                format!("holder {number} is of category {category}, of {count}")
            })?;
            Ok(Holder {
                bytes: self.bytes[number],
                category,
                parameter: self.parameter[number],
                operation: self.operation[number],
                from,
                until,
            })
        };
        spans.into_iter().enumerate().map(row).collect()
    }
}

impl Phases {
    fn into_rows(self) -> Result<Vec<Phase>, String> {
        let count = self.kind.len();
        lengths(
            "phases",
            count,
            &[
                self.parameter.len(),
                self.iteration.len(),
                self.from.len(),
                self.ticks.len(),
            ],
        )?;
        let spans = spans(self.from, self.ticks, "phases")?;
        let row = |(number, (from, until)): (usize, (usize, usize))| {
            let kind = match (self.kind[number], self.parameter[number]) {
                (Kind::Forward, _) => PhaseKind::Forward,
                (Kind::Backward, _) => PhaseKind::Backward,
                (Kind::Optimizer, _) => PhaseKind::Optimizer,
                (Kind::Step, Some(parameter)) => PhaseKind::Step(parameter),
                (Kind::Step, None) => {
                    return Err(format!("phase {number} is the step of no parameter"));
                }
            };
            Ok(Phase {
                kind,
                iteration: self.iteration[number],
                from,
                until,
            })
        };
        spans.into_iter().enumerate().map(row).collect()
    }
}

impl Samples {
    fn into_rows(self) -> Result<Vec<Sample>, String> {
        let count = self.tick.len();
        lengths(
            "samples",
            count,
            &[self.in_use.len(), self.above.len(), self.operation.len()],
        )?;
        let ticks = sums(self.tick.into_iter(), "the ticks of samples")?;
        let mut in_use = 0_u64;
        let row = |(number, tick): (usize, u64)| {
            let impossible = || format!("sample {number} is of fewer bytes than none");
            in_use = in_use
                .checked_add_signed(self.in_use[number])
                .ok_or_else(impossible)?;
            let peak = in_use
                .checked_add_signed(self.above[number])
                .ok_or_else(impossible)?;
            Ok(Sample {
                tick: index(tick),
                in_use,
                peak,
                operation: self.operation[number],
            })
        };
        ticks.into_iter().enumerate().map(row).collect()
    }
}

fn lengths(of: &str, count: usize, columns: &[usize]) -> Result<(), String> {
    match columns.iter().find(|column| **column != count) {
        None => Ok(()),
        Some(column) => Err(format!("{of} have columns of {count} and of {column}")),
    }
}

fn sums(differences: impl Iterator<Item = u64>, of: &str) -> Result<Vec<u64>, String> {
    let mut sum = 0_u64;
    differences
        .map(|difference| {
            sum = sum
                .checked_add(difference)
                .ok_or_else(|| format!("{of} are beyond all reason"))?;
            Ok(sum)
        })
        .collect()
}

/// The ranges with these first ticks and lengths.
fn spans(from: Vec<u64>, ticks: Vec<u64>, of: &str) -> Result<Vec<(usize, usize)>, String> {
    let from = sums(from.into_iter(), of)?;
    let span = |(from, ticks): (u64, u64)| (index(from), index(from.saturating_add(ticks)));
    Ok(from.into_iter().zip(ticks).map(span).collect())
}

/// A number that is too large for an index becomes one that no range contains.
fn index(value: u64) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}
