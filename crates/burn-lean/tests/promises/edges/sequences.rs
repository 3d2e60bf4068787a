//! Calls in any order: each does what plain Burn does, or is refused in words. What a single call
//! does at each moment stands in the table of [`moments`](super::moments).

use std::collections::BTreeMap;

use crate::harness::prelude::*;
use crate::random_programs::{Source, variable};
use crate::small::kind;

use super::moments::{CALLS, Call, Moment, Run, Way};

/// The calls that training is made of, which are made as often as all others together.
const TRAINING: &[&str] = &[
    "forward",
    "backward",
    "forward",
    "backward",
    "optim.arm",
    "optim.step",
    "sums.arm",
    "sums.accumulate",
    "optim.arm_accumulated",
];

/// The calls that no walk makes.
const LEFT_OUT: &[&str] = &[
    // Sums of another model are lost in plain Burn.
    "model = another",
    "drop(model)",
    // It leaves those that the model was armed with, unless backward has used some.
    "load_record of both",
    // From then on, a step is another call, or none.
    "optim.arm_to_measure",
    "optim.measured",
    "optim.two_passes",
    "optim.with_norm_clipping",
    "optim.with_loss_scaler",
    "optim.with_group",
    "optim.with_f32_gradients",
    "optim.with_grad_norm ..",
];

/// What plain Burn has otherwise by design: the old weights between backward and `step`.
fn has_new_weights(name: &str) -> bool {
    let copies = [
        "model.clone",
        "model.valid",
        "model = clone",
        "model = fork",
    ];
    copies.contains(&name) || name.starts_with("model.into_record")
}

/// A refusal after which the model is half old, half new, or another one: the walk ends.
fn is_final(error: &str) -> bool {
    let kinds = [
        "Abandoned",
        "AccumulatedTwice",
        "AlreadyStepped",
        "Copy",
        "GradientChanged",
        "Placeholder",
        "Taken",
        "Unclaimed",
        "WrongModel",
    ];
    kinds.contains(&error)
}

/// Draws so many calls.
fn draw(seed: u64, length: usize) -> (Way, Vec<&'static str>) {
    let mut random = Source(seed);
    let way = [Way::Kept, Way::Recomputed, Way::Threads][random.next(3)];
    let others = CALLS.iter().map(|(name, _)| *name);
    let others: Vec<_> = others.filter(|name| !LEFT_OUT.contains(name)).collect();
    let call = |_| match random.next(2) {
        0 => TRAINING[random.next(TRAINING.len())],
        _ => others[random.next(others.len())],
    };
    (way, (0..length).map(call).collect())
}

/// Makes those of the calls that can be made, and returns how it ended: with plain Burn's weights,
/// or refused.
fn walk(way: Way, calls: &[&str]) -> String {
    let mut run = Run::at(way, Moment::Unarmed);
    // Whoever has got the gradients since.
    let mut is_stepped = false;
    for name in calls.iter().copied() {
        let is_possible = match name {
            "backward" => run.losses.is_some(),
            // A model that has lost the way to a slot reads NaN until it is refused.
            "param.set_require_grad" => run.is_ordinary(),
            // Another optimizer takes its place, and its sums of what was frozen since go with it.
            "drop(optim)" | "optim.load_record" => !run.is_frozen(),
            // Its weights get new leaves; and after backward it has the new weights, as a copy has.
            "model = materialize" => run.losses.is_none() && run.grads.is_none(),
            name => !(is_stepped || run.grads.is_some()) || !has_new_weights(name),
        };
        if !is_possible {
            continue;
        }
        if name.contains("arm") || name == "optim.step" {
            forget_forward(&mut run);
        }
        let call: Call = match name {
            "forward" => |run| {
                run.forward(7);
                Ok(())
            },
            "backward" => |run| {
                run.backward();
                Ok(())
            },
            name => CALLS.iter().find(|(call, _)| *call == name).unwrap().1,
        };
        match panic_of(|| way.make(call, &mut run)) {
            Ok(Ok(())) => is_stepped = run.is_armed() && (is_stepped || name == "backward"),
            Ok(Err(error)) => {
                let kind = kind(&error);
                if is_final(&kind) {
                    return kind;
                }
            }
            Err(text) => return in_words(&text),
        }
    }
    // It arms again then.
    if !run.is_armed() || run.grads.is_some() {
        forget_forward(&mut run);
    }
    match panic_of(|| run.finish()) {
        Ok(Ok(())) => "the same".into(),
        Ok(Err(error)) => kind(&error),
        Err(text) => in_words(&text),
    }
}

/// The fewest of these calls that still fail.
fn shrunk(way: Way, mut calls: Vec<&str>) -> Vec<&str> {
    let mut at = 0;
    while at < calls.len() {
        let mut fewer = calls.clone();
        fewer.remove(at);
        match panic_of(|| walk(way, &fewer)) {
            Ok(_) => at += 1,
            Err(_) => calls = fewer,
        }
    }
    calls
}

/// Gradients of a forward pass that is kept over a call that arms, or ends an arming, are lost or
/// refused, as the docs say and the table has it.
fn forget_forward(run: &mut Run) {
    run.losses = None;
}

/// A panic that refuses, in a word.
fn in_words(text: &str) -> String {
    let words = [
        "gradient release: ",
        "checkpoint: ",
        "Combine losses before backward",
        "requires a tracked autodiff tensor",
    ];
    match words.iter().find(|words| text.contains(**words)) {
        Some(words) => (*words).into(),
        None => panic!("{text}"),
    }
}

fn run(walks: std::ops::Range<u64>, length: usize) {
    let count = walks.end - walks.start;
    let mut ends = BTreeMap::<String, u64>::new();
    for seed in walks {
        let (way, calls) = draw(seed, length);
        match panic_of(|| walk(way, &calls)) {
            Ok(end) => *ends.entry(end).or_default() += 1,
            Err(text) => panic!("sequence {seed}, {way:?}, {:?}: {text}", shrunk(way, calls)),
        }
    }
    println!("{count} sequences of {length} calls ended with: {ends:?}");
    assert!(ends["the same"] > count / 5, "{ends:?}");
}

#[test]
fn any_order_of_calls() {
    run(0..150, 4);
    run(0..150, 12);
}

/// `SEQUENCES` of them, from number `SEQUENCES_FIRST` on.
#[test]
#[ignore = "takes as long as it is given; see tests/README.md"]
fn many_sequences() {
    let first = variable("SEQUENCES_FIRST").unwrap_or(0);
    let count = variable("SEQUENCES").unwrap_or(1000);
    run(first..first + count / 2, 6);
    run(first..first + count / 2, 14);
}
