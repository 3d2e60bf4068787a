//! Interrupted runs of all kinds and their resumption.

use crate::program::{Home, fails, files, names, outcome, result};
use std::fs;

/// As the papers train a vision transformer: decay groups and clipping by the global norm.
#[test]
fn decay_groups_and_clipping_are_resumed() {
    let home = Home::new();
    let recipe = [
        "--weight-decay",
        "0.3",
        "--no-decay-on-norms",
        "--clip-grad-norm",
        "0.5",
    ];
    let whole = result(home.train("whole", 2).args(recipe));
    // Each of the three does something.
    for left_out in [&recipe[..2], &recipe[..3], &recipe[2..], &recipe[3..]] {
        let mut other = home.train("other", 2);
        let other = result(other.args(left_out).arg("--overwrite"));
        assert_ne!(outcome(&other), outcome(&whole), "{left_out:?}");
    }
    let norms = home.folder("whole/train/epoch-1/Gradient_Norm.log");
    assert_eq!(fs::read_to_string(norms).unwrap().lines().count(), 8);

    home.stop("run", 2, 13, &recipe);
    let refusal = "has --clip-grad-norm 0.5, not 2";
    fails(
        home.resume("run").args(["--clip-grad-norm", "2"]),
        &[refusal],
    );
    assert_eq!(outcome(&result(&mut home.resume("run"))), outcome(&whole));
}

#[test]
fn accumulation_is_resumed_in_either_mode() {
    let home = Home::new();
    let in_mode = |mode| ["--grads-accumulation", "3", "--mode", mode];
    let plain = result(home.train("plain", 2).args(in_mode("plain")));
    for checkpointing in ["none", "automatic"] {
        let mut release = home.train(checkpointing, 2);
        release
            .args(in_mode("release"))
            .args(["--checkpointing", checkpointing]);
        assert_eq!(
            outcome(&result(&mut release)),
            outcome(&plain),
            "{checkpointing}"
        );
    }
    let every_batch = result(&mut home.train("every-batch", 2));
    assert_ne!(plain["weights_digest"], every_batch["weights_digest"]);

    for (before, after) in [("plain", "release"), ("release", "plain")] {
        let name = format!("from-{before}");
        home.stop(&name, 2, 12, &in_mode(before));
        let resumed = result(home.resume(&name).args(["--mode", after]));
        assert_eq!(outcome(&resumed), outcome(&plain), "{name}");
    }
}

#[test]
fn a_run_is_resumed_with_any_checkpointing() {
    let home = Home::new();
    let whole = result(&mut home.train("whole", 3));
    let automatic = "--checkpointing automatic --activation-budget 1MiB";
    let to_automatic = "--mode release --checkpointing automatic";
    let plain_balanced = "--mode plain --checkpointing balanced";
    let blocks = "--checkpointing blocks";
    for (before, after, checkpointing, budget) in [
        // Without an option it keeps its own.
        (automatic, "", "automatic", Some(1 << 20)),
        (
            automatic,
            "--activation-budget 2MiB",
            "automatic",
            Some(2 << 20),
        ),
        (automatic, "--activation-budget 0", "automatic", None),
        (automatic, blocks, "blocks", None),
        (plain_balanced, to_automatic, "automatic", None),
        (blocks, "--mode plain --checkpointing none", "none", None),
    ] {
        let name = format!("{before} then {after}");
        let options: Vec<_> = before.split_whitespace().collect();
        home.stop(&name, 3, 13, &options);
        if before == blocks {
            // Plain Burn cannot go on with what it cannot do.
            let before = files(&home.folder(&name));
            let way_out = "--checkpointing balanced with --mode plain";
            fails(home.resume(&name).args(["--mode", "plain"]), &[way_out]);
            assert!(files(&home.folder(&name)) == before);
        }
        let resumed = result(home.resume(&name).args(after.split_whitespace()));
        assert_eq!(outcome(&resumed), outcome(&whole), "{name}");
        let engine = &home.settings(&name)["engine"];
        assert_eq!(engine["checkpointing"], checkpointing, "{name}");
        assert_eq!(engine["activation_budget"].as_u64(), budget, "{name}");
    }
}

#[test]
fn a_resumed_run_continues_its_early_stopping() {
    let home = Home::new();
    let patience = ["--early-stopping", "2", "--lr", "0.01"];
    let whole = result(home.train("whole", 30).args(patience));
    let epochs = whole["epochs"].as_u64().unwrap();
    assert!((3..30).contains(&epochs), "{epochs} epochs");

    // Stops in the last epoch: the best one is before the checkpoint.
    home.stop("run", 30, 8 * epochs as usize - 2, &patience);
    let refusals = [
        (["--early-stopping", "3"], "--early-stopping 2, not 3"),
        (
            ["--grads-accumulation", "2"],
            "--grads-accumulation 1, not 2",
        ),
    ];
    for (args, text) in refusals {
        fails(home.resume("run").args(args), &[text]);
    }
    assert_eq!(outcome(&result(&mut home.resume("run"))), outcome(&whole));

    // As if killed after the last epoch, before the results: no further epoch is trained.
    fs::remove_file(home.folder("whole/results.json")).unwrap();
    assert_eq!(outcome(&result(&mut home.resume("whole"))), outcome(&whole));
}

/// The states of the optimizer take most of the room.
#[test]
fn weights_that_were_kept_alone_are_not_lost() {
    let home = Home::new();
    let whole = result(&mut home.train("run", 2));
    let checkpoints = home.folder("run/checkpoint");
    for name in names(&checkpoints) {
        if !name.starts_with("model-2") {
            fs::remove_file(checkpoints.join(name)).unwrap();
        }
    }
    let weights = fs::read(checkpoints.join("model-2.mpk")).unwrap();
    let copy = checkpoints.join("model-2.mpk.bak");
    fs::write(&copy, &weights).unwrap();
    assert_eq!(outcome(&result(&mut home.resume("run"))), outcome(&whole));
    let aside = home.folder("run/checkpoint-incomplete");
    assert_eq!(names(&aside), ["model-2.mpk", "model-2.mpk.sha256"]);
    assert_eq!(fs::read(aside.join("model-2.mpk")).unwrap(), weights);
    assert_eq!(fs::read(copy).unwrap(), weights);
}

/// The settings say another preset than that of the checkpoints.
#[test]
fn a_preset_swapped_in_by_hand_is_refused() {
    let home = Home::new();
    let sizes = ["--image-size", "16", "--patch-size", "8", "--preset"];
    for (name, preset) in [("tiny", "tiny"), ("small", "small"), ("other", "tiny")] {
        home.stop(name, 3, 20, &[&sizes[..], &[preset]].concat());
    }
    let copy = |from: &str, to: &str, file: &str| {
        let [from, to] = [from, to].map(|run| home.folder(run).join(file));
        fs::copy(from, to).unwrap();
    };
    let text = "was saved by a run with other settings";
    // The checkpoints alone, or the settings alone.
    for name in names(&home.folder("small/checkpoint")) {
        copy("small", "tiny", &format!("checkpoint/{name}"));
    }
    fails(&mut home.resume("tiny"), &[text]);
    copy("small", "other", "config.json");
    fails(&mut home.resume("other"), &[text]);
    // With both it is the other run.
    copy("small", "tiny", "config.json");
    assert_eq!(result(&mut home.resume("tiny"))["epochs"], 3);
}
