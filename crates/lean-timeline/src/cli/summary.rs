//! The summary of a snapshot, as text.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use super::text::{clean, mib, percent, table};
use crate::analysis::{Peak, Totals};
use crate::snapshot::phases::PhaseNames;
use crate::snapshot::{Category, Holder, Snapshot};

/// The largest difference between holders and bytes in use, as a share, of a recording that adds
/// up.
const ADDS_UP: f64 = 0.01;
/// Number of pieces in the list of the largest.
const LARGEST: usize = 10;

pub(super) fn summary(snapshot: &Snapshot) -> String {
    let (totals, phases) = (Totals::of(snapshot), PhaseNames::of(snapshot));
    let head = head(snapshot);
    let Some(peak) = Peak::of(snapshot, &totals) else {
        return format!("{head}\n\nNothing was recorded\n");
    };
    let place = match phases.at(peak.tick) {
        "" => "between the phases".into(),
        phase => clean(&format!("in the {phase}")),
    };
    let (bytes, tick) = (peak.bytes, peak.tick);
    let (mib, time) = (mib(bytes), snapshot.times[tick] as f64 / 1e3);
    let categories = categories(&totals, &peak, &phases);
    let largest = largest(snapshot, &peak, &phases);
    let adds_up = match totals.disagreement(snapshot) {
        None => "How well it adds up is not known: no sample of what was in use".into(),
        Some(worst) => {
            let does = if worst <= ADDS_UP {
                "Adds up"
            } else {
                "Does not add up"
            };
            // Rounded up, because it is a bound.
            let percent = (worst * 1e4).ceil() / 1e2;
            format!("{does}: what is named differs from what was in use by {percent:.2} % at most")
        }
    };
    format!(
        "{head}\n\nPeak: {mib} MiB ({bytes} bytes), {place} (event {tick}, at {time:.1} ms)\n\n\
         {categories}\n\n{largest}\n\n{adds_up}\n"
    )
}

fn head(snapshot: &Snapshot) -> String {
    let steps: BTreeSet<usize> = snapshot.phases.iter().map(|of| of.iteration).collect();
    let (steps, events, samples) = (steps.len(), snapshot.times.len(), snapshot.samples.len());
    let parameters = snapshot.parameters.iter();
    // Nothing checks the sizes that a file gives for its parameters.
    let bytes = mib(parameters
        .clone()
        .map(|of| of.bytes)
        .fold(0, u64::saturating_add));
    let mut head = format!(
        "{}\n  backend   {}\n  model     {} parameters, {bytes} MiB\n  \
         recorded  {steps} steps, {events} events, {samples} samples of what is in use",
        clean(&snapshot.title),
        clean(&snapshot.backend),
        parameters.len()
    );
    for warning in &snapshot.warnings {
        head += "\n  warning   ";
        head += &warning.replace(char::is_control, "?");
    }
    head
}

/// The training step and its part, without the parameter that is stepped.
fn short(phase: &str) -> &str {
    match phase.split(',').next() {
        None | Some("") => "-",
        Some(phase) => phase,
    }
}

fn categories(totals: &Totals, peak: &Peak, phases: &PhaseNames) -> String {
    let header = [
        "category",
        "MiB at the peak",
        "share",
        "most MiB at once",
        "in",
    ];
    let mut table = table(&header, 1..4);
    for category in Category::ALL.into_iter().rev() {
        let ((most, tick), bytes) = (totals.most(category), peak.bytes_of(category));
        let place = if most > 0 { phases.at(tick) } else { "" };
        let (share, most) = (percent(bytes, peak.bytes), mib(most));
        table.add_row([category.name(), &mib(bytes), &share, &most, short(place)]);
    }
    table.add_row(["sum", &mib(peak.bytes), &percent(peak.bytes, peak.bytes)]);
    table.to_string()
}

fn largest(snapshot: &Snapshot, peak: &Peak, phases: &PhaseNames) -> String {
    let header = ["MiB", "category", "parameter", "operation", "made in"];
    let mut table = table(&header, 0..1);
    let row = |held: &Holder| {
        let parameter = held
            .parameter
            .map_or("", |of| &snapshot.parameters[of].path);
        let operation = clean(&snapshot.operations[held.operation]);
        let place = short(phases.at(held.from));
        (
            held.bytes,
            held.category,
            clean(parameter),
            operation,
            place,
        )
    };
    let mut rows: Vec<_> = peak.holders.iter().map(row).collect();
    let made = snapshot
        .holders
        .iter()
        .take_while(|held| held.from <= peak.tick);
    if let Some(last) = made.last().filter(|_| peak.workspace > 0) {
        let (_, _, parameter, operation, _) = row(last);
        let place = short(phases.at(peak.tick));
        let operation = format!("within {operation}");
        rows.push((
            peak.workspace,
            Category::Temporaries,
            parameter,
            operation,
            place,
        ));
        rows.sort_by_key(|row| Reverse(row.0));
    }
    let all = rows.len();
    rows.truncate(LARGEST);
    for (bytes, category, parameter, operation, place) in &rows {
        table.add_row([&mib(*bytes), category.name(), parameter, operation, place]);
    }
    let bytes = rows.iter().map(|row| row.0).sum();
    let (shown, share) = (rows.len(), percent(bytes, peak.bytes));
    format!("The {shown} largest of {all} in the peak, {share} of it:\n\n{table}")
}
