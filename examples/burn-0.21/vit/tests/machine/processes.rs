//! Training in several processes.

use crate::PROGRAM;
use crate::both::processes::{NEW, assert_near, resume_sharded, sharded, train, whole};
use crate::both::{Test, tests};
use crate::program::{Home, json, result, said};
use burn_gradient_release_timeline::Snapshot;
use std::time::Duration;
use tempfile::TempDir;
use vit_common::launching::{self, digest};

pub(super) const TESTS: &[Test] = tests![
    an_interruption_of_one_stops_all,
    an_interruption_of_a_finished_run_has_no_effect,
    clipping_and_accumulation_are_those_of_one_process,
    unequal_shares_are_recomputed,
    a_memory_timeline_is_that_of_the_first_process,
];

fn an_interruption_of_one_stops_all() {
    let home = TempDir::new().unwrap();
    for rank in [0, 2] {
        let folder = home.path().join(rank.to_string());
        let saved = folder.join(PROGRAM.saved(1));
        let run = train(4, &folder, &sharded());
        let (took, output) = launching::signalled(run, "-INT", rank, &saved);
        assert!(took < Duration::from_secs(10), "{took:?}");
        assert!(!folder.join("results.json").exists());
        let said = said(&output);
        assert!(said.contains("vit train --resume"), "{said}");
        assert_eq!(digest(&resume_sharded(&folder)), digest(whole()));
    }
}

/// Of the second process, while the first one validates for the last time.
fn an_interruption_of_a_finished_run_has_no_effect() {
    let home = Home::with([16, 4000]);
    let run = |name: &str, more: &[&str]| {
        let mut run = train(2, &home.folder(name), &["--batch-size", "16"]);
        run.args(more).arg("--data").arg(home.folder(""));
        run
    };
    let early = ["--epochs", "30", "--early-stopping", "1", "--lr", "0.01"];
    let last = result(&mut run("whole", &early))["epochs"]
        .as_u64()
        .unwrap();
    assert!(last < 30, "it is stopped early");
    for (name, more, last) in [("all", &["--epochs", "1"][..], 1), ("early", &early, last)] {
        let folder = home.folder(name);
        let file = folder.join(format!("valid/epoch-{last}/Loss.log"));
        let (_, output) = launching::signalled(run(name, more), "-TERM", 1, &file);
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
        assert_eq!(json(&folder.join("results.json"))["epochs"], last, "{name}");
    }
}

fn clipping_and_accumulation_are_those_of_one_process() {
    let home = TempDir::new().unwrap();
    let more = [
        "--clip-grad-norm",
        "0.5",
        "--grads-accumulation",
        "2",
        "--no-decay-on-norms",
    ];
    let run = |name: &str, processes, new: &[&str]| {
        result(train(processes, &home.path().join(name), new).args(more))
    };
    let two = run("two", 2, &NEW);
    assert_near(&two, &run("one", 0, &NEW));
    assert_eq!(digest(&run("sharded", 2, &sharded())), digest(&two));
}

/// Each process keeps what fits of its own share, and so completes its gradients in an order of its
/// own.
fn unequal_shares_are_recomputed() {
    let home = TempDir::new().unwrap();
    let run = |name: String, more: &[&str]| {
        let new = ["--epochs", "1", "--batch-size", "10", "--dropout", "0"];
        result(train(3, &home.path().join(name), &new).args(more))
    };
    let budget = [
        "--checkpointing",
        "automatic",
        "--activation-budget",
        "380KiB",
    ];
    for (option, recomputed) in [
        (&[][..], &["--shard-optimizer"][..]),
        (&["--clip-grad-norm", "0.5"], &["--clip-grad-norm", "0.5"]),
    ] {
        let kept = run(format!("kept{option:?}"), option);
        let recomputed = run(
            format!("recomputed{option:?}"),
            &[&budget[..], recomputed].concat(),
        );
        assert_eq!(digest(&recomputed), digest(&kept), "{option:?}");
    }
}

fn a_memory_timeline_is_that_of_the_first_process() {
    let home = TempDir::new().unwrap();
    let file = home.path().join("timeline.json.gz");
    let mut run = train(
        2,
        &home.path().join("run"),
        &["--epochs", "1", "--batch-size", "128"],
    );
    let output = run.arg("--memory-timeline").arg(&file).output().unwrap();
    let said = said(&output);
    assert!(output.status.success(), "{said}");
    assert_eq!(said.matches("memory timeline written").count(), 1, "{said}");
    assert!(!Snapshot::load(&file).unwrap().parameters.is_empty());
}
