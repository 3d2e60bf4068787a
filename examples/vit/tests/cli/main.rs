//! The program as a user runs it: its output, its files and its exit codes.

#[path = "../../../vit-common/tests/cli.rs"]
mod both;
#[path = "../../../vit-common/tests/memory_timeline.rs"]
mod memory_timeline;
#[path = "../../../vit-common/tests/program.rs"]
mod program;
mod this;

use program::{Home, outcome, result};
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
