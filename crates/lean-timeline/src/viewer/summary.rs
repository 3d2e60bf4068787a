//! The summary of a snapshot, as text.

use super::text::{count, fit, mib, mib_more, percent, time, wrap};
use crate::analysis::{Agreement, Peak, Place, Totals};
use crate::snapshot::{Category, PhaseKind, Snapshot};
use comfy_table::presets::ASCII_MARKDOWN;
use comfy_table::{CellAlignment, ContentArrangement, Table};
use std::collections::BTreeSet;

/// The longest line, in characters.
const WIDTH: usize = 100;
/// The largest difference between holders and bytes in use, as a share, of a recording that adds
/// up.
const ADDS_UP: f64 = 0.01;
/// Number of holders in the list of the largest.
const LARGEST: usize = 10;

/// The summary of a snapshot.
pub fn summary(snapshot: &Snapshot) -> String {
    let (head, totals) = (head(snapshot), Totals::of(snapshot));
    let Some(peak) = Peak::of(snapshot, &totals) else {
        return format!("{head}\n\nNothing was recorded\n");
    };
    let analysed = Analysed {
        snapshot,
        totals,
        peak,
    };
    let parts = [
        head,
        analysed.peak_line(),
        analysed.categories(),
        analysed.largest(),
        analysed.agreement(),
    ];
    parts.join("\n\n") + "\n"
}

fn head(snapshot: &Snapshot) -> String {
    fn named(name: &str) -> &str {
        match name.trim() {
            "" => "(no name)",
            name => name,
        }
    }
    let Snapshot {
        title,
        backend,
        parameters,
        times,
        phases,
        samples,
        warnings,
        ..
    } = snapshot;
    let steps: BTreeSet<usize> = phases.iter().map(|phase| phase.iteration).collect();
    let bytes = parameters.iter().map(|parameter| parameter.bytes);
    // Nothing checks the sizes that a file gives for its parameters.
    let bytes = bytes.fold(0, u64::saturating_add);
    let model = match parameters.len() {
        1 => format!("1 parameter, {} MiB", mib(bytes)),
        number => format!("{} parameters, {} MiB", count(number), mib(bytes)),
    };
    let lasted = times.last().copied().unwrap_or(0);
    let mut lines = vec![
        fit(named(title), WIDTH),
        fit(&format!("  backend   {}", named(backend)), WIDTH),
        format!("  model     {model}"),
        format!("  steps     {}", count(steps.len())),
        format!(
            "  events    {} in {}, {} samples of what is in use",
            count(times.len()),
            time(lasted),
            count(samples.len())
        ),
    ];
    for warning in warnings {
        let text = fit(warning, usize::MAX);
        lines.push(wrap("  warning   ", &text, WIDTH, "            "));
    }
    lines.join("\n")
}

/// A snapshot that is not empty, with its analysis.
struct Analysed<'a> {
    snapshot: &'a Snapshot,
    totals: Totals,
    peak: Peak,
}

