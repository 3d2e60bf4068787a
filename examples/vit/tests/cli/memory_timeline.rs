//! `--memory-timeline`, for a training whose gradients are larger than its activations.

use crate::program::{Home, said, train};
use lean_timeline::Snapshot;
use lean_timeline::analysis::{Agreement, Estimate, Peak, StatesEstimate, Totals};
use lean_timeline::snapshot::Category;

/// Records the third and fourth step of ViT-S on single small images.
fn recorded(home: &Home, mode: &str, optimizer: &str) -> Snapshot {
    let name = format!("{mode}-{optimizer}");
    let file = home.folder(&format!("{name}.json.gz"));
    let mut run = train(
        &home.folder(&name),
        &format!(
            "--preset small --image-size 32 --batch-size 1 --stop-after 5 --mode {mode} \
             --optimizer {optimizer}"
        ),
    );
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

/// Plain Burn has its peak where all gradients exist, and foretells that of gradient release and of
/// small states.
#[test]
fn plain_burn_foretells_release_and_small_states() {
    let home = Home::new();
    let plain = recorded(&home, "plain", "adamw");
    let release = recorded(&home, "release", "adamw");
    let parameters: u64 = plain.parameters.iter().map(|it| it.bytes).sum();
    let largest = plain.parameters.iter().map(|it| it.bytes).max().unwrap();

    let totals = Totals::of(&plain);
    let at_once = |snapshot| Totals::of(snapshot).most(snapshot, Category::Gradients);
    assert!(is_near(at_once(&plain).bytes, parameters));
    assert!(at_once(&release).bytes < largest + largest / 10);
    assert!(is_near(
        peak(&plain).bytes_of(Category::Gradients),
        parameters
    ));
    let estimate = Estimate::of(&plain, &totals).unwrap();
    assert!(is_near(estimate.most, peak(&release).bytes));

    let estimate = StatesEstimate::of_8_bit_adamw(&plain, &totals).unwrap();
    let small = recorded(&home, "release", "adamw-8bit");
    assert!(is_near(estimate.most, peak(&small).bytes));

    for snapshot in [&plain, &release] {
        let agreement = Agreement::of(snapshot, &Totals::of(snapshot)).unwrap();
        assert!(agreement.share() < 0.01, "{agreement:?}");
        // All parameters but those of a few numbers are found.
        assert!(snapshot.parameters.len() > 100);
    }
}

#[test]
fn a_run_that_ends_too_early_records_nothing() {
    let home = Home::new();
    let file = home.folder("timeline.json.gz");
    let mut short = home.train("short", 1, "--stop-after 2");
    let output = short.arg("--memory-timeline").arg(&file).output().unwrap();
    let said = said(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("nothing was recorded"), "{said}");
    assert!(!file.exists());
}
