//! PyTorch beside Burn, with a script in place of Python.

use super::{Outcome, mentions, outcome, runs, tiny, tiny_with_python};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use tempfile::TempDir;

/// A shell script in place of Python, with the output of the real programs.
fn fake_python(home: &Path, script: &str) -> String {
    let file = home.join("python");
    fs::write(&file, format!("#!/bin/sh\n{script}")).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
    file.to_str().unwrap().into()
}

const VERSIONS: &str = r#"{"python": "3", "torch": "2", "optimi": null, "torchao": null, "cuda": null, "gpu": null, "threads": 1}"#;

#[test]
fn pytorch_runs_beside_burn() {
    let home = TempDir::new().unwrap();
    let python = fake_python(
        home.path(),
        &format!(
            r#"case "$2" in
versions) echo '{VERSIONS}' ;;
*foreach*|*fused*|*'"checkpoint"'*) echo '{{"backend": "fake", "parameters": 202186, "largest_parameter": 16384,
"step_seconds": [0.5], "final_loss": 1.5, "weights_digest": "abc", "memory": {{"peak_bytes": 1700,
"peak_reserved_bytes": null, "warm_up_peak_bytes": 1650, "optimizer_state_bytes": 800,
"live_before": 1200, "live_after_forward": 1300, "live_after_backward": 1600,
"live_after_step": 1600, "peak_in_forward": 1310, "peak_in_backward": 1610,
"peak_in_step": 1700}}}}' ;;
*) echo 'Traceback' >&2; echo 'RuntimeError: no hooks here' >&2; exit 1 ;;
esac"#
        ),
    );
    let options = "--batch-size 1 --pytorch foreach,no-foreach,fused,hook,optimi,checkpoint";
    let mut command = tiny_with_python(home.path(), &python, options);
    // The table names the run that failed, the results of the others are there, and the exit code
    // is 1.
    let output = command.assert().code(1).get_output().clone();
    let table = String::from_utf8(output.stdout).unwrap();
    mentions(&table, "hook: RuntimeError: no hooks here");
    mentions(&table, "optimi: this Python does not have it");
    let json = fs::read(home.path().join("results.json")).unwrap();
    let json: Value = serde_json::from_slice(&json).unwrap();
    assert_eq!(json["versions"]["pytorch"]["torch"], "2");
    assert_eq!(json["failed"].as_array().unwrap().len(), 1);
    let modes: Vec<_> = runs(&json)
        .iter()
        .map(|run| &run["subject"]["mode"])
        .collect();
    assert_eq!(
        modes,
        ["plain", "foreach", "no-foreach", "fused", "checkpoint"]
    );
    let versions = |run: &Value| run["subject"]["burn"].clone();
    assert_eq!(versions(&runs(&json)[0]), "0.21");
    assert!(runs(&json)[1..].iter().all(|run| versions(run).is_null()));
    let items = &runs(&json)[1]["items"];
    assert_eq!(
        (&items["held"], &items["peak_in"]),
        (&400.into(), &"step".into())
    );
    assert_eq!(items["temporaries"], 1700 - 4 * 202_186 - 800 - 400);
}

#[test]
fn another_model_in_pytorch_is_a_failure() {
    let home = TempDir::new().unwrap();
    let python = fake_python(
        home.path(),
        &format!(
            r#"[ "$2" = versions ] && echo '{VERSIONS}' || echo '{{"backend": "fake", "parameters": 7,
"largest_parameter": 7, "step_seconds": [0.5], "final_loss": 1.5, "weights_digest": "abc",
"memory": null}}'"#
        ),
    );
    let mut command = tiny_with_python(home.path(), &python, "--batch-size 1 --pytorch hook");
    let output = command.assert().code(1).get_output().clone();
    let table = String::from_utf8(output.stdout).unwrap();
    mentions(&table, "not the same model: 7 parameters");
}

#[test]
fn pytorch_trains_the_decoder_of_the_command_line() {
    let home = TempDir::new().unwrap();
    let python = fake_python(
        home.path(),
        &format!(
            r#"case "$2" in
versions) echo '{VERSIONS}' ;;
*'"kind":"gpt"'*'"vocabulary":300,"context":16,'*) echo '{{"backend": "fake", "parameters": 7,
"largest_parameter": 7, "step_seconds": [0.5], "final_loss": 1.5, "weights_digest": "abc",
"memory": null}}' ;;
*) echo "another model" >&2; exit 1 ;;
esac"#
        ),
    );
    // No run of Burn, whose model would be compared with it.
    let options = "--burn 0.21 --part gpt --batch-size 2 --mode plain --checkpointing automatic \
                   --pytorch hook --vocabulary 300 --context 16";
    let mut command = tiny(home.path(), options);
    command.args(["--python", &python]);
    let Outcome { table, json } = outcome(&mut command, home.path());
    assert_eq!(runs(&json).len(), 1);
    mentions(&table, "| GPT tiny, vocabulary 300, context 16, batch 2 ");
}

#[test]
fn time_limits_stop_a_suite() {
    let home = TempDir::new().unwrap();
    let python = fake_python(
        home.path(),
        &format!("[ \"$2\" = versions ] && echo '{VERSIONS}' || exec sleep 60"),
    );
    let options = "--batch-size 1,2 --pytorch hook --time-limit 1 --within 1";
    let mut command = tiny_with_python(home.path(), &python, options);
    let Outcome { json, .. } = outcome(&mut command, home.path());
    let left_out = json["left_out"].as_array().unwrap().iter();
    let why: Vec<_> = left_out.map(|left| left["why"].as_str().unwrap()).collect();
    assert!(why[0].starts_with("took longer than"), "{why:?}");
    assert!(
        why[1..].iter().all(|why| why.contains("--within")),
        "{why:?}"
    );
    assert_eq!(why.len(), 3);
}

#[test]
fn an_interrupted_suite_has_the_results_so_far() {
    let home = TempDir::new().unwrap();
    let python = fake_python(
        home.path(),
        &format!(r#"case "$2" in versions) echo '{VERSIONS}' ;; *) kill -9 $PPID ;; esac"#),
    );
    let options = "--batch-size 1 --pytorch foreach";
    let mut command = tiny_with_python(home.path(), &python, options);
    command.assert().interrupted();
    let json = fs::read(home.path().join("results.json")).unwrap();
    let json: Value = serde_json::from_slice(&json).unwrap();
    assert_eq!(runs(&json).len(), 1);
    assert_eq!(runs(&json)[0]["subject"]["framework"], "burn");
    let table = fs::read_to_string(home.path().join("table.md")).unwrap();
    mentions(&table, "plain");
}
