//! What `vit-0-21` does not have.

use crate::both::refusals::are_refused;
use crate::program::{Home, fails, outcome, result};
use std::fs;

#[test]
fn bad_options_of_vit_get_one_line_and_leave_nothing() {
    are_refused(&[("--device tpu", "tpu"), ("--learning-rate NaN", "--lr")]);
}

/// Their fields and so their checkpoints are the same; their sums are not, in the last bits.
#[test]
fn a_run_is_resumed_with_other_operations() {
    let home = Home::new();
    let whole = result(&mut home.train("whole", 3));
    for (before, after) in [("default", "lean"), ("lean", "default")] {
        home.stop(before, 3, 9, &["--operations", before]);
        let resumed = result(home.resume(before).args(["--operations", after]));
        let loss = |result: &serde_json::Value| result["train_loss"].as_f64().unwrap();
        let difference = loss(&resumed) - loss(&whole);
        assert!(difference.abs() < 1e-3, "{before}: {resumed} {whole}");
        // What it went on with is what it is resumed with next.
        assert_eq!(home.settings(before)["engine"]["operations"], after);
    }
}

/// As kept to save space. What was kept stays.
#[test]
fn a_checkpoint_without_its_states_is_damaged() {
    let home = Home::new();
    let whole = result(&mut home.train("whole", 3));
    home.stop("run", 3, 17, &[]);
    let newest = home.folder("run/checkpoint/epoch-2");
    fs::remove_file(newest.join("optim.bpk")).unwrap();
    let texts = ["epoch-2 is damaged", "after epoch 1", "optim.bpk"];
    fails(&mut home.resume("run"), &texts);
    assert!(newest.join("model.bpk").exists());
    fs::remove_dir_all(newest).unwrap();
    assert_eq!(outcome(&result(&mut home.resume("run"))), outcome(&whole));

    fs::write(home.folder("run/config.json"), "{}").unwrap();
    let unreadable = ["config.json cannot be read", "--artifact-dir"];
    fails(&mut home.resume("run"), &unreadable);
}
