//! On Flex, which steps in one pass.

pub(crate) use burn::backend::Flex as Backend;

#[path = "../../../../lean-arithmetic/tests/both/accumulation.rs"]
mod accumulation;
#[path = "../../../../lean-arithmetic/tests/both/bf16.rs"]
mod bf16;
#[path = "../../../../lean-arithmetic/tests/both/eight_bit.rs"]
mod eight_bit;
#[path = "../../../../lean-arithmetic/tests/both/eight_bit_everywhere.rs"]
pub(crate) mod eight_bit_everywhere;
#[path = "../../../../lean-arithmetic/tests/both/exact.rs"]
mod exact;
#[path = "../../../../lean-arithmetic/tests/both/in_place.rs"]
mod in_place;
#[path = "../../../../lean-arithmetic/tests/both/noise.rs"]
pub(crate) mod noise;
#[path = "../../../../lean-arithmetic/tests/both/reference.rs"]
pub(crate) mod reference;
#[path = "../../../../lean-arithmetic/tests/both/run.rs"]
pub(crate) mod run;
#[macro_use]
#[path = "../../../../lean-arithmetic/tests/both/settings.rs"]
pub(crate) mod settings;
#[path = "side.rs"]
pub(crate) mod side;
#[path = "../../../../lean-arithmetic/tests/both/types.rs"]
mod types;
