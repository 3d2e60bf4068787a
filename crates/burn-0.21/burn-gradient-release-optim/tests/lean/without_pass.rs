//! On a backend without a pass, where the optimizers run on Burn's operations.

use burn::backend::Flex;

pub(crate) type Backend = crate::decorator::WithoutPass<Flex>;

#[path = "../../../../lean-arithmetic/tests/both/eight_bit_everywhere.rs"]
mod eight_bit_everywhere;
#[path = "../../../../lean-arithmetic/tests/both/exact.rs"]
mod exact;
#[path = "../../../../lean-arithmetic/tests/both/noise.rs"]
mod noise;
#[path = "../../../../lean-arithmetic/tests/both/reference.rs"]
mod reference;
#[allow(dead_code, reason = "not all that is tested on Flex is tested here")]
#[path = "../../../../lean-arithmetic/tests/both/run.rs"]
mod run;
#[allow(dead_code, unused_imports, reason = "as above")]
#[path = "side.rs"]
mod side;

#[test]
fn moments_in_8_bits_are_those_of_the_pass() {
    let in_one_pass = crate::flex::eight_bit_everywhere::run_on(&side::device());
    let (weights, saved) = eight_bit_everywhere::run_on(&side::device());
    assert_eq!(weights, in_one_pass.0);
    assert!(saved.0 == in_one_pass.1.0);
}
