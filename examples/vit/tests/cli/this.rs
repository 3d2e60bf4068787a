//! What `vit` has of its own.

use crate::program::Program;

pub(crate) const PROGRAM: Program = Program {
    path: env!("CARGO_BIN_EXE_vit"),
    saved: "optim-1.bpk",
    stop: "--stop-after 4",
    checkpointing: &[
        ("plain", "balanced", false),
        ("plain", "blocks", true),
        ("plain", "nested", true),
        ("release", "balanced", false),
        ("release", "blocks", true),
        ("release", "nested", true),
    ],
    refused: &[
        ("--checkpointing automatic", "is for Burn 0.21"),
        ("--optimizer adamw-five-bytes", "need --operations lean"),
    ],
};
