//! The phases of a snapshot as text.

use std::collections::BTreeSet;
use std::iter;

use super::{Phase, PhaseKind, Snapshot};

/// The name of the phase at each tick.
pub(crate) struct PhaseNames(Vec<(usize, String)>);

impl PhaseNames {
    pub(crate) fn of(snapshot: &Snapshot) -> Self {
        let bounds = snapshot.phases.iter().flat_map(|of| [of.from, of.until]);
        let bounds: BTreeSet<usize> = bounds.chain([0]).collect();
        let (mut phases, mut around) = (snapshot.phases.iter().peekable(), Vec::new());
        let named = bounds.into_iter().map(|tick| {
            around.extend(iter::from_fn(|| phases.next_if(|of| of.from <= tick)));
            around.retain(|of: &&Phase| tick < of.until);
            (tick, name(snapshot, &around))
        });
        Self(named.collect())
    }

    /// `backward of step 2, stepping blocks.3.mlp.fc1.weight`, with steps of the training counted
    /// from 1; nothing between the phases.
    pub(crate) fn at(&self, tick: usize) -> &str {
        let after = self.0.partition_point(|(from, _)| *from <= tick);
        &self.0[after - 1].1
    }
}

/// `around` are the phases around a tick, the outermost first.
fn name(snapshot: &Snapshot, around: &[&Phase]) -> String {
    let (Some(outer), Some(inner)) = (around.first(), around.last()) else {
        return String::new();
    };
    let phase = match outer.kind {
        PhaseKind::Forward => "forward",
        PhaseKind::Backward => "backward",
        PhaseKind::Optimizer | PhaseKind::Step(_) => "optimizer",
    };
    let name = format!("{phase} of step {}", inner.iteration + 1);
    match inner.kind {
        PhaseKind::Step(of) => format!("{name}, stepping {}", snapshot.parameters[of].path),
        _ => name,
    }
}
