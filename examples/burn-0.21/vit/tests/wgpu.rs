//! Training on wgpu.

#[path = "../../../tests/vit/program.rs"]
mod program;
#[path = "cli/this.rs"]
mod this;

use program::{Home, result};
use serde_json::Value;
use this::PROGRAM;

/// One test of few runs, as each run compiles its kernels.
#[test]
fn a_run_passes_between_modes_and_backends() {
    let home = Home::new();
    // Backends differ in their random numbers; without dropout, only the first weights need them.
    let options = "--backend wgpu --dropout 0 --mode plain";
    let plain = result(&mut home.train("plain", 2, options));
    let options = options.replace("plain", "release");
    let release = result(&mut home.train("release", 2, &options));
    for same in ["weights_digest", "validation_loss"] {
        assert_eq!(release[same], plain[same], "{same}");
    }
    let bytes = |run: &Value, key: &str| run[key].as_u64().unwrap();
    // The weights, and two moments of Adam for each.
    assert!(bytes(&release, "peak_bytes") > 3 * 4 * 200_000, "{release}");
    assert!(bytes(&release, "peak_reserved_bytes") >= bytes(&release, "peak_bytes"));

    // After the same first epoch, the second epoch differs only in the rounding of the kernels: the
    // first digits of the loss are the same, as they would not be after other weights.
    for resumed in ["--backend flex", "--backend wgpu --no-fusion"] {
        home.forget("release", 1);
        let to = result(&mut home.resume("release", resumed));
        let [loss, expected] = [&to, &release].map(|run| run["validation_loss"].as_f64().unwrap());
        assert!((loss - expected).abs() < 1e-4, "{loss} for {expected}");
    }
}
