//! What `vit` has of its own.

use crate::program::Program;

pub(crate) const PROGRAM: Program = Program {
    path: env!("CARGO_BIN_EXE_vit"),
    saved: "optim-1.bpk",
    stop: "--stop-after 4",
    // A fault: from its second step on, this program has as many bytes more as gradients have, when Burn's
    // own operations keep all activations. The engine's tests are at the floor (`memory`).
    is_at_the_floor: false,
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
