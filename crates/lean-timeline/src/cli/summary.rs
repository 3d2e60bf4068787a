//! The summary of a snapshot, as text.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use super::text::{clean, mib, percent, table};
use crate::analysis::{Peak, Totals};
use crate::snapshot::{Category, Holder, PhaseNames, Snapshot};

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
    let peak_line = format!(
        "Peak: {} MiB ({} bytes), {place} (event {}, at {:.1} ms)",
        mib(peak.bytes),
        peak.bytes,
        peak.tick,
        snapshot.times[peak.tick] as f64 / 1e3
    );
    let categories = categories(&totals, &peak, &phases);
    let largest = largest(snapshot, &peak, &phases);
    let adds_up = adds_up(snapshot, &totals);
    [head, peak_line, categories, largest, adds_up].join("\n\n") + "\n"
}

fn head(snapshot: &Snapshot) -> String {
    let steps: BTreeSet<usize> = snapshot.phases.iter().map(|of| of.iteration).collect();
    let bytes = snapshot.parameters.iter().map(|of| of.bytes);
    let lines = [
        clean(&snapshot.title),
        format!("  backend   {}", clean(&snapshot.backend)),
        format!(
            "  model     {} parameters, {} MiB",
            snapshot.parameters.len(),
            // Nothing checks the sizes that a file gives for its parameters.
            mib(bytes.fold(0, u64::saturating_add))
        ),
        format!(
            "  recorded  {} steps, {} events, {} samples of what is in use",
            steps.len(),
            snapshot.times.len(),
            snapshot.samples.len()
        ),
    ];
    let warnings = snapshot.warnings.iter();
    let warnings = warnings.map(|warning| format!("  warning   {}", clean_words(warning)));
    Vec::from_iter(lines.into_iter().chain(warnings)).join("\n")
}

fn clean_words(text: &str) -> String {
    text.replace(|char: char| char.is_control(), "?")
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
        let place = if most > 0 {
            short(phases.at(tick))
        } else {
            "-"
        };
        let share = percent(bytes, peak.bytes);
        table.add_row([category.name(), &mib(bytes), &share, &mib(most), place]);
    }
    table.add_row(["sum", &mib(peak.bytes), &percent(peak.bytes, peak.bytes)]);
    table.to_string()
}

fn largest(snapshot: &Snapshot, peak: &Peak, phases: &PhaseNames) -> String {
    let header = ["MiB", "category", "parameter", "operation", "made in"];
    let mut table = table(&header, 0..1);
    let name = |held: &Holder| {
        let parameter = held
            .parameter
            .map_or("", |of| &snapshot.parameters[of].path);
        (
            clean(parameter),
            clean(&snapshot.operations[held.operation]),
        )
    };
    let mut rows: Vec<_> = peak
        .holders
        .iter()
        .map(|held| {
            let place = short(phases.at(held.from));
            (held.bytes, held.category, name(held), place)
        })
        .collect();
    if peak.workspace > 0 {
        let made = snapshot
            .holders
            .partition_point(|held| held.from <= peak.tick);
        let (parameter, operation) = snapshot.holders[..made]
            .last()
            .map(name)
            .unwrap_or_default();
        let names = (parameter, format!("within {operation}"));
        rows.push((
            peak.workspace,
            Category::Temporaries,
            names,
            short(phases.at(peak.tick)),
        ));
        rows.sort_by_key(|row| Reverse(row.0));
    }
    let all = rows.len();
    rows.truncate(LARGEST);
    for (bytes, category, (parameter, operation), place) in &rows {
        table.add_row([&mib(*bytes), category.name(), parameter, operation, place]);
    }
    let bytes = rows.iter().map(|row| row.0).sum();
    let share = percent(bytes, peak.bytes);
    format!(
        "The {} largest of {all} in the peak, {share} of it:\n\n{table}",
        rows.len()
    )
}

fn adds_up(snapshot: &Snapshot, totals: &Totals) -> String {
    match totals.disagreement(snapshot) {
        None => "How well it adds up is not known: no sample of what was in use".into(),
        Some(worst) => format!(
            "{}: what is named differs from what was in use by {:.2} % at most",
            if worst <= ADDS_UP {
                "Adds up"
            } else {
                "Does not add up"
            },
            // Rounded up, because it is a bound.
            (worst * 1e4).ceil() / 1e2
        ),
    }
}
