//! `--memory-timeline`, for a training whose gradients are larger than its activations.

use crate::PROGRAM;
use crate::program::{Home, said, train, write_images};
use lean_timeline::Snapshot;
use lean_timeline::analysis::{Choice, Peak, Totals};
use lean_timeline::snapshot::Category;
use std::thread;

/// Records the third and the fourth of five steps of ViT-S on two small images. On a single one Burn's `Linear`
/// reshapes its weight, and gradients of such views come last.
fn recorded(home: &Home, mode: &str) -> Snapshot {
    let file = home.folder(&format!("{mode}.json"));
    let small = "--preset small --image-size 32 --batch-size 2 --epochs 1 --checkpointing none";
    let options = format!("{small} --mode {mode} {}", PROGRAM.stop);
    let mut run = train(&home.folder(mode), &options);
    run.arg("--data").arg(home.folder("few"));
    let output = run.arg("--memory-timeline").arg(&file).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    Snapshot::load(&file).unwrap()
}

/// Of a single batch there is no third one to record.
#[test]
fn what_is_not_recorded_does_not_cost_the_results() {
    let home = Home::new();
    let options = "--epochs 1 --batch-size 32 --memory-timeline";
    let mut run = train(&home.folder("run"), options);
    run.arg(home.folder("run.json"));
    let output = run
        .arg("--data")
        .arg(home.folder("images"))
        .output()
        .unwrap();
    let said = said(&output);
    assert!(
        !output.status.success() && said.contains("nothing was recorded"),
        "{said}"
    );
    assert!(home.folder("run/results.json").exists(), "{said}");
}

/// Whether bytes differ by a twentieth at most.
fn is_near(one: u64, other: u64) -> bool {
    println!("{one} {other}");
    one.abs_diff(other) * 20 <= other
}

/// With plain Burn all gradients exist at once. Its recording foretells the peak of gradient release.
#[test]
fn plain_burn_foretells_release() {
    let home = &Home::new();
    write_images(&home.folder("few"), 1, 12);
    // At once, as most of the time is that of one core.
    let [plain, release] = thread::scope(|scope| {
        let runs = ["plain", "release"].map(|mode| scope.spawn(move || recorded(home, mode)));
        runs.map(|run| run.join().unwrap())
    });
    let parameters: u64 = plain.parameters.iter().map(|it| it.bytes).sum();
    let peak = |snapshot| Peak::of(snapshot, &Totals::of(snapshot)).unwrap().bytes;

    let totals = Totals::of(&plain);
    let at_once = |snapshot| Totals::of(snapshot).most(Category::Gradients).0;
    assert!(is_near(at_once(&plain), parameters));
    assert!(at_once(&release) < parameters / 20);
    let estimate = Choice::all(&plain, &totals).unwrap()[1];
    assert!(estimate.release && estimate.peak + parameters / 2 < peak(&plain));
    assert!(is_near(estimate.peak, peak(&release)));

    for snapshot in [&plain, &release] {
        let off = Totals::of(snapshot).disagreement(snapshot).unwrap();
        assert!(off < 0.02, "{off}");
        // All parameters but those of a few numbers are found.
        assert!(snapshot.parameters.len() > 100);
    }
}
