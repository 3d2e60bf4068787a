//! The program as a user runs it: its output, its files and its exit codes.

#[path = "../../../vit-common/tests/cli.rs"]
mod both;
#[path = "../../../vit-common/tests/memory_timeline.rs"]
mod memory_timeline;
#[path = "../../../vit-common/tests/program.rs"]
mod program;
mod this;

use program::{Home, outcome, result, said};
use this::PROGRAM;

/// Their fields and so their checkpoints are the same; their sums are not, in the last bits.
#[test]
fn a_run_is_resumed_with_other_operations() {
    let home = Home::new();
    let whole = result(&mut home.train("whole", 3, ""));
    for (before, after) in [("default", "lean"), ("lean", "default")] {
        home.stop(before, 3, 5, &format!("--operations {before}"));
        let resumed = result(&mut home.resume(before, &format!("--operations {after}")));
        let loss = |result: &serde_json::Value| result["train_loss"].as_f64().unwrap();
        let difference = loss(&resumed) - loss(&whole);
        assert!(difference.abs() < 1e-3, "{before}: {resumed} {whole}");
        assert_eq!(home.settings(before)["operations"], after);
    }
}

/// In bf16 with norms in f32: the same weights in both modes, and resumed.
#[test]
fn five_bytes_a_parameter_train_alike_in_both_modes() {
    let home = Home::new();
    let options = "--optimizer adamw-five-bytes --operations lean";
    let whole = result(&mut home.train("whole", 2, options));
    let plain = result(&mut home.train("plain", 2, &format!("{options} --mode plain")));
    assert_eq!(outcome(&plain), outcome(&whole));
    home.stop("resumed", 2, 5, options);
    let resumed = result(&mut home.resume("resumed", ""));
    assert_eq!(outcome(&resumed), outcome(&whole));
}

/// The whole run, with its checkpoints, stays within what was asked for. What is given stays, and
/// what was chosen is saved.
#[test]
fn what_fits_is_chosen() {
    let home = Home::new();
    let run = |name: &str, options: &str| {
        let result = result(&mut home.train(name, 1, &format!("--patch-size 2 {options}")));
        let settings = home.settings(name);
        let chosen = ["operations", "checkpointing", "optimizer"].map(|it| settings[it].clone());
        (
            result["peak_bytes"].as_u64().unwrap(),
            chosen,
            outcome(&result).map(Clone::clone),
        )
    };
    let within = |name: &str, most: u64, options: &str| {
        let chosen = run(name, &format!("--fit {most}B {options}"));
        assert!(chosen.0 <= most, "{name}: {chosen:?}");
        chosen
    };
    let whole = run("whole", "");
    let whole_fits = within("whole fits", whole.0, "");
    assert_eq!((&whole_fits.1, &whole_fits.2), (&whole.1, &whole.2));
    let lean = within("lean", whole_fits.0 - 1, "");
    assert_eq!(lean.1, ["lean", "none", "adamw"]);
    let blocks = within("blocks", lean.0 - 1, "");
    assert_eq!(blocks.1, ["lean", "blocks", "adamw"]);
    // The same weights, as nothing is rounded otherwise.
    let given = within("given", whole_fits.0 - 1, "--operations default");
    assert_eq!(given.1, ["default", "blocks", "adamw"]);
    assert_eq!(given.2, whole.2);

    // Five bytes need lean operations.
    for (operations, is_possible) in [("lean", true), ("default", false)] {
        let options = format!("--fit 1KiB --operations {operations}");
        let said = said(&home.train("refused", 1, &options).output().unwrap());
        assert!(said.contains("nothing fits into 1.0 KiB"), "{said}");
        assert_eq!(said.contains("adamw-five-bytes"), is_possible, "{said}");
        assert!(!home.folder("refused").exists());
    }
}
