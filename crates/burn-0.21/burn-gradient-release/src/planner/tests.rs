//! Plans of made-up models, compared with all possible plans of short ones.

use std::{iter, sync::Arc};

use crate::planner::{
    Recompute,
    operations::Trace,
    plan::{Cuts, plan},
    synthetic::{self, UNIT},
    trace::{Highest, Traced, Tracer},
};

/// The peak with these cuts, in bytes, by definition.
fn peak(trace: &Trace, cuts: &[usize]) -> u64 {
    let segment_of = |operation: usize| cuts.partition_point(|cut| *cut <= operation);
    let mut saved = vec![0; cuts.len() + 1];
    let mut leaving = vec![0; cuts.len() + 1];
    for buffer in trace.buffers() {
        let made_in = segment_of(buffer.made_by);
        if buffer.saved_by.map(segment_of) == Some(made_in) {
            saved[made_in] += buffer.bytes;
        }
        if segment_of(buffer.last_use) > made_in {
            leaving[made_in] += buffer.bytes;
        }
    }
    let mut held = 0;
    let moments = saved.iter().zip(leaving).map(|(saved, leaving)| {
        let moment = held + saved;
        held += leaving;
        moment
    });
    moments.max().expect("there is a segment")
}

/// All sets of cuts of a short trace.
fn all_cuts(trace: &Trace) -> impl Iterator<Item = Vec<usize>> {
    let places = trace.len() - 1;
    (0..1 << places).map(move |set: u32| {
        let is_in = |place: &usize| set >> (place - 1) & 1 == 1;
        (1..=places).filter(is_in).collect()
    })
}

/// Traces short enough to try all cuts.
fn short() -> Vec<Trace> {
    let mut traces = vec![
        synthetic::chain(1),
        synthetic::chain(2),
        synthetic::chain(12),
        synthetic::residual(12),
        synthetic::u_net_of_operations(7),
        synthetic::u_net_of_operations(9),
        synthetic::transformer(12),
    ];
    traces.extend((0..40).map(|seed| synthetic::random(12, seed)));
    traces.retain(|trace| trace.len() <= 15);
    traces
}

/// The bytes that the tape would save of all operations.
fn saved(trace: &Trace) -> u64 {
    let saved = trace.buffers().iter().filter(|of| of.saved_by.is_some());
    saved.map(|of| of.bytes).sum()
}

/// A plan with the lowest peak, whose estimate is checked against the definition.
fn planned(trace: &Trace) -> Cuts {
    let plan = plan(trace, None, true);
    assert_eq!(plan.bytes, peak(trace, &plan.starts), "{plan:?}");
    assert_eq!(plan.kept_from, plan.starts.last().copied().unwrap_or(0));
    plan
}

#[test]
fn no_cuts_have_a_lower_peak() {
    for (index, trace) in short().iter().enumerate() {
        let lowest = all_cuts(trace).map(|cuts| peak(trace, &cuts)).min();
        let lowest = lowest.expect("no cuts are a plan, too");
        let planned = planned(trace).bytes;
        assert!(planned <= lowest + 1 + lowest / 512, "trace {index}");
    }
}

#[test]
fn a_budget_keeps_as_much_as_any_cuts_do() {
    for (index, trace) in short().iter().enumerate() {
        let all = saved(trace);
        for budget in [all / 4, all / 2, all * 2 / 3, all - all / 8, all] {
            let fitting = all_cuts(trace).filter(|cuts| peak(trace, cuts) <= budget);
            let kept_from = fitting.map(|cuts| cuts.last().copied().unwrap_or(0)).min();
            let given = plan(trace, Some(budget), true);
            assert_eq!(given.bytes, peak(trace, &given.starts), "trace {index}");
            match kept_from {
                Some(kept_from) => {
                    assert!(given.bytes <= budget, "trace {index}, {budget}");
                    assert_eq!(given.kept_from, kept_from, "trace {index}, {budget}");
                }
                None => assert_eq!(given, plan(trace, None, true), "trace {index}, {budget}"),
            }
        }
    }
}

#[test]
fn an_ample_budget_cuts_nothing() {
    for trace in [synthetic::chain(2000), synthetic::u_net(2000, true)] {
        let all = saved(&trace);
        let kept = Cuts {
            starts: Vec::new(),
            kept_from: 0,
            bytes: all,
        };
        assert_eq!(plan(&trace, Some(all), true), kept);
        let most = plan(&trace, Some(all - 1), true);
        assert!(most.kept_from > 0 && most.bytes < all);
    }
}

