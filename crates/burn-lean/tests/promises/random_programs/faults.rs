//! Faults of plain Burn that random programs have found. Where a test fails, Burn has mended one: see "Requests to Burn"
//! in CONTRIBUTING.md.

use burn_lean::MixedPrecision;

use crate::harness::prelude::*;
use crate::small::panic_of;

/// Of the message for a node whose step is not found.
pub(super) const CONSUMED: &str = "graph tape has already been consumed";

/// A node whose parents have no graph begins one, and names it. Merged into a second graph, which is merged into a
/// third, the node still leads to the second, and its step is in the third. A loss that leads to the third finds it
/// all the same.
#[test]
fn burn_loses_a_step_of_a_graph_merged_twice() {
    let leaf = || Tensor::<1>::ones([2], &flex()).require_grad();
    let (a, b, c) = (leaf(), leaf(), leaf());
    let pass = |leads_to_loss: bool| {
        let [third, second, first] = [&a, &b, &c].map(|leaf| leaf.clone().exp());
        let branch = (third + (second + first.clone())).sum();
        let loss = first.exp().sum();
        panic_of(|| match leads_to_loss {
            true => (loss + branch).backward(),
            false => loss.backward(),
        })
    };
    assert!(pass(false).is_ok(), "parameters begin the graphs");
    assert!(pass(true).is_ok());
    assert!(pass(false).is_err_and(|text| text.contains(CONSUMED)));
}

#[test]
fn burn_loads_states_of_half_precision_in_f32() {
    let linear = LinearConfig::new(2, 2).init(&flex());
    let model = MixedPrecision::bf16().cast(linear).unwrap();
    let loss = |model: &Linear| model.weight.val().square().sum();
    let mut optim = momentum();
    let model = plain_step(model, &mut optim, loss);
    let mut resumed = momentum().load_record(optim.to_record());
    let stepped = panic_of(|| plain_step(model, &mut resumed, loss));
    assert!(stepped.is_err_and(|text| text.contains("dtype mismatch")));
}
