//! What `vit` has of its own.

use crate::program::Program;

pub(crate) const PROGRAM: Program = Program {
    name: "vit",
    path: env!("CARGO_BIN_EXE_vit"),
    parts: vit::train::PARTS,
    cuda: "--device cuda",
    diverging: "--optimizer lamb --lr 1 --dropout 0.99",
    checkpointing: &[
        ("plain", "balanced", false),
        ("plain", "blocks", true),
        ("plain", "nested", true),
        ("release", "balanced", false),
        ("release", "blocks", true),
        ("release", "nested", true),
    ],
    refused: &[
        ("--device tpu", "tpu"),
        ("--checkpointing automatic", "is for Burn 0.21"),
        ("--optimizer adamw-five-bytes", "need --operations lean"),
    ],
};
