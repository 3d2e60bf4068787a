//! `--memory-timeline`, for a training whose gradients are larger than its activations.

use crate::program::{Home, said, train};
use lean_timeline::Snapshot;
use lean_timeline::analysis::{Agreement, Estimate, Peak, Totals};
use lean_timeline::snapshot::Category;

/// Records the third step of ViT-S on a single small image.
fn recorded(home: &Home, mode: &str) -> Snapshot {
    let file = home.folder(&format!("{mode}.json.gz"));
    let small = "--preset small --image-size 32 --batch-size 1 --stop-after 3 --optimizer sgd";
    let mut run = train(&home.folder(mode), &format!("{small} --mode {mode}"));
    let output = run.arg("--memory-timeline").arg(&file).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    Snapshot::load(&file).unwrap()
}

fn peak(snapshot: &Snapshot) -> Peak {
    Peak::of(snapshot, &Totals::of(snapshot)).unwrap()
}

/// Whether bytes differ by a twentieth at most.
fn is_near(one: u64, other: u64) -> bool {
    println!("{one} {other}");
    one.abs_diff(other) * 20 <= other
}

/// With plain Burn all gradients exist at once. Its recording foretells the peak of gradient release.
#[test]
fn plain_burn_foretells_release() {
    let home = Home::new();
    let plain = recorded(&home, "plain");
    let release = recorded(&home, "release");
    let parameters: u64 = plain.parameters.iter().map(|it| it.bytes).sum();

    let totals = Totals::of(&plain);
    let at_once = |snapshot| Totals::of(snapshot).most(snapshot, Category::Gradients);
    assert!(is_near(at_once(&plain).bytes, parameters));
    assert!(at_once(&release).bytes < parameters / 20);
    let estimate = Estimate::of(&plain, &totals).unwrap();
    assert!(estimate.most + parameters / 2 < peak(&plain).bytes);
    assert!(is_near(estimate.most, peak(&release).bytes));

    for snapshot in [&plain, &release] {
        let agreement = Agreement::of(snapshot, &Totals::of(snapshot)).unwrap();
        assert!(agreement.share() < 0.02, "{agreement:?}");
        // All parameters but those of a few numbers are found.
        assert!(snapshot.parameters.len() > 100);
    }
}

/// A recording begins with the third step.
#[test]
fn what_cannot_be_recorded_is_an_error() {
    let home = Home::new();
    let (file, images) = (home.folder("timeline.json.gz"), home.folder("images"));
    for (file, text, begins) in [
        (&*file, "nothing was recorded", true),
        // Refused before an earlier run is overwritten.
        (
            "/nowhere/a.gz".as_ref(),
            "cannot write /nowhere/a.gz",
            false,
        ),
        (&*images, "cannot write", false),
    ] {
        let mut short = home.train("short", 1, "--stop-after 2");
        let output = short.arg("--memory-timeline").arg(file).output().unwrap();
        let said = said(&output);
        assert!(said.contains("error: ") && said.contains(text), "{said}");
        assert_eq!(output.status.code(), Some(1));
        assert!(!file.is_file());
        assert_eq!(home.folder("short").exists(), begins);
        let _ = std::fs::remove_dir_all(home.folder("short"));
    }
    // What has ended has its results, whatever has become of the recording.
    let mut short = train(
        &home.folder("ended"),
        "--patch-size 4 --batch-size 40 --epochs 1",
    );
    short.arg("--data").arg(&images);
    let output = short.arg("--memory-timeline").arg(&file).output().unwrap();
    assert!(said(&output).contains("nothing was recorded"));
    assert_eq!(output.status.code(), Some(1));
    assert!(home.folder("ended/results.json").exists());
}
