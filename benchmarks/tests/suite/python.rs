//! PyTorch beside Burn, with a script in place of Python.

use super::{Outcome, tiny};
use assert_cmd::Command;
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use tempfile::TempDir;

const VERSIONS: &str = r#"{"python": "3", "torch": "2", "optimi": null, "torchao": null, "cuda": null, "gpu": null, "threads": 1}"#;

/// What a run prints that has not counted bytes, of a model of 7 parameters.
const SEVEN: &str = r#"echo '{"backend": "fake", "parameters": 7, "largest_parameter": 7,
"step_seconds": [0.5], "final_loss": 1.5, "weights_digest": "abc", "memory": null}'"#;

/// A tiny suite with a shell script in place of Python: it tells its versions, and does with the
/// specification of a run what these lines of a `case` say.
fn suite(home: &Path, cases: &str, options: &str) -> Command {
    let file = home.join("python");
    let script =
        format!("#!/bin/sh\ncase \"$2\" in\nversions) echo '{VERSIONS}' ;;\n{cases}\nesac");
    fs::write(&file, script).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = tiny(home, options);
    command.arg("--python").arg(file);
    command
}

/// Options of one run of Burn.
const PLAIN: &str = "--burn 0.21 --part vit --mode plain --checkpointing none";

#[test]
fn pytorch_runs_beside_burn() {
    let home = TempDir::new().unwrap();
    let cases = r#"*foreach*|*fused*|*'"checkpoint"'*) echo '{"backend": "fake", "parameters": 202186,
"largest_parameter": 16384, "step_seconds": [0.5], "final_loss": 1.5, "weights_digest": "abc", "memory": {
"peak_bytes": 1700, "peak_reserved_bytes": null, "warm_up_peak_bytes": 1650, "optimizer_state_bytes": 800,
"live_before": 1200, "live_after_forward": 1300, "live_after_backward": 1600, "live_after_step": 1600,
"peak_in_forward": 1310, "peak_in_backward": 1610, "peak_in_step": 1700}, "pools": [
{"name": "shared pages", "page_bytes": 4194304, "pages": 3, "in_use_bytes": 10485760, "reserved_bytes": 12582912},
{"name": "own pages", "page_bytes": null, "pages": 9, "in_use_bytes": 0, "reserved_bytes": 1000}]}' ;;
*) echo 'Traceback' >&2; echo 'RuntimeError: no hooks here' >&2; exit 1 ;;"#;
    let options = "--batch-size 1 --pytorch foreach,no-foreach,fused,hook,optimi,checkpoint";
    let mut command = suite(home.path(), cases, &format!("{PLAIN} {options}"));
    // The table names the run that failed, the results of the others are there, and the exit code
    // is 1.
    let outcome = Outcome::of(&mut command, home.path(), 1);
    outcome.mentions("hook: RuntimeError: no hooks here");
    outcome.mentions("foreach: shared pages (3 of 4.0) 10.0 of 12.0\n");
    outcome.mentions("optimi: this Python does not have it");
    assert_eq!(outcome.json["versions"]["pytorch"], "2");
    assert_eq!(outcome.json["failed"].as_array().unwrap().len(), 1);
    let runs = outcome.runs();
    let modes = runs
        .iter()
        .map(|run| run["subject"]["mode"].as_str().unwrap());
    let expected = ["plain", "foreach", "no-foreach", "fused", "checkpoint"];
    assert_eq!(modes.collect::<Vec<_>>(), expected);
    assert_eq!(runs[0]["subject"]["burn"], "0.21");
    assert!(runs[1..].iter().all(|run| run["subject"]["burn"].is_null()));
    let items = &runs[1]["items"];
    assert_eq!(
        (&items["held"], &items["peak_in"]),
        (&400.into(), &"step".into())
    );
    assert_eq!(items["temporaries"], 1700 - 4 * 202_186 - 800 - 400);
}

#[test]
fn another_model_in_pytorch_is_a_failure() {
    let home = TempDir::new().unwrap();
    let options = format!("{PLAIN} --batch-size 1 --pytorch hook");
    let mut command = suite(home.path(), &format!("*) {SEVEN} ;;"), &options);
    let outcome = Outcome::of(&mut command, home.path(), 1);
    outcome.mentions("not the same model: 7 parameters");
}

#[test]
fn pytorch_trains_the_decoder_of_the_command_line() {
    let home = TempDir::new().unwrap();
    let cases = format!(
        r#"*'"kind":"gpt"'*'"vocabulary":300,"context":16,'*) {SEVEN} ;;
*) echo "another model" >&2; exit 1 ;;"#
    );
    // No run of Burn, whose model would be compared with it.
    let options = "--burn 0.21 --part gpt --batch-size 2 --mode plain --checkpointing automatic \
                   --pytorch hook --vocabulary 300 --context 16";
    let mut command = suite(home.path(), &cases, options);
    let outcome = Outcome::of(&mut command, home.path(), 0);
    assert_eq!(outcome.runs().len(), 1);
    outcome.mentions("| GPT tiny, vocabulary 300, context 16, batch 2 ");
}

#[test]
fn a_python_without_pytorch_is_named() {
    let home = TempDir::new().unwrap();
    let mut command = tiny(home.path(), &format!("{PLAIN} --batch-size 1"));
    command.args(["--python", "/nowhere/python"]);
    let outcome = Outcome::of(&mut command, home.path(), 0);
    let left_out = &outcome.json["left_out"][0];
    assert_eq!(left_out["what"], "PyTorch and optimi");
    let why = left_out["why"].as_str().unwrap();
    assert!(why.contains("/nowhere/python"), "{why}");
    outcome.mentions("Left out:\n- PyTorch and optimi");
    assert_eq!(outcome.runs().len(), 1);
}

#[test]
fn time_limits_stop_a_suite() {
    let home = TempDir::new().unwrap();
    // Burn has no such run: what is left out first.
    let options = "--burn 0.21 --part vit --mode plain --checkpointing automatic --batch-size 1,2 \
                   --pytorch hook --time-limit 1 --within 1";
    let mut command = suite(home.path(), "*) exec sleep 60 ;;", options);
    let outcome = Outcome::of(&mut command, home.path(), 0);
    let left_out = outcome.json["left_out"].as_array().unwrap().iter();
    let why: Vec<_> = left_out.map(|left| left["why"].as_str().unwrap()).collect();
    assert_eq!(why.len(), 3);
    assert!(why[1].starts_with("took longer than"), "{why:?}");
    assert!(why[2].contains("--within"), "{why:?}");
}

/// While the second run is measured, another suite is refused the folder, and this one is killed.
#[test]
fn an_interrupted_suite_has_the_results_so_far() {
    let home = TempDir::new().unwrap();
    let second = format!(
        "\"{}\" --no-pytorch --output \"{}\" 2> \"{1}/second\"",
        env!("CARGO_BIN_EXE_benchmarks"),
        home.path().display()
    );
    let cases = format!("*) {second}; kill -9 $PPID ;;");
    let options = format!("{PLAIN} --batch-size 1 --pytorch foreach");
    suite(home.path(), &cases, &options).assert().interrupted();
    let json = fs::read(home.path().join("results.json")).unwrap();
    let json: Value = serde_json::from_slice(&json).unwrap();
    let runs = json["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 1);
    assert_eq!(runs[0]["subject"]["framework"], "burn");
    let table = fs::read_to_string(home.path().join("table.md")).unwrap();
    assert!(table.contains("plain"), "{table}");
    let refused = fs::read_to_string(home.path().join("second")).unwrap();
    assert!(refused.starts_with("error: another program"), "{refused}");
}
