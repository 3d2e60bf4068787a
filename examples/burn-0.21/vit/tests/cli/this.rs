//! What `vit-0-21` has of its own.

use crate::program::Program;

pub(crate) const PROGRAM: Program = Program {
    name: "vit-0-21",
    path: env!("CARGO_BIN_EXE_vit-0-21"),
    parts: vit_0_21::train::PARTS,
    cuda: ["--backend", "cuda"],
    diverging: ["--optimizer", "sgd", "--lr", "1"],
    checkpointing: &[
        ("plain", "balanced", false),
        ("release", "balanced", true),
        ("release", "blocks", true),
        ("release", "automatic", true),
    ],
    refused: &[
        (
            "--checkpointing blocks --activation-budget 1GiB",
            "not for blocks",
        ),
        (
            "--checkpointing automatic --activation-budget much",
            "--activation-budget",
        ),
        ("--clip-grad-norm 0", "--clip-grad-norm"),
        ("--grads-accumulation 100000", "no step would ever be taken"),
        (
            "--memory-timeline /",
            "--memory-timeline takes a file, and / is none",
        ),
        (
            "--memory-timeline /nowhere/at/all.gz",
            "cannot write to /nowhere/at/all.gz",
        ),
        (
            "--mode plain --checkpointing blocks",
            "or --checkpointing balanced with",
        ),
        ("--mode plain --clip-grad-norm 1", "use --mode release"),
        ("--no-fusion", "flex never fuses"),
        ("--optimizer sgd --no-decay-on-norms", "not for sgd"),
    ],
};
