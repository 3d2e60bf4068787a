//! Whether the parts of a snapshot agree with each other.

use crate::snapshot::{
    data::{PhaseKind, Sample, Snapshot},
    format::EXACT,
};

/// Checks that every index and tick exists, and that times, holders, phases and samples are in
/// order.
pub(super) fn check(snapshot: &Snapshot) -> Result<(), String> {
    let ticks = snapshot.times.len();
    for (name, are_sorted) in [
        ("times", snapshot.times.is_sorted()),
        ("holders", snapshot.holders.is_sorted_by_key(|it| it.from)),
        ("phases", snapshot.phases.is_sorted_by_key(|it| it.from)),
        ("samples", snapshot.samples.is_sorted_by_key(|it| it.tick)),
    ] {
        ensure(are_sorted, || format!("{name} are out of order"))?;
    }
    ensure(
        snapshot.times.last().is_none_or(|time| *time < EXACT),
        || "times are beyond all reason".into(),
    )?;
    let mut shapes = snapshot.parameters.iter().map(|parameter| &parameter.shape);
    let elements = shapes.try_fold(0_u64, |sum, shape| {
        let mut axes = shape.iter().map(|axis| *axis as u64);
        sum.checked_add(axes.try_fold(1, u64::checked_mul)?)
    });
    ensure(
        elements.is_some_and(|elements| elements < EXACT / 16),
        || "the parameters have more elements than any machine holds".into(),
    )?;

    let span = |from: usize, until: usize, of: &str, number: usize| {
        ensure(from <= until, || {
            format!("{of} {number} ends at tick {until}, before it begins at {from}")
        })?;
        ensure(from < ticks && until <= ticks, || {
            format!("{of} {number} lasts from tick {from} to {until}, of {ticks}")
        })
    };
    let exists = |index: Option<usize>, count: usize, kind: &str, of: &str, number: usize| {
        let missing = index.filter(|index| *index >= count);
        missing.map_or(Ok(()), |index| {
            Err(format!("{of} {number} is of {kind} {index}, of {count}"))
        })
    };
    let (parameters, operations) = (snapshot.parameters.len(), snapshot.operations.len());
    let parameter = |index, of, number| exists(index, parameters, "parameter", of, number);
    let operation = |index, of, number| exists(index, operations, "operation", of, number);
    for (number, holder) in snapshot.holders.iter().enumerate() {
        span(holder.from, holder.until, "holder", number)?;
        parameter(holder.parameter, "holder", number)?;
        operation(Some(holder.operation), "holder", number)?;
    }
    for (number, phase) in snapshot.phases.iter().enumerate() {
        span(phase.from, phase.until, "phase", number)?;
        ensure((phase.iteration as u64) < EXACT, || {
            format!("phase {number} is of a step beyond all reason")
        })?;
        if let PhaseKind::Step(index) = phase.kind {
            parameter(Some(index), "phase", number)?;
        }
    }
    for (number, sample) in snapshot.samples.iter().enumerate() {
        let Sample { tick, .. } = sample;
        ensure(*tick < ticks, || {
            format!("sample {number} is after tick {tick}, of {ticks}")
        })?;
        operation(sample.operation, "sample", number)?;
        ensure(sample.in_use.max(sample.peak) < EXACT, || {
            format!("sample {number} is of more bytes than any machine has")
        })?;
    }
    check_sums(snapshot)
}

/// Checks that the bytes held at once are exact numbers for every reader.
fn check_sums(snapshot: &Snapshot) -> Result<(), String> {
    let mut change = vec![0_i128; snapshot.times.len() + 1];
    for holder in &snapshot.holders {
        change[holder.from] += i128::from(holder.bytes);
        change[holder.until] -= i128::from(holder.bytes);
    }
    let mut sum = 0;
    for (tick, change) in change.into_iter().enumerate() {
        sum += change;
        ensure(sum < i128::from(EXACT), || {
            format!("more bytes are held at tick {tick} than any machine has")
        })?;
    }
    Ok(())
}

fn ensure(holds: bool, problem: impl FnOnce() -> String) -> Result<(), String> {
    match holds {
        true => Ok(()),
        false => Err(problem()),
    }
}
