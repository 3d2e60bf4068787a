//! Optimizers in one pass, and those with small states.
//!
//! What both Burns promise is in `lean-arithmetic/tests/both`, which is compiled here and, for
//! Burn 0.21, with `burn-gradient-release-optim`. `side` has this Burn's names for it.

#[path = "../../../../lean-arithmetic/tests/both/accumulation.rs"]
mod accumulation;
#[path = "../../../../lean-arithmetic/tests/both/bf16.rs"]
mod bf16;
#[path = "../../../../lean-arithmetic/tests/both/eight_bit.rs"]
mod eight_bit;
#[path = "../../../../lean-arithmetic/tests/both/eight_bit_everywhere.rs"]
mod eight_bit_everywhere;
#[path = "../../../../lean-arithmetic/tests/both/exact.rs"]
mod exact;
#[cfg(feature = "safetensors")]
mod files;
#[cfg(feature = "wgpu")]
mod gpu;
#[path = "../../../../lean-arithmetic/tests/both/in_place.rs"]
mod in_place;
mod master_weights;
mod memory;
#[path = "../../../../lean-arithmetic/tests/both/noise.rs"]
mod noise;
#[cfg(feature = "flex")]
mod offloaded;
mod records;
#[path = "../../../../lean-arithmetic/tests/both/reference.rs"]
mod reference;
#[path = "../../../../lean-arithmetic/tests/both/run.rs"]
mod run;
#[path = "../../../../lean-arithmetic/tests/both/settings.rs"]
mod settings;
mod side;
#[path = "../../../../lean-arithmetic/tests/both/types.rs"]
mod types;

#[cfg(feature = "safetensors")]
pub(crate) use files::states_of_file;
