//! Optimizers in one pass, and those with small states.
//!
//! What both Burns promise is in `burn-lean-arithmetic/tests/both`, which is compiled here and, for
//! Burn 0.21, with `burn-lean-optim`. `side` has this Burn's names for it.

#[path = "../../../../burn-lean-arithmetic/tests/both/accumulation.rs"]
mod accumulation;
#[path = "../../../../burn-lean-arithmetic/tests/both/bf16.rs"]
mod bf16;
#[path = "../../../../burn-lean-arithmetic/tests/both/eight_bit.rs"]
mod eight_bit;
#[path = "../../../../burn-lean-arithmetic/tests/both/eight_bit_everywhere.rs"]
mod eight_bit_everywhere;
#[path = "../../../../burn-lean-arithmetic/tests/both/exact.rs"]
mod exact;
#[cfg(feature = "wgpu")]
mod gpu;
#[path = "../../../../burn-lean-arithmetic/tests/both/in_place.rs"]
mod in_place;
mod memory;
#[path = "../../../../burn-lean-arithmetic/tests/both/noise.rs"]
mod noise;
mod records;
#[path = "../../../../burn-lean-arithmetic/tests/both/reference.rs"]
mod reference;
#[path = "../../../../burn-lean-arithmetic/tests/both/run.rs"]
mod run;
#[path = "../../../../burn-lean-arithmetic/tests/both/settings.rs"]
mod settings;
mod side;
#[path = "../../../../burn-lean-arithmetic/tests/both/types.rs"]
mod types;
