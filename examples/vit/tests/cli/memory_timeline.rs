//! `--memory-timeline`, for a training whose gradients are larger than its activations.

use crate::program::{train, vit};
use assert_cmd::Command;
use burn_memory_timeline::Snapshot;
use burn_memory_timeline::analysis::{Estimate, Peak, Totals};
use burn_memory_timeline::snapshot::{Category, Phase, PhaseKind};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::{Command as Process, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Records the first steps of ViT-S on single small images.
fn recorded(folder: &Path, mode: &str) -> Snapshot {
    let file = folder.join(format!("{mode}.json.gz"));
    let output = vit()
        .args(["train", "--preset", "small", "--image-size", "32"])
        .args(["--batch-size", "1", "--stop-after", "5", "--no-tui"])
        .args(["--mode", mode, "--memory-timeline"])
        .arg(&file)
        .arg("--artifact-dir")
        .arg(folder.join(mode))
        .assert()
        .success()
        .get_output()
        .clone();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains("memory timeline written"), "{stderr}");
    Snapshot::load(&file).unwrap()
}

fn only(snapshot: &Snapshot, kind: PhaseKind) -> Vec<Phase> {
    let phases = snapshot.phases.iter().copied();
    phases.filter(|phase| phase.kind == kind).collect()
}

/// Plain Burn: gradients grow through the backward pass, and the peak is in the optimizer's step.
/// Gradient release: one gradient at a time, and the peak at the beginning of the backward pass. In
/// both, the sum of the blocks is the memory in use.
#[test]
fn plain_and_release_differ_in_gradients_and_peak() {
    let folder = TempDir::new().unwrap();
    let plain = recorded(folder.path(), "plain");
    let release = recorded(folder.path(), "release");
    let parameters: u64 = plain.parameters.iter().map(|it| it.bytes).sum();
    let largest = plain.parameters.iter().map(|it| it.bytes).max().unwrap();

    let totals = Totals::of(&plain);
    let gradients = totals.layer(Category::Gradients);
    let passes = only(&plain, PhaseKind::Backward);
    assert_eq!(passes.len(), 2);
    for pass in passes {
        let within = &gradients[pass.from..pass.until];
        assert!(within.is_sorted(), "gradients go before the pass has ended");
        assert_eq!(within.first(), Some(&0));
        assert_eq!(within.last(), Some(&parameters));
    }
    let plain_peak = Peak::of(&plain, &totals).unwrap();
    let place = plain_peak.place.unwrap();
    assert_eq!(place.phase, PhaseKind::Optimizer, "{place:?}");

    let totals = Totals::of(&release);
    let most = totals.most(&release, Category::Gradients).bytes;
    assert!(most < largest + largest / 100, "a weight's and its bias's");
    assert!(only(&release, PhaseKind::Optimizer).is_empty());
    let release_peak = Peak::of(&release, &totals).unwrap();
    let passes = only(&release, PhaseKind::Backward).into_iter();
    let within = |pass: &Phase| (pass.from..pass.until).contains(&release_peak.tick);
    let pass = passes.clone().find(within).expect("in a backward pass");
    let beginning = pass.from + (pass.until - pass.from) / 10;
    assert!(release_peak.tick < beginning, "{release_peak:?}");
    assert!(release_peak.bytes < plain_peak.bytes - parameters / 2);

    for snapshot in [&plain, &release] {
        let totals = Totals::of(snapshot);
        let known = totals.known();
        assert!(snapshot.samples.len() * 2 > known.len());
        for sample in &snapshot.samples {
            let off = sample.in_use.abs_diff(known[sample.tick]);
            assert!(off <= sample.in_use / 100, "{sample:?}: {off} off");
        }
    }
}

/// The estimate from the recording of plain Burn is the peak of gradient release.
#[test]
fn the_estimate_is_what_release_needs() {
    let folder = TempDir::new().unwrap();
    let plain = recorded(folder.path(), "plain");
    let release = recorded(folder.path(), "release");
    let estimate = Estimate::of(&plain, &Totals::of(&plain)).unwrap();
    let measured = Peak::of(&release, &Totals::of(&release)).unwrap().bytes;
    println!(
        "estimated {} to {}, measured {measured}",
        estimate.least, estimate.most
    );
    let near = measured / 50;
    assert!(estimate.least - near <= measured && measured <= estimate.most + near);
    assert!(estimate.most - estimate.least <= near);
}

