//! Optimizers in one pass, and those with small states.

mod accumulation;
mod bf16;
mod eight_bit;
mod exact;
#[cfg(feature = "wgpu")]
mod gpu;
mod harness;
mod in_place;
#[path = "../../../../burn-lean-optim/tests/lean/noise.rs"]
mod noise;
mod records;
mod reference;
mod settings;
