//! Writes a trace for ui.perfetto.dev: bytes by category and phases, over time.

use std::io::{Result, Write};

use serde_json::{Map, json};

use super::{Category, PhaseKind, Snapshot};
use crate::analysis::{Totals, moments};

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
    let mut moments = moments(snapshot, &totals).peekable();
    for (tick, time) in snapshot.times.iter().enumerate() {
        let layers = Category::ALL.map(|of| (of.name().into(), totals.layer(of)[tick].into()));
        let layers = Map::from_iter(layers);
        let event = json!({"ph": "C", "pid": 1, "name": "held", "ts": time, "args": layers});
        write!(to, ",\n{event}")?;
        while let Some(moment) = moments.next_if(|moment| moment.tick <= tick) {
            let bytes = json!({"bytes": moment.sample.peak});
            let event = json!({"ph": "C", "pid": 1, "name": "in use", "ts": time, "args": bytes});
            write!(to, ",\n{event}")?;
        }
    }
    writeln!(to, "\n]}}")
}
