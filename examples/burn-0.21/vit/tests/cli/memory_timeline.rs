//! `--memory-timeline`, for a training whose gradients are larger than its activations.

use crate::program::{Home, said, train};
use burn_gradient_release_timeline::Snapshot;
use burn_gradient_release_timeline::analysis::{Estimate, Peak, Totals};
use burn_gradient_release_timeline::snapshot::{Category, Phase, PhaseKind};
use std::path::Path;
use tempfile::TempDir;

/// Records the first steps of ViT-S on single small images.
fn recorded(folder: &Path, mode: &str) -> Snapshot {
    let file = folder.join(format!("{mode}.json.gz"));
    let small = "--preset small --image-size 32 --batch-size 1 --stop-after 5";
    let options = format!("{small} --mode {mode} --memory-timeline");
    let mut run = train(&folder.join(mode), &options);
    let said = said(&run.arg(&file).output().unwrap());
    assert!(said.contains("memory timeline written"), "{said}");
    Snapshot::load(&file).unwrap()
}

fn only(snapshot: &Snapshot, kind: PhaseKind) -> Vec<Phase> {
    let phases = snapshot.phases.iter().copied();
    phases.filter(|phase| phase.kind == kind).collect()
}

/// Plain Burn: gradients grow through the backward pass, and the peak is in the optimizer's step.
/// Gradient release: one gradient at a time, and the peak at the beginning of the backward pass,
/// which the recording of plain Burn foretells. In both, the sum of the blocks is the memory in use.
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
    let estimate = Estimate::of(&plain, &totals).unwrap();

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

    let (least, most, measured) = (estimate.least, estimate.most, release_peak.bytes);
    println!("estimated {least} to {most}, measured {measured}");
    let near = measured / 50;
    assert!(least - near <= measured && measured <= most + near);
    assert!(most - least <= near);

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

#[test]
fn what_cannot_be_recorded_is_refused() {
    let home = Home::new();
    let file = home.folder("timeline.json.gz");
    // A recording begins with the third step, which this run does not reach.
    let mut short = home.train("short", 1, "--stop-after 2");
    let output = short.arg("--memory-timeline").arg(&file).output().unwrap();
    let said = said(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    let error = "\nerror: no memory timeline: nothing was recorded";
    assert!(said.contains(error), "{said}");
    assert!(!file.exists());
}