impl Analysed<'_> {
    /// Bytes of the peak that are in no category; negative where holders have more than was in use.
    fn rest(&self) -> i64 {
        let known: u64 = self.peak.pieces.iter().map(|piece| piece.bytes).sum();
        self.peak.bytes as i64 - known as i64
    }

    fn peak_line(&self) -> String {
        let peak = &self.peak;
        let place = place(self.snapshot, peak.place);
        let text = format!(
            "Peak: {} MiB, in the {place} (event {}, at {})",
            mib(peak.bytes),
            count(peak.tick),
            time(peak.time)
        );
        wrap("", &text, WIDTH, "  ")
    }

    fn categories(&self) -> String {
        let mut table = table(
            [
                "category",
                "MiB at the peak",
                "share",
                "most MiB at once",
                "in",
            ],
            [1, 2, 3],
        );
        for category in Category::ALL.into_iter().rev() {
            let most = self.totals.most(self.snapshot, category);
            let place = short(Place::of(self.snapshot, most.tick).filter(|_| most.bytes > 0));
            let bytes = self.peak.bytes_of(category);
            table.add_row([
                category.name().into(),
                mib(bytes),
                percent(bytes, self.peak.bytes),
                mib(most.bytes),
                place,
            ]);
        }
        if self.rest() != 0 {
            let dash = || String::from("-");
            table.add_row([
                "held, not in use".into(),
                mib_more(self.rest()),
                dash(),
                dash(),
                dash(),
            ]);
        }
        table.add_row([
            "sum".into(),
            mib(self.peak.bytes),
            percent(self.peak.bytes, self.peak.bytes),
            String::new(),
            String::new(),
        ]);
        table.to_string()
    }

    fn largest(&self) -> String {
        let (snapshot, peak) = (self.snapshot, &self.peak);
        let header = ["MiB", "category", "parameter", "operation", "made in"];
        let rows = peak.pieces.iter().take(LARGEST).map(|piece| {
            let parameter = piece
                .parameter
                .map(|number| &snapshot.parameters[number].path);
            let operation = piece.operation.map(|number| &snapshot.operations[number]);
            let operation = match (operation, piece.holder) {
                (Some(operation), Some(_)) => operation.clone(),
                (Some(operation), None) => format!("within {operation}"),
                (None, _) => "between samples".into(),
            };
            [
                mib(piece.bytes),
                piece.category.name().into(),
                parameter.map_or_else(|| "-".into(), |path| fit(path, usize::MAX)),
                fit(&operation, usize::MAX),
                short(Place::of(snapshot, piece.from)),
            ]
        });
        let mut table = table(header, [0]);
        table.add_rows(rows);
        let shown = peak.pieces.len().min(LARGEST);
        let bytes = peak.pieces.iter().take(LARGEST).map(|piece| piece.bytes);
        format!(
            "The {shown} largest of {} in the peak, {} of it:\n\n{table}",
            count(peak.pieces.len()),
            percent(bytes.sum(), self.peak.bytes),
        )
    }

    fn agreement(&self) -> String {
        let text = match Agreement::of(self.snapshot, &self.totals) {
            None => {
                "How well it adds up is not known: the recording has no sample of what was in use"
                    .to_string()
            }
            Some(worst) => format!(
                "{}: what is named differs from what was in use by {:.2} % at most, in {} samples \
                 (at worst {} of {} MiB, at event {})",
                match worst.share() <= ADDS_UP {
                    true => "Adds up",
                    false => "Does not add up",
                },
                // Rounded up, because it is a bound.
                (worst.share() * 1e4).ceil() / 1e2,
                count(worst.samples),
                bytes_more(worst.unattributed()),
                mib(worst.in_use),
                count(worst.tick)
            ),
        };
        wrap("", &text, WIDTH, "  ")
    }
}

fn table<const COLUMNS: usize, const RIGHT: usize>(
    header: [&str; COLUMNS],
    right: [usize; RIGHT],
) -> Table {
    let mut table = Table::new();
    table
        .load_preset(ASCII_MARKDOWN)
        .set_header(header)
        // Long names are wrapped.
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_width(WIDTH as u16);
    for column in right {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// A place, with the parameter that is stepped there.
fn place(snapshot: &Snapshot, place: Option<Place>) -> String {
    match place {
        Some(place) => fit(&place.name(snapshot), WIDTH - 10),
        None => "time between the phases".into(),
    }
}

/// A place in a few characters, for a column.
fn short(place: Option<Place>) -> String {
    let Some(Place {
        iteration, phase, ..
    }) = place
    else {
        return "-".into();
    };
    let phase = match phase {
        PhaseKind::Forward => "forward",
        PhaseKind::Backward => "backward",
        PhaseKind::Optimizer => "optimizer",
        PhaseKind::Step(_) => "step",
    };
    format!("{phase} {}", iteration + 1)
}

/// A difference of bytes, with its sign and its unit.
fn bytes_more(bytes: i64) -> String {
    match bytes.unsigned_abs() {
        0..1024 => format!("{bytes:+} bytes"),
        1024..1_048_576 => format!("{:+.1} KiB", bytes as f64 / 1024.0),
        _ => format!("{} MiB", mib_more(bytes)),
    }
}
