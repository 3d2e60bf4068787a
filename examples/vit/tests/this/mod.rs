//! What `vit` has of its own.

use crate::program::Program;

/// As the tests of both programs want it.
pub(crate) const PROGRAM: Program = Program {
    name: "vit",
    path: env!("CARGO_BIN_EXE_vit"),
    checkpoint: |epoch| {
        ["model.bpk", "optim.bpk", "state.json"]
            .map(|file| format!("checkpoint/epoch-{epoch}/{file}"))
    },
    whole: |epoch| vec![format!("checkpoint/epoch-{epoch}/state.json")],
    unfinished: &[
        "checkpoint/unfinished/model.bpk",
        "checkpoint/unfinished/optim.bpk",
    ],
    damaged: &["epoch-2 is damaged", "after epoch 1", "--overwrite"],
    after_an_epoch: "continues from the checkpoint of epoch 1",
    logs: &[],
    cuda: ["--device", "cuda"],
    checkpointing: &[
        ("plain", "balanced", false),
        ("plain", "blocks", true),
        ("plain", "nested", true),
        ("release", "balanced", false),
        ("release", "blocks", true),
        ("release", "nested", true),
    ],
    optimizers: "adam adam-one-pass adam-8bit adamw adamw-one-pass adamw-8bit stable-adamw radam \
                 adafactor adalomo came lion lamb sgd adagrad rmsprop adan",
    diverging: ["--optimizer", "lamb", "--lr", "1"],
    own_setting: ("--operations", "lean", "engine.operations: \"lean\""),
    peaks: |_, output| {
        let stderr = String::from_utf8_lossy(&output.stderr);
        let mut lines = stderr.lines();
        let peaks = lines.find_map(|line| line.strip_prefix("peak of each process "));
        let peaks = peaks.expect("it is printed").trim_end_matches(" MiB");
        peaks
            .split(", ")
            .map(|peak| peak.parse().expect("a number"))
            .collect()
    },
};
