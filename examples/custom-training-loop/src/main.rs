//! A hand-written training loop on Burn, before and after gradient release.
//!
//! `before.rs` and `after.rs` are the same program without and with gradient release:
//! `diff examples/custom-training-loop/src/{before,after}.rs`.

mod after;
mod before;
mod model;

fn main() {
    let before = before::train(200);
    let after = after::train(200);
    println!("plain Burn:       final loss {:.6}", before.loss);
    println!("gradient release: final loss {:.6}", after.loss);
    assert_eq!(before, after, "the two programs reached different weights");
    println!("the weights are the same, bit for bit");
}