/// Asserts that the program fails and that the last line mentions `text`; a driver may print lines
/// before.
fn refuses(command: &mut Command, text: &str) {
    let output = command.assert().failure().get_output().clone();
    let stderr = String::from_utf8(output.stderr).unwrap();
    let last = stderr.lines().last().unwrap();
    assert!(
        last.starts_with("error: ") && last.contains(text),
        "{stderr}"
    );
}

#[test]
fn what_cannot_be_recorded_is_refused() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("timeline.json.gz");
    let recorded = |run: &str, args: &[&str]| {
        let mut command = train(&folder.path().join(run));
        command.args(args).arg("--memory-timeline").arg(&file);
        command
    };
    let nowhere = folder.path().join("nowhere").join("timeline.json.gz");
    let home = folder.path().join("untouched");
    let mut lost = train(&home);
    lost.arg("--memory-timeline").arg(&nowhere);
    refuses(&mut lost, "choose a folder that exists");
    assert!(!home.exists(), "nothing should have been written");
    // A recording begins with the third step, which this run does not reach.
    let mut short = recorded("short", &["--stop-after", "2"]);
    refuses(&mut short, "no memory timeline: nothing was recorded");
    assert!(!file.exists());
    if cfg!(feature = "ndarray") {
        refuses(
            &mut recorded("ndarray", &["--backend", "ndarray"]),
            "use flex",
        );
    }
    if cfg!(feature = "wgpu") {
        let mut fused = recorded("fused", &["--backend", "wgpu"]);
        refuses(
            &mut fused,
            if has_adapter() {
                "--no-fusion"
            } else {
                "no wgpu adapter"
            },
        );
    }
}

/// What is lost is the timeline, and not what was trained.
#[test]
fn a_timeline_that_cannot_be_written_is_all_that_is_lost() {
    let home = TempDir::new().unwrap();
    let (run, folder) = (home.path().join("run"), home.path().join("there"));
    fs::create_dir(&folder).unwrap();
    let child = Process::new(assert_cmd::cargo::cargo_bin("vit"))
        .args(["train", "--json", "--epochs", "1", "--batch-size", "256"])
        .arg("--artifact-dir")
        .arg(&run)
        .arg("--memory-timeline")
        .arg(folder.join("timeline.json.gz"))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let begun = Instant::now();
    while !run.join("config.json").exists() {
        assert!(begun.elapsed() < Duration::from_secs(60));
        sleep(Duration::from_millis(1));
    }
    // Before the fourth batch.
    fs::remove_dir(&folder).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(74), "{said}");
    let last = said.lines().last().unwrap();
    assert!(last.starts_with("error: no memory timeline: "), "{said}");
    let printed: Value = serde_json::from_slice(&output.stdout).unwrap();
    let saved: Value =
        serde_json::from_slice(&fs::read(run.join("results.json")).unwrap()).unwrap();
    assert_eq!(printed, saved);
}

#[cfg(target_os = "linux")]
#[test]
fn where_no_timeline_can_be_written_is_refused_at_once() {
    let home = TempDir::new().unwrap();
    let run = home.path().join("run");
    let mut command = train(&run);
    command.args(["--memory-timeline", "/sys/kernel/timeline.json.gz"]);
    let output = command.assert().code(74).get_output().clone();
    let said = String::from_utf8(output.stderr).unwrap();
    let text = "error: --memory-timeline cannot write /sys/kernel/timeline.json.gz: ";
    assert!(said.starts_with(text), "{said}");
    assert!(!run.exists());
}

#[cfg(feature = "wgpu")]
fn has_adapter() -> bool {
    !::vit::device::adapters().is_empty()
}

#[cfg(not(feature = "wgpu"))]
fn has_adapter() -> bool {
    false
}
