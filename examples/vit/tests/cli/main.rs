//! The program as a user runs it: its output, its files and its exit codes.

#[path = "../../../tests/vit/cli.rs"]
mod both;
#[path = "../../../tests/vit/memory_timeline.rs"]
mod memory_timeline;
#[path = "../../../tests/vit/program.rs"]
mod program;
mod this;

use program::{Home, fails, json, outcome, result, said, train};
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

/// On the digits, which fit with plain Burn, too.
#[test]
fn the_memory_that_it_saved_is_told() {
    let home = Home::new();
    let mut run = train(&home.folder("run"), "--epochs 1");
    let said = said(&run.output().unwrap());
    let (_, peaks) = said.split_once("peak memory ").expect(&said);
    let [peak, plain] = peaks.split_once(" MiB (plain Burn: ").expect(&said).into();
    let plain: f64 = plain.split(' ').next().unwrap().parse().unwrap();
    assert!(peak.parse::<f64>().unwrap() < 0.75 * plain, "{said}");
    let of_plain = result(&mut train(&home.folder("plain"), "--epochs 1 --mode plain"));
    let mib = of_plain["peak_bytes"].as_f64().unwrap() / f64::from(1 << 20);
    // Two batches have fewer losses to keep than a run.
    assert!((mib - plain).abs() < 0.02 * mib, "{mib} MiB: {said}");
}
