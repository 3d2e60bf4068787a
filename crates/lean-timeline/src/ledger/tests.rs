//! The ledger of a few blocks.

use super::*;

fn at(id: usize, bytes: u64) -> Storage {
    Storage { id, bytes }
}

fn closed(ledger: Ledger) -> Snapshot {
    let snapshot = ledger.into_snapshot("a test".into(), "none".into());
    let mut file = Vec::new();
    snapshot.write(&mut file).expect("a sound snapshot");
    snapshot
}

fn categories(snapshot: &Snapshot) -> Vec<(u64, Category)> {
    let holders = snapshot.holders.iter();
    holders.map(|it| (it.bytes, it.category)).collect()
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
    ledger.register_parameter(parameter, block);
    (ledger, block)
}

fn kept(block: BlockId) -> Operand {
    Operand {
        block,
        is_consumed: false,
    }
}

fn consumed(block: BlockId) -> Operand {
    Operand {
        block,
        is_consumed: true,
    }
}

#[test]
fn a_view_is_no_new_memory() {
    let mut ledger = Ledger::start();
    let tensor = ledger.register_output("float_ones", at(1, 10), &[]);
    let view = ledger.register_output("float_transpose", at(1, 10), &[consumed(tensor)]);
    assert_eq!(view, tensor);
    // An operation cannot compute into memory that another tensor still uses.
    assert_eq!(
        ledger.register_output("other", at(1, 10), &[kept(tensor)]),
        tensor
    );
    ledger.release(tensor);
    ledger.release(tensor);
    assert!(
        ledger.blocks[tensor].is_live(),
        "one of three tensors is left"
    );
    ledger.release(tensor);
    assert!(!ledger.blocks[tensor].is_live());
}

/// For example a weight's gradient, computed into the memory of the activation it is computed from.
#[test]
fn a_result_in_the_place_of_its_operand_is_something_new() {
    let mut ledger = Ledger::start();
    ledger.begin_pass(PhaseKind::Forward);
    let activation = ledger.register_output("float_exp", at(1, 10), &[]);
    ledger.end_pass();
    ledger.begin_pass(PhaseKind::Backward);
    let gradient =
        ledger.register_output("linear_weight_backward", at(1, 10), &[consumed(activation)]);
    ledger.release(activation);
    ledger.end_pass();
    let snapshot = closed(ledger);
    assert_eq!(
        categories(&snapshot),
        [(10, Category::Activations), (10, Category::Gradients)]
    );
    let [before, after] = snapshot.holders.as_slice() else {
        unreachable!("as asserted");
    };
    assert_eq!(before.until, after.from);
    assert_eq!(
        snapshot.operations[after.operation],
        "linear_weight_backward"
    );
    assert_ne!(activation, gradient);
}

#[test]
fn a_place_can_be_taken_by_another() {
    let mut ledger = Ledger::start();
    let first = ledger.register_output("float_ones", at(1, 10), &[]);
    // The operation freed it, and allocated something larger there.
    let larger = ledger.register_output("float_cat", at(1, 20), &[consumed(first)]);
    assert_ne!(first, larger);
    // Not an operand, so that its memory was freed unseen.
    let other = ledger.register_output("float_zeros", at(1, 20), &[]);
    assert_ne!(larger, other);
    ledger.release(larger);
    let view = ledger.register_output("float_transpose", at(1, 20), &[consumed(other)]);
    assert_eq!(view, other);
    assert_ne!(
        ledger.register_existing(at(1, 30)),
        other,
        "freed unseen, and found anew"
    );
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
    let snapshot = closed(ledger);
    let expected = [
        (100, Category::Parameters),
        (7, Category::Activations),
        (8, Category::Temporaries),
        (100, Category::Gradients),
        (1, Category::Other),
    ];
    assert_eq!(categories(&snapshot), expected);
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
    let snapshot = closed(ledger);
    let expected = [
        (100, Category::Parameters),
        (100, Category::OptimizerState),
        (100, Category::Gradients),
        (100, Category::OptimizerState),
        (100, Category::Parameters),
    ];
    assert_eq!(categories(&snapshot), expected);
    let [weight, moment, gradient, new_moment, new_weight] = snapshot.holders[..] else {
        unreachable!("as asserted");
    };
    assert_eq!(moment.until, new_moment.from);
    assert_eq!(gradient.until, new_weight.from);
    assert_eq!(new_weight.until, snapshot.times.len());
    assert!(
        weight.until > new_weight.from,
        "the old one is released after it"
    );
    assert!(snapshot.holders.iter().all(|it| it.parameter == Some(0)));
}

#[test]
fn what_is_no_tensor_is_there_from_the_beginning() {
    let (mut ledger, _) = with_parameter();
    ledger.begin_pass(PhaseKind::Forward);
    ledger.sample(150, 150);
    // First seen here, and in use since before the recording.
    ledger.register_existing(at(2, 20));
    let snapshot = closed(ledger);
    let beside = snapshot.holders.iter().find(|it| it.bytes == 30).unwrap();
    assert_eq!((beside.category, beside.from), (Category::Other, 0));
}
