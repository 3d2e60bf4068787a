//! What a training logs, and its memory.

use crate::program::{Home, outcome, result};
use serde_json::Value;
use std::fs;

#[test]
fn every_parameter_is_released_at_the_scheduled_rate() {
    let home = Home::new();
    result(&mut home.train("run", 1));
    let log = |name: &str| {
        let file = home.folder("run/train/epoch-1").join(name);
        fs::read_to_string(file).unwrap()
    };
    assert_eq!(log("Released.log"), "100,1\n".repeat(8));
    assert_eq!(log("Applied_Learning_Rate.log"), log("Learning_Rate.log"));
    assert_eq!(log("Peak_Memory.log").lines().count(), 8);
}

#[test]
fn a_budget_is_used_and_trains_the_same_weights() {
    let home = Home::new();
    let train = |name: &str, checkpointing: &str, budget: &[&str]| {
        let mut run = home.train(name, 2);
        run.args(["--checkpointing", checkpointing]).args(budget);
        let result = result(&mut run);
        let engine = home.settings(name)["engine"].clone();
        assert_eq!(engine["checkpointing"], checkpointing);
        (result, engine["activation_budget"].clone())
    };
    let (kept, budget) = train("kept", "none", &[]);
    assert_eq!(budget, Value::Null);
    let (no_budget, budget) = train("no budget", "automatic", &["--activation-budget", "0"]);
    assert_eq!(budget, Value::Null);
    let (ample, budget) = train("ample", "automatic", &["--activation-budget", "0.5 GiB"]);
    assert_eq!(budget, 1 << 29);
    assert_eq!(outcome(&ample), outcome(&kept));
    // It has room for every activation.
    let peak = |result: &Value| result["peak_bytes"].as_u64().unwrap();
    assert!(peak(&ample) > peak(&no_budget), "{ample} {no_budget}");
}
