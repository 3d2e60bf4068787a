//! A snapshot that is small enough to add up by hand.

use lean_timeline::Snapshot;
use lean_timeline::snapshot::{Category, Holder, Parameter, Phase, PhaseKind, Sample};

pub(crate) const MIB: u64 = 1 << 20;

/// `(from, until)` are ticks.
pub(crate) fn holder(
    bytes: u64,
    category: Category,
    parameter: Option<usize>,
    (from, until): (usize, usize),
) -> Holder {
    Holder {
        bytes,
        category,
        parameter,
        operation: 0,
        from,
        until,
    }
}

pub(crate) fn sample(tick: usize, in_use: u64, peak: u64) -> Sample {
    Sample { tick, in_use, peak }
}

pub(crate) fn phase(kind: PhaseKind, from: usize, until: usize) -> Phase {
    Phase {
        kind,
        iteration: 0,
        from,
        until,
    }
}

/// A training step with two weights. Each gradient has 40 bytes, and each step allocates 25 more
/// for a while.
///
/// ```text
/// tick            0   1   2   3   4   5   6   7   8   9  10  11
/// weights        80  80  80  80  80  80  80  80  80  80  80  80
/// activation          100 100 100
/// gradient two                40  40  40  40  40
/// gradient one                        40  40  40  40  40
/// delta                                       25          25
/// known          80 180 180 220 120 160 160 185 120 120 145  80
/// phase           -   F   B   B   B   B   O   2   2   1   1   1
/// ```
pub(crate) fn step() -> Snapshot {
    use Category::{Activations, Gradients, Parameters, Temporaries};
    let parameter = |path: &str| Parameter {
        path: path.into(),
        shape: vec![10],
        bytes: 40,
        is_embedding: false,
    };
    Snapshot {
        title: "two weights".into(),
        backend: "none".into(),
        parameters: vec![parameter("one.weight"), parameter("two.weight")],
        operations: vec!["add".into(), "matmul".into()],
        times: (0..12).map(|tick| 10 * tick).collect(),
        holders: vec![
            holder(80, Parameters, None, (0, 12)),
            holder(100, Activations, None, (1, 4)),
            holder(40, Gradients, Some(1), (3, 8)),
            holder(40, Gradients, Some(0), (5, 11)),
            holder(25, Temporaries, Some(1), (7, 8)),
            holder(25, Temporaries, Some(0), (10, 11)),
        ],
        phases: vec![
            phase(PhaseKind::Forward, 1, 2),
            phase(PhaseKind::Backward, 2, 6),
            phase(PhaseKind::Optimizer, 6, 12),
            phase(PhaseKind::Step(1), 7, 9),
            phase(PhaseKind::Step(0), 9, 12),
        ],
        ..Snapshot::default()
    }
}
