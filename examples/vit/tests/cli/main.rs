//! The program as a user runs it: its output, its files and its exit codes.

#[path = "../../../vit-common/tests/cli.rs"]
mod both;
#[path = "../../../vit-common/tests/memory_timeline.rs"]
mod memory_timeline;
#[path = "../../../vit-common/tests/program.rs"]
mod program;
mod this;

use program::{Home, fails, json, outcome, result, said};
use this::PROGRAM;

/// Their fields and so their checkpoints are the same; their sums are not, in the last bits.
#[test]
fn a_run_is_resumed_with_other_operations() {
    let home = Home::new();
    let loss = |result: serde_json::Value| result["validation_loss"].as_f64().unwrap();
    for (before, after) in [("default", "lean"), ("lean", "default")] {
        let options = format!("--operations {before}");
        let whole = loss(result(&mut home.train(before, 2, &options)));
        home.forget(before, 1);
        let mut resumed = home.resume(before, &format!("--operations {after}"));
        let resumed = loss(result(&mut resumed));
        assert!((resumed - whole).abs() < 1e-3, "{resumed} {whole}");
        assert_eq!(home.settings(before)["operations"], after);
    }
}

/// And it says so.
#[test]
fn a_run_that_is_stopped_is_resumed() {
    let home = Home::new();
    let whole = said(&home.train("whole", 2, "").output().unwrap());
    let texts = ["epoch   1/2  loss ", "epoch   2/2  loss ", "peak memory"];
    assert!(texts.iter().all(|text| whole.contains(text)), "{whole}");
    let stopped = home.train("run", 2, "--stop-after 5").output().unwrap();
    assert!(said(&stopped).contains("stopped: --resume goes on after epoch 1"));
    let resumed = result(&mut home.resume("run", ""));
    let whole = json(&home.folder("whole/results.json"));
    assert_eq!(outcome(&resumed), outcome(&whole));
}

#[test]
fn a_loss_that_is_not_finite_ends_the_run() {
    let home = Home::new();
    let text = "error: the loss is NaN in epoch 1: try a smaller --lr";
    fails(&mut home.train("run", 2, "--lr 1e30"), text);
    assert!(!home.folder("run/results.json").exists());
}

/// In bf16 with norms in f32: the same weights in both modes, and resumed.
#[test]
fn five_bytes_a_parameter_train_alike_in_both_modes() {
    let home = Home::new();
    let options = "--optimizer adamw-five-bytes --operations lean";
    let whole = result(&mut home.train("whole", 2, options));
    let plain = result(&mut home.train("plain", 2, &format!("{options} --mode plain")));
    assert_eq!(outcome(&plain), outcome(&whole));
    home.forget("plain", 1);
    let resumed = result(&mut home.resume("plain", ""));
    assert_eq!(outcome(&resumed), outcome(&whole));
}

/// The whole run, with its checkpoints, stays within what was asked for. What is given stays, and
/// what was chosen is saved.
#[test]
fn what_fits_is_chosen() {
    let home = Home::new();
    let within = |name: &str, most: u64, options: &str, chosen: [&str; 3]| {
        let options = format!("--patch-size 2 --fit {most}B {options}");
        let result = result(&mut home.train(name, 1, &options));
        let settings = home.settings(name);
        let names = ["operations", "checkpointing", "optimizer"];
        assert_eq!(names.map(|name| &settings[name]), chosen);
        let peak = result["peak_bytes"].as_u64().unwrap();
        assert!(peak <= most, "{name}: {result}");
        (peak, result["weights_digest"].clone())
    };
    let whole = within("whole", 1 << 30, "", ["default", "none", "adamw"]);
    let lean = within("lean", whole.0 - 1, "", ["lean", "none", "adamw"]);
    // A run holds what no trial does: the order of the images and the losses of all batches.
    let less = lean.0 - 2_000;
    within("blocks", less, "", ["lean", "blocks", "adamw"]);
    // The same weights, as nothing is rounded otherwise.
    let options = "--operations default";
    let given = within(
        "given",
        whole.0 - 1,
        options,
        ["default", "blocks", "adamw"],
    );
    assert_eq!(given.1, whole.1);

    // Five bytes need lean operations.
    for (operations, is_possible) in [("lean", true), ("default", false)] {
        let options = format!("--fit 1KiB --operations {operations}");
        let said = said(&home.train("refused", 1, &options).output().unwrap());
        assert!(said.contains("nothing fits into 1.0 KiB"), "{said}");
        assert_eq!(said.contains("adamw-five-bytes"), is_possible, "{said}");
        assert!(!home.folder("refused").exists());
    }
}
