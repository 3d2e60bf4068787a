//! Writes a trace for ui.perfetto.dev: bytes by category and phases, over time.

use std::io::{Result, Write};

use serde_json::{Map, json};

use super::{Category, PhaseKind, Snapshot};
use crate::analysis::Totals;

pub(super) fn write(snapshot: &Snapshot, mut to: impl Write) -> Result<()> {
    let title =
        json!({"ph": "M", "pid": 1, "name": "process_name", "args": {"name": snapshot.title}});
    write!(
        to,
        "{{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n{title}"
    )?;
    for phase in &snapshot.phases {
        let name = match phase.kind {
            PhaseKind::Forward => "forward",
            PhaseKind::Backward => "backward",
            PhaseKind::Optimizer => "optimizer",
            PhaseKind::Step(of) => &snapshot.parameters[of].path,
        };
        let from = snapshot.times[phase.from];
        let until = snapshot.times[phase.until.saturating_sub(1).max(phase.from)];
        let event = json!({
            "ph": "X", "pid": 1, "tid": 1, "name": name, "cat": "phase", "ts": from,
            "dur": until - from, "args": {"step": phase.iteration + 1}
        });
        write!(to, ",\n{event}")?;
    }
    let totals = Totals::of(snapshot);
    for (tick, time) in snapshot.times.iter().enumerate() {
        let held = Category::ALL.map(|of| (of.name().into(), totals.layer(of)[tick].into()));
        let in_use = Map::from_iter([("bytes".into(), totals.peaks()[tick].into())]);
        for (name, bytes) in [("held", Map::from_iter(held)), ("in use", in_use)] {
            let event = json!({"ph": "C", "pid": 1, "name": name, "ts": time, "args": bytes});
            write!(to, ",\n{event}")?;
        }
    }
    writeln!(to, "\n]}}")
}
