//! What `vit-0-21` has of its own.

use crate::program::Program;

pub(crate) const PROGRAM: Program = Program {
    path: env!("CARGO_BIN_EXE_vit-0-21"),
    saved: "scheduler-1.mpk",
    // It has no such option.
    stop: "",
    checkpointing: &[
        ("plain", "balanced", false),
        ("release", "balanced", true),
        ("release", "blocks", true),
        ("release", "automatic", true),
    ],
    refused: &[
        ("--checkpointing nested", "is for Burn 0.22"),
        ("--operations lean", "are for Burn 0.22"),
        (
            "--mode plain --checkpointing blocks",
            "or --checkpointing balanced with",
        ),
        ("--lr 7", "the learning rate cannot be scheduled"),
    ],
};
