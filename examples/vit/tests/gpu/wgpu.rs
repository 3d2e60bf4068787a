use assert_cmd::Command;
use libtest_mimic::Trial;
use serde_json::Value;
use std::fs;
use std::path::Path;
use tempfile::TempDir;
use vit::backend;
use vit::config::BackendKind;

pub(crate) fn tests() -> Vec<Trial> {
    let missing = backend::require(BackendKind::Wgpu).err();
    vec![
        Trial::test("a_missing_adapter_is_named", || {
            a_missing_adapter_is_named();
            Ok(())
        }),
        Trial::test("a_run_passes_between_modes_and_backends", || {
            a_run_passes_between_modes_and_backends();
            Ok(())
        })
        .with_kind(missing.as_ref().map_or("", |_| "skipped: no wgpu adapter"))
        .with_ignored_flag(missing.is_some()),
    ]
}

fn a_missing_adapter_is_named() {
    let home = TempDir::new().unwrap();
    let run = home.path().join("run");
    let mut vit = Command::cargo_bin("vit").unwrap();
    vit.args(["train", "--backend", "wgpu", "--artifact-dir"])
        .arg(&run)
        // The list of drivers for Vulkan's loader, under its new and its old name.
        .env("VK_DRIVER_FILES", home.path().join("none.json"))
        .env("VK_ICD_FILENAMES", home.path().join("none.json"));
    let output = vit.assert().code(1).get_output().clone();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert!(stderr.starts_with("error: no wgpu adapter"), "{stderr}");
    assert!(stderr.contains("mesa-vulkan-drivers"), "{stderr}");
    assert!(output.stdout.is_empty());
    assert!(!run.exists(), "nothing should have been written");
}

/// One test of few runs, as each run compiles its kernels.
fn a_run_passes_between_modes_and_backends() {
    let home = TempDir::new().unwrap();
    write_images(home.path());
    let folder = |name: &str| home.path().join(name);
    let train = |name: &str, backend: &str, mode: &str| {
        let mut vit = Command::cargo_bin("vit").unwrap();
        vit.args(["train", "--json", "--backend", backend, "--mode", mode])
            // Backends differ in their random numbers; without dropout, only the first weights need
            // them.
            .args(["--epochs", "2", "--batch-size", "8", "--dropout", "0"])
            .arg("--data")
            .arg(home.path())
            .arg("--artifact-dir")
            .arg(folder(name));
        vit
    };
    let resume = |name: &str| {
        let mut vit = Command::cargo_bin("vit").unwrap();
        vit.args(["train", "--json", "--resume", "--artifact-dir"])
            .arg(folder(name));
        vit
    };

    let plain = result(&mut train("plain", "wgpu", "plain"));
    let release = result(&mut train("release", "wgpu", "release"));
    for same in ["weights_digest", "train_loss", "validation_accuracy"] {
        assert_eq!(release[same], plain[same], "{same}");
    }
    let bytes = |run: &Value, key: &str| run[key].as_u64().unwrap();
    for run in [&plain, &release] {
        // The weights, and two moments of Adam for each.
        assert!(bytes(run, "peak_bytes") > 3 * 4 * 200_000, "{run}");
        assert!(bytes(run, "peak_reserved_bytes") >= bytes(run, "peak_bytes"));
    }
    let log = fs::read_to_string(folder("release/train/epoch-2/Peak_Memory.log")).unwrap();
    assert_eq!(log.lines().count(), 3, "{log}");

    // After the same first epoch, the second epoch differs only in the rounding of the kernels: the
    // first digits of the loss are the same, as they would not be after other weights.
    let close = |run: &Value, expected: &Value| {
        let [loss, expected] = [run, expected].map(|run| run["train_loss"].as_f64().unwrap());
        assert!((loss - expected).abs() < 1e-4, "{loss} for {expected}");
    };
    forget_the_second_epoch(&folder("release"));
    let to_flex = result(resume("release").args(["--backend", "flex"]));
    assert!(to_flex["peak_reserved_bytes"].is_null());
    close(&to_flex, &release);

    let flex = result(&mut train("flex", "flex", "plain"));
    forget_the_second_epoch(&folder("flex"));
    let to_wgpu = result(resume("flex").args(["--backend", "wgpu", "--no-fusion"]));
    assert!(bytes(&to_wgpu, "peak_reserved_bytes") > 0);
    close(&to_wgpu, &flex);
}

/// Leaves the files of a run that was killed in its second epoch.
fn forget_the_second_epoch(run: &Path) {
    fs::remove_file(run.join("results.json")).unwrap();
    for part in ["model", "optim", "scheduler"] {
        fs::remove_file(run.join(format!("checkpoint/{part}-2.mpk"))).unwrap();
    }
}

/// Writes horizontal and vertical stripes under MNIST's names: three batches of 8 for training, and
/// one for validation.
fn write_images(folder: &Path) {
    for (part, count) in [("train", 24u32), ("t10k", 8)] {
        let pixel = |image: u32, at: u32| {
            let along = if image.is_multiple_of(2) {
                at / 8
            } else {
                at % 8
            };
            (along * 30 + image) as u8
        };
        let pixels = (0..count).flat_map(|image| (0..64).map(move |at| pixel(image, at)));
        let labels = (0..count).map(|image| (image % 2) as u8);
        let write = |name: &str, dims: &[u32], elements: Vec<u8>| {
            let mut bytes = vec![0, 0, 8, dims.len() as u8];
            bytes.extend(dims.iter().flat_map(|size| size.to_be_bytes()));
            bytes.extend(elements);
            fs::write(folder.join(format!("{part}-{name}-ubyte")), bytes).unwrap();
        };
        write("images-idx3", &[count, 8, 8], pixels.collect());
        write("labels-idx1", &[count], labels.collect());
    }
}

fn result(command: &mut Command) -> Value {
    let output = command.assert().success().get_output().stdout.clone();
    serde_json::from_slice(&output).unwrap()
}