#[test]
fn a_budget_below_the_lowest_peak_is_ignored() {
    let trace = synthetic::u_net(5000, false);
    let lowest = planned(&trace);
    assert_eq!(plan(&trace, Some(1), true), lowest);
    let within = plan(&trace, Some(lowest.bytes), true);
    assert!(within.bytes <= lowest.bytes);
}

#[test]
fn nothing_is_kept_if_something_comes_after() {
    let trace = synthetic::residual(200);
    let last = planned(&trace);
    let plan = plan(&trace, None, false);
    assert_eq!(plan.kept_from, trace.len());
    assert_eq!(plan.starts, last.starts);
}

/// With segments of falling length, `n` results of one size take `sqrt(2n)`.
#[test]
fn chains_of_any_length() {
    for operations in [100, 1_000, 10_000, 100_000] {
        let plan = planned(&synthetic::chain(operations));
        let root = (2.0 * operations as f64).sqrt();
        let units = plan.bytes as f64 / UNIT as f64;
        assert!(
            units <= 1.02 * root,
            "{operations}: {units} units, not {root}"
        );
    }
}

/// The bytes that a residual block, or one of attention, saves.
const BLOCK: u64 = 8 * UNIT;

/// Within a block of the bytes that no plan can avoid, and the square root of the bytes saved.
#[test]
fn models_of_any_length() {
    for length in [100, 1_000, 10_000, 100_000] {
        // Each skip connection is kept: one extra forward pass cannot compute it twice. Half of the
        // bytes; so many of them take long to plan.
        let fewer = length / 10;
        let skips = fewer as u64 / 2 * UNIT;
        for (name, trace, kept) in [
            ("residual", synthetic::residual(length), 0),
            ("shared mask", synthetic::transformer(length), 2 * UNIT),
            ("U-Net", synthetic::u_net(length, false), 2 * UNIT),
            ("attention", synthetic::u_net(length, true), 2 * UNIT),
            ("operations", synthetic::u_net_of_operations(fewer), skips),
        ] {
            let root = (2.0 * saved(&trace) as f64 * UNIT as f64).sqrt() as u64;
            let bytes = planned(&trace).bytes;
            let most = kept + root + BLOCK;
            assert!(bytes <= most, "{name}, {length}: {bytes}, not {most}");
        }
    }
}

/// Another thread cuts after an operation has its position, and before it asks for the segment.
#[test]
fn no_two_segments_have_one_number() {
    let tracer = Tracer::new(Recompute::Automatic).expect("it recomputes");
    let operation = |highest| {
        let position = tracer.operation("float_exp", None, highest, iter::empty());
        position.expect("it is traced")
    };
    let position = operation(Highest::default());
    let number = *tracer.shared(position, Arc::new);
    // It reads a result that has left the segment.
    operation(Highest {
        segment: 0,
        subgraph: number,
    });
    assert_ne!(*tracer.shared(position, Arc::new), number);
}

/// As with batch norm, whose running statistics are up to date after a validation.
#[test]
fn two_passes_that_take_turns_have_a_plan_each() {
    let tracer = Tracer::new(Recompute::Automatic).expect("it recomputes");
    // The plan of a pass before and after its end.
    let pass = |first: &[&'static str], bytes: u64| {
        tracer.begin();
        let mut results: Vec<Traced> = Vec::new();
        for name in first.iter().copied().chain(["float_tanh"; 40]) {
            let operands = results.last().into_iter();
            let position = tracer.operation(name, None, Highest::default(), operands);
            let position = position.expect("it is traced");
            if !position.is_kept {
                results.push(tracer.result(position, bytes));
            }
        }
        let planned = tracer.planned_bytes();
        tracer.learn(true);
        (planned, tracer.planned_bytes())
    };
    let usual = || pass(&["conv2d", "float_div_scalar"], 2 * UNIT);
    let after_validation = || pass(&["conv2d"], UNIT);
    let plans = [after_validation().1, usual().1];
    assert_ne!(plans[0], plans[1]);
    for _ in 0..2 {
        assert_eq!(after_validation(), (plans[0], plans[0]));
        assert_eq!(usual(), (plans[1], plans[1]));
    }
}

#[test]
fn any_graph() {
    for operations in [100, 1_000, 10_000] {
        let trace = synthetic::random(operations, 7);
        let plan = planned(&trace);
        assert!(plan.bytes < saved(&trace) / 2, "{operations}: {plan:?}");
    }
}
