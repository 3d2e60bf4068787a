//! What only this program has: metrics, groups, clipping, accumulation, a budget.

use crate::program::{Home, outcome, result};
use std::fs;

#[test]
fn every_parameter_is_released_at_the_scheduled_rate() {
    let home = Home::new();
    result(&mut home.train("run", 1, ""));
    let log = |name: &str| {
        let file = home.folder("run/metrics/train/epoch-1").join(name);
        fs::read_to_string(file).unwrap()
    };
    assert_eq!(log("Released.log"), "100,1\n".repeat(4));
    assert_eq!(log("Applied_Learning_Rate.log"), log("Learning_Rate.log"));
    assert_eq!(log("Peak_Memory.log").lines().count(), 4);
}

/// As the papers train a vision transformer, and with accumulation. A resumed run logs each batch
/// once.
#[test]
fn groups_clipping_and_accumulation_are_resumed() {
    let home = Home::new();
    let recipe =
        "--weight-decay 0.3 --no-decay-on-norms --clip-grad-norm 0.5 --grads-accumulation 2";
    let whole = result(&mut home.train("whole", 2, recipe));
    // Each of the four does something.
    for left_out in recipe.split("--").skip(1) {
        let others = recipe.replace(&format!("--{left_out}"), "");
        let other = result(&mut home.train("other", 2, &format!("{others} --overwrite")));
        assert_ne!(outcome(&other), outcome(&whole), "{others:?}");
    }
    home.stop("run", 2, 7, recipe);
    assert_eq!(
        outcome(&result(&mut home.resume("run", ""))),
        outcome(&whole)
    );
    for epoch in [1, 2] {
        let log = |run: &str, name: &str| {
            let log = format!("{run}/metrics/train/epoch-{epoch}/{name}.log");
            fs::read_to_string(home.folder(&log)).unwrap()
        };
        for name in ["Loss", "Accuracy", "Gradient_Norm"] {
            assert_eq!(log("run", name), log("whole", name), "{name}, {epoch}");
        }
        assert_eq!(log("whole", "Loss").lines().count(), 4);
    }
}

#[test]
fn a_run_is_resumed_with_any_checkpointing() {
    let home = Home::new();
    let whole = result(&mut home.train("whole", 3, ""));
    let automatic = "--checkpointing automatic --activation-budget 512MiB";
    let plain = "--mode plain --checkpointing balanced";
    let blocks = "--checkpointing blocks";
    for (before, after, checkpointing, mebibytes) in [
        // Without an option it keeps its own.
        (automatic, "", "automatic", Some(512)),
        (automatic, "--activation-budget 2MiB", "automatic", Some(2)),
        (
            plain,
            "--mode release --checkpointing automatic",
            "automatic",
            None,
        ),
        (blocks, "--mode plain --checkpointing none", "none", None),
    ] {
        let name = format!("{before} then {after}");
        home.stop(&name, 3, 7, before);
        let resumed = result(&mut home.resume(&name, after));
        assert_eq!(outcome(&resumed), outcome(&whole), "{name}");
        let settings = home.settings(&name);
        assert_eq!(settings["checkpointing"], checkpointing, "{name}");
        let budget = settings["activation_budget"].as_u64();
        assert_eq!(budget, mebibytes.map(|budget| budget << 20), "{name}");
    }
}
