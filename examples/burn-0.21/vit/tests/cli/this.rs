//! What `vit-0-21` has of its own.

use crate::program::Program;

pub(crate) const PROGRAM: Program = Program {
    name: "vit-0-21",
    path: env!("CARGO_BIN_EXE_vit-0-21"),
    parts: ["model.mpk", "optim.mpk", "scheduler.mpk"],
    cuda: "--backend cuda",
    diverging: "--optimizer sgd --lr 1 --dropout 0.99",
    checkpointing: &[
        ("plain", "balanced", false),
        ("release", "balanced", true),
        ("release", "blocks", true),
        ("release", "automatic", true),
    ],
    refused: &[
        ("--activation-budget 1GiB", "not for none"),
        ("--activation-budget much", "--activation-budget"),
        ("--checkpointing nested", "is for Burn 0.22"),
        ("--clip-grad-norm 0", "--clip-grad-norm"),
        ("--grads-accumulation 100000", "no step would ever be taken"),
        (
            "--mode plain --checkpointing blocks",
            "or --checkpointing balanced with",
        ),
        ("--mode plain --clip-grad-norm 1", "use --mode release"),
        ("--no-fusion", "flex never fuses"),
        ("--optimizer lion", "`vit` has it"),
        ("--optimizer sgd --no-decay-on-norms", "not for sgd"),
    ],
};
