//! The ledger of a few blocks.

use super::*;
use Category::{Activations, Gradients, OptimizerState, Other, Parameters, Temporaries};

fn at(id: usize, bytes: u64) -> Storage {
    Storage { id, bytes }
}

fn kept(block: BlockId) -> Operand {
    let is_consumed = false;
    Operand { block, is_consumed }
}

fn consumed(block: BlockId) -> Operand {
    let is_consumed = true;
    Operand { block, is_consumed }
}

fn closed(ledger: Ledger) -> (Snapshot, Vec<(u64, Category)>) {
    let snapshot = ledger.into_snapshot("a test".into(), "none".into());
    assert_eq!(snapshot.check(), Ok(()));
    let holders = snapshot.holders.iter();
    let categories = holders.map(|held| (held.bytes, held.category)).collect();
    (snapshot, categories)
}

/// A ledger with one parameter.
fn with_parameter() -> (Ledger, BlockId) {
    let mut ledger = Ledger::start();
    let block = ledger.register_existing(at(1, 100));
    let parameter = Parameter {
        path: "weight".into(),
        shape: vec![25],
        bytes: 100,
        is_embedding: false,
    };
    ledger.set_parameter(0, parameter, block);
    (ledger, block)
}

#[test]
fn a_view_is_no_new_memory() {
    let mut ledger = Ledger::start();
    let tensor = ledger.register_output("float_ones", at(1, 10), &[]);
    let view = ledger.register_output("float_transpose", at(1, 10), &[consumed(tensor)]);
    // An operation cannot compute into memory that another tensor still uses.
    let other = ledger.register_output("other", at(1, 10), &[kept(tensor)]);
    assert_eq!([view, other], [tensor; 2]);
    for is_live in [true, true, false] {
        ledger.release(tensor);
        assert_eq!(ledger.blocks[tensor].is_live(), is_live);
    }
}

/// For example a weight's gradient, computed into the memory of the activation it is computed from.
#[test]
fn a_result_in_the_place_of_its_operand_is_something_new() {
    let mut ledger = Ledger::start();
    ledger.begin_pass(PhaseKind::Forward);
    let activation = ledger.register_output("float_exp", at(1, 10), &[]);
    ledger.end_pass();
    ledger.begin_pass(PhaseKind::Backward);
    let gradient = ledger.register_output("backward", at(1, 10), &[consumed(activation)]);
    assert_ne!(activation, gradient);
    ledger.release(activation);
    ledger.end_pass();
    let (snapshot, categories) = closed(ledger);
    assert_eq!(categories, [(10, Activations), (10, Gradients)]);
    let [before, after] = [0, 1].map(|index| snapshot.holders[index]);
    assert_eq!(before.until, after.from);
    assert_eq!(snapshot.operations[after.operation], "backward");
}

#[test]
fn a_place_can_be_taken_by_another() {
    let mut ledger = Ledger::start();
    let first = ledger.register_output("float_ones", at(1, 10), &[]);
    // The operation freed it, and allocated something larger there.
    let larger = ledger.register_output("float_cat", at(1, 20), &[consumed(first)]);
    // Not an operand, so that its memory was freed unseen.
    let other = ledger.register_output("float_zeros", at(1, 20), &[]);
    ledger.release(larger);
    let view = ledger.register_output("float_transpose", at(1, 20), &[consumed(other)]);
    // Freed unseen, and found anew.
    let found = ledger.register_existing(at(1, 30));
    assert_eq!([first, larger, other, view, found], [0, 1, 2, 2, 3]);
}

#[test]
fn what_a_pass_leaves_says_what_it_was_for() {
    let (mut ledger, weight) = with_parameter();
    ledger.begin_pass(PhaseKind::Forward);
    let left = ledger.register_output("linear", at(2, 7), &[kept(weight)]);
    let passing = ledger.register_output("float_exp", at(3, 8), &[kept(left)]);
    ledger.release(passing);
    ledger.end_pass();
    ledger.begin_pass(PhaseKind::Backward);
    ledger.register_output("float_matmul", at(4, 100), &[kept(left)]);
    ledger.release(left);
    ledger.end_pass();
    ledger.register_output("float_sum", at(5, 1), &[]);
    let (snapshot, categories) = closed(ledger);
    let expected = [
        (100, Parameters),
        (7, Activations),
        (8, Temporaries),
        (100, Gradients),
    ];
    assert_eq!(categories, [&expected[..], &[(1, Other)]].concat());
    // Computed from what was computed with the parameter.
    assert_eq!(snapshot.holders[2].parameter, Some(0));
}

#[test]
fn a_step_in_place_moves_memory_from_one_purpose_to_the_next() {
    let (mut ledger, weight) = with_parameter();
    let moment = ledger.register_existing(at(2, 100));
    ledger.begin_pass(PhaseKind::Backward);
    let gradient = ledger.register_output("float_matmul", at(3, 100), &[kept(weight)]);
    ledger.begin_step(weight, gradient);
    // The new moment takes the memory of the old one, the new weight that of the gradient.
    ledger.register_output("float_mul", at(2, 100), &[consumed(moment), kept(gradient)]);
    ledger.release(moment);
    let new = ledger.register_output("float_sub", at(3, 100), &[consumed(gradient), kept(weight)]);
    ledger.release(gradient);
    ledger.release(weight);
    ledger.end_step(new);
    ledger.end_pass();
    let (snapshot, categories) = closed(ledger);
    let expected = [
        Parameters,
        OptimizerState,
        Gradients,
        OptimizerState,
        Parameters,
    ];
    assert_eq!(categories, expected.map(|category| (100, category)));
    let [weight, moment, gradient, new_moment, new_weight] = snapshot.holders[..] else {
        unreachable!("as asserted");
    };
    assert_eq!(
        (moment.until, gradient.until),
        (new_moment.from, new_weight.from)
    );
    assert_eq!(new_weight.until, snapshot.times.len());
    // The old one is released after it.
    assert!(weight.until > new_weight.from);
    assert!(
        snapshot
            .holders
            .iter()
            .all(|held| held.parameter == Some(0))
    );
}

#[test]
fn what_is_no_tensor_is_there_from_the_beginning() {
    let (mut ledger, _) = with_parameter();
    ledger.begin_pass(PhaseKind::Forward);
    ledger.sample(150, 150);
    // First seen here, and in use since before the recording.
    ledger.register_existing(at(2, 20));
    ledger.end_pass();
    // Less is left of what is no tensor: the holders never have more than is in use.
    ledger.sample(145, 145);
    let (snapshot, categories) = closed(ledger);
    assert_eq!((categories[0], snapshot.holders[0].from), ((25, Other), 0));
}
