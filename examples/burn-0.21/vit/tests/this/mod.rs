//! What `vit-0-21` has of its own.

use crate::program::{Program, json};

/// As the tests of both programs want it.
pub(crate) const PROGRAM: Program = Program {
    name: "vit-0-21",
    path: env!("CARGO_BIN_EXE_vit-0-21"),
    checkpoint: |epoch| {
        ["model", "optim", "scheduler"].map(|part| format!("checkpoint/{part}-{epoch}.mpk"))
    },
    // Burn saves the three side by side.
    whole: |epoch| {
        (PROGRAM.checkpoint)(epoch)
            .map(|file| file + ".sha256")
            .to_vec()
    },
    unfinished: &[
        "checkpoint/unfinished-model-2.mpk",
        "checkpoint/unfinished-optim-2.mpk",
    ],
    damaged: &["is not as it was saved"],
    after_an_epoch: "begins with the first epoch",
    logs: &["Loss.log", "Accuracy.log"],
    cuda: ["--backend", "cuda"],
    checkpointing: &[
        ("plain", "balanced", false),
        ("release", "balanced", true),
        ("release", "blocks", true),
        ("release", "automatic", true),
    ],
    optimizers: "adam adam-one-pass adam-8bit adamw adamw-one-pass adamw-8bit lion adafactor sgd",
    diverging: ["--optimizer", "sgd", "--lr", "1"],
    own_setting: ("--grads-accumulation", "2", "grads_accumulation: 2"),
    peaks: |folder, output| {
        let first = serde_json::from_slice(&output.stdout).expect("the results are JSON");
        let second = json(&folder.join("rank-1/memory.json"));
        let peaks = [first, second].map(|of_rank: serde_json::Value| {
            of_rank["peak_bytes"].as_f64().expect("a number") / f64::from(1 << 20)
        });
        peaks.into()
    },
};
