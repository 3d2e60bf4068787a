//! Training on wgpu, and the error on a machine without an adapter.

#[path = "../../../vit-common/tests/program.rs"]
mod program;
#[path = "cli/this.rs"]
mod this;

use program::{Home, fails, result, train};
use serde_json::Value;
use std::fs;
use std::path::Path;
use tempfile::TempDir;
use this::PROGRAM;
use vit_0_21::config::BackendKind;
use vit_0_21::device;

#[test]
fn a_missing_adapter_is_named() {
    let home = TempDir::new().unwrap();
    let run = home.path().join("run");
    let mut vit = train(&run, "--backend wgpu");
    // The list of drivers for Vulkan's loader, under its new and its old name.
    for name in ["VK_DRIVER_FILES", "VK_ICD_FILENAMES"] {
        vit.env(name, home.path().join("none.json"));
    }
    let code = fails(&mut vit, &["error: no wgpu adapter", "mesa-vulkan-drivers"]);
    assert_eq!(code, 1);
    assert!(!run.exists(), "nothing should have been written");
}

/// One test of few runs, as each run compiles its kernels.
#[test]
fn a_run_passes_between_modes_and_backends() {
    if device::require(BackendKind::Wgpu).is_err() {
        println!("skipped: no wgpu adapter");
        return;
    }
    let home = Home::new();
    let run = |name: &str, backend: &str, mode: &str| {
        // Backends differ in their random numbers; without dropout, only the first weights need
        // them.
        let options = format!("--backend {backend} --mode {mode} --dropout 0");
        result(&mut home.train(name, 2, &options))
    };
    let plain = run("plain", "wgpu", "plain");
    let release = run("release", "wgpu", "release");
    for same in ["weights_digest", "train_loss", "validation_accuracy"] {
        assert_eq!(release[same], plain[same], "{same}");
    }
    let bytes = |run: &Value, key: &str| run[key].as_u64().unwrap();
    for run in [&plain, &release] {
        // The weights, and two moments of Adam for each.
        assert!(bytes(run, "peak_bytes") > 3 * 4 * 200_000, "{run}");
        assert!(bytes(run, "peak_reserved_bytes") >= bytes(run, "peak_bytes"));
    }
    let log = home.folder("release/metrics/train/epoch-2/Peak_Memory.log");
    assert_eq!(fs::read_to_string(log).unwrap().lines().count(), 4);

    // After the same first epoch, the second epoch differs only in the rounding of the kernels: the
    // first digits of the loss are the same, as they would not be after other weights.
    let close = |run: &Value, expected: &Value| {
        let [loss, expected] = [run, expected].map(|run| run["train_loss"].as_f64().unwrap());
        assert!((loss - expected).abs() < 1e-4, "{loss} for {expected}");
    };
    forget_the_second_epoch(&home.folder("release"));
    let to_flex = result(&mut home.resume("release", "--backend flex"));
    assert!(to_flex["peak_reserved_bytes"].is_null());
    close(&to_flex, &release);

    let flex = run("flex", "flex", "plain");
    forget_the_second_epoch(&home.folder("flex"));
    let to_wgpu = result(&mut home.resume("flex", "--backend wgpu --no-fusion"));
    assert!(bytes(&to_wgpu, "peak_reserved_bytes") > 0);
    close(&to_wgpu, &flex);
}

/// Leaves the files of a run that was killed in its second epoch.
fn forget_the_second_epoch(run: &Path) {
    fs::remove_file(run.join("results.json")).unwrap();
    for part in PROGRAM.parts {
        let name = part.replace('.', "-2.");
        fs::remove_file(run.join("checkpoint").join(name)).unwrap();
    }
}
