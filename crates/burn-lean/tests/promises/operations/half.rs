//! Operations in each type, and of hard inputs: what they compute on the way is in `f32` at least.

use burn_lean::operations::linear_cross_entropy;

use super::attention::{NONE, PACKED, Shape, with_bias};
use super::feed_forward::Sizes;
use super::harness::{Case, Outcome, differences, differences_above, noise, rounded, spread};
use super::{activations, cross_entropy, embedding, linear, norms, rotary};
use crate::harness::prelude::*;

/// A type: its rounding error, and the least number that it rounds so.
const TYPES: [(DType, f64, f64); 4] = [
    (DType::F64, f64::EPSILON, f64::MIN_POSITIVE),
    (DType::F32, f32::EPSILON as f64, f32::MIN_POSITIVE as f64),
    (DType::F16, 1.0 / 1024.0, 1.0 / 16_384.0), // 2^-10, 2^-14
    (DType::BF16, 1.0 / 128.0, f32::MIN_POSITIVE as f64), // 2^-7
];

/// Roundings of the largest number of a tensor that an operation may be off by in 32 and 64 bits, if
/// Burn's own operations are not off by more there, as by an exponential of large scores.
const MOST: f64 = 128.0;

const ROWS: [usize; 3] = [3, 37, 64];

/// The classes of Llama 3.
const LONG: usize = 128_256;

fn rows(seed: usize, factor: f64) -> Vec<f64> {
    spread(0.0, factor, ROWS.iter().product(), seed)
}

/// An operation, and how exact it is.
struct Row {
    case: Case,
    /// The largest first input: beyond it results are too large for `f16`.
    largest: f64,
    /// Roundings that it may be off by in half precision. One of the result alone is half a one.
    most: f64,
}

/// Operations of `[3, 37, 64]` numbers, or as many.
fn operations() -> Vec<Row> {
    let of_norm = || vec![rows(1, 2.0), spread(1.5, 1.0, 64, 2), noise(64, 3)];
    // Both layers have the same numbers, and the second no bias.
    let of_network = vec![
        rows(1, 1.0),
        noise(64 * 64, 2),
        noise(64, 3),
        noise(64 * 64, 2),
    ];
    let network = Sizes(ROWS, 64).case(ActivationConfig::GeluApproximate);
    let of = |case| Row {
        case,
        largest: 6e4,
        most: 1.0,
    };
    let mut operations = vec![
        of(activations::function("gelu", rows(1, 6.0))),
        of(activations::function("gelu_approximate", rows(1, 6.0))),
        of(activations::function("silu", rows(1, 6.0))),
        of(rotary::case([3, 1, 37, 64], false)),
        of(embedding::case()),
        of(norms::layer_norm_case(ROWS, of_norm())),
        of(norms::rms_norm_case(ROWS, of_norm())),
        of(norms::group_norm_case([3, 36, 64], 4, true)),
        Row {
            largest: 300.0,
            ..of(linear::case(ROWS, 48))
        },
        // Two operations, whose hidden layer and its gradient are rounded.
        Row {
            largest: 300.0,
            most: 2.0,
            ..of(network.with_inputs(of_network))
        },
        Row {
            largest: 300.0,
            ..of(NONE.case(Shape::new(2, 3, 40, 16)))
        },
        // Of scores of hundreds, the exponential is off by as many roundings in the reference, too.
        Row {
            largest: 100.0,
            ..of(with_bias(Shape::new(2, 3, 40, 16), [1, 3, 40, 40]))
        },
        Row {
            largest: 100.0,
            ..of(PACKED.case(Shape::new(2, 3, 40, 16)))
        },
        of(cross_entropy::case(90, 32, 50)),
        of(cross_entropy::case_of_tokens(90, 32, 50)),
    ];
    operations.extend(activations::gated_cases(rows(1, 3.0), rows(2, 1.0)).map(of));
    // They keep their rounded output for the backward pass.
    let along = activations::along_axes(rows(1, 5.0), ROWS, 2);
    operations.extend(along.map(|case| Row {
        most: 2.0,
        ..of(case)
    }));
    operations
}

/// What is hard for its own reason, in 32 bits and below: in 64, Burn's own is no reference.
fn hard_cases() -> Vec<Case> {
    let row = |factor| spread(0.0, factor, LONG, 1);
    let affine = |input: Vec<f64>, width| vec![input, spread(1.5, 1.0, width, 2), noise(width, 3)];
    let keys = NONE.case(Shape::new(1, 1, 1, 2).with_keys(LONG));
    let mut cases = vec![
        // So many tokens that they are made in more than a hundred chunks, that the sum of their
        // losses overflows `f16`, and that the gradients of their mean vanish there: the loss is
        // scaled, as it has to be in `f16`.
        cross_entropy::case(12_000, 2, 256)
            .without_last_input()
            .times(1024.0),
        cross_entropy::case(3, 4, LONG),
        // Values that do not cancel.
        keys.with_inputs(vec![
            noise(2, 1),
            noise(2 * LONG, 2),
            spread(1.5, 1.0, 2 * LONG, 3),
        ]),
        norms::layer_norm_case([1, 1, LONG], affine(row(2.0), LONG)),
        norms::rms_norm_case([1, 1, LONG], affine(row(2.0), LONG)),
    ];
    cases.extend(activations::along_axes(row(5.0), [1, 1, LONG], 2));
    // A mean that is large beside the deviation, and rows of one number.
    for (mean, deviation) in [(100.0, 0.5), (1e6, 100.0), (1000.0, 0.0)] {
        let numbers = |count| spread(mean, deviation, count, 1);
        let rows = affine(numbers(3 * 37 * 64), 64);
        cases.push(norms::layer_norm_case(ROWS, rows).named(format!("layer_norm, mean {mean}")));
        let group_norm = norms::group_norm_case([3, 36, 64], 4, true);
        let group_norm = group_norm.with_first(numbers(3 * 36 * 64));
        cases.push(group_norm.named(format!("group_norm, mean {mean}")));
    }
    cases
}

/// Whether the operation is off by at most `most` roundings of a type, or in 32 and 64 bits by no more
/// than Burn's own operations; and by how many. What is beyond the type is infinite in it.
fn is_near(case: &Case, (dtype, epsilon, least): (DType, f64, f64), most: f64) -> (bool, f64) {
    let mut expected = case.expected();
    if dtype == DType::F16 {
        // A loss is in f32.
        let is_loss = case.name().contains("Head {");
        let value = Some(&mut expected.value).filter(|_| !is_loss);
        let tensors = value.into_iter().chain(&mut expected.grads);
        let beyond = tensors.flatten().filter(|x| x.abs() >= 65_520.0);
        beyond.for_each(|x| *x *= f64::INFINITY);
    }
    let error = |found: &Outcome| {
        let differences = differences_above(found, &expected, least);
        differences.into_iter().fold(0.0, f64::max) / epsilon
    };
    let ours = error(&case.found(&flex(), dtype));
    let is_near = match dtype {
        DType::F16 | DType::BF16 => ours <= most,
        _ => ours <= MOST || ours <= error(&case.plain(dtype)),
    };
    (is_near, ours)
}

/// Prints a row of the table, and returns what is off by too much: in half precision by more than
/// `most`.
fn check(case: Case, types: &[(DType, f64, f64)], most: f64) -> Vec<String> {
    let mut line = format!("{:56.56}", case.name());
    let mut wrong = Vec::new();
    let mut case = case;
    for column @ (dtype, ..) in TYPES {
        let inputs = case.inputs().cloned().collect();
        case = case.rounded(dtype);
        // An input that the type does not hold is left out.
        let holds = case.inputs().flatten().all(|x| x.is_finite());
        if holds && types.contains(&column) {
            let (is_near, ours) = is_near(&case, column, most);
            line += &format!(" {ours:>9.2}");
            if !is_near {
                wrong.push(format!("{} in {dtype:?}: {ours}", case.name()));
            }
        } else {
            line += &format!(" {:>9}", "-");
        }
        case = case.with_inputs(inputs);
    }
    println!("{line}");
    wrong
}

/// Prints a table of the errors of each operation, with `--nocapture`.
#[test]
fn operations_of_each_type_are_near_those_in_f64() {
    let mut wrong = Vec::new();
    println!(
        "{:56} {:>9} {:>9} {:>9} {:>9}",
        "roundings", "f64", "f32", "f16", "bf16"
    );
    for size in [None, Some(0.0), Some(1e-7), Some(300.0), Some(6e4)] {
        for row in operations() {
            let mut case = row.case;
            let largest = size.unwrap_or_default();
            if let Some(size) = size {
                let count = case.inputs().next().map_or(0, Vec::len);
                let name = format!("{size} x {}", case.name());
                case = case.with_first(spread(0.0, size, count, 1)).named(name);
            }
            if largest > row.largest {
                continue;
            }
            wrong.extend(check(case, &TYPES, row.most));
        }
    }
    for case in hard_cases() {
        wrong.extend(check(case, &TYPES[1..], 1.0));
    }
    assert!(wrong.is_empty(), "off by too many roundings: {wrong:#?}");
}

/// The first operand, or the last, in 32 bits and the others in half precision, and the other way
/// round: right, with gradients of their own types, or refused at the call.
#[test]
fn operands_of_two_types_are_right_or_refused() {
    for (halves, epsilon) in [(DType::F16, 1.0 / 1024.0), (DType::BF16, 1.0 / 128.0)] {
        for (odd, others) in [(DType::F32, halves), (halves, DType::F32)] {
            let all = |is_last| operations().into_iter().map(move |row| (row.case, is_last));
            for (case, is_last) in [false, true].into_iter().flat_map(all) {
                let count = case.inputs().count();
                if count < 2 {
                    continue;
                }
                let odd_at = if is_last { count - 1 } else { 0 };
                let dtype = |at| if at == odd_at { odd } else { others };
                let what = format!("{}, {odd:?} at {odd_at}, else {others:?}", case.name());
                let inputs = case.inputs().enumerate();
                let inputs = inputs.map(|(at, x)| rounded(x, dtype(at))).collect();
                let case = case.with_inputs(inputs);
                let run = std::panic::AssertUnwindSafe(|| case.found_in(dtype));
                let is_linear =
                    case.name().starts_with("linear of") || case.name().starts_with("feed-forward");
                match std::panic::catch_unwind(run) {
                    Ok(found) => {
                        let errors = differences(&found, &case.expected()).into_iter();
                        let most = errors.fold(0.0, f64::max) / epsilon;
                        assert!(!is_linear && most <= 1.0, "{what}: off by {most} roundings");
                    }
                    Err(said) => {
                        let said = said.downcast::<String>().expect("it says why");
                        assert!(
                            is_linear && said.contains("cast them to one"),
                            "{what}: {said}"
                        );
                    }
                }
            }
        }
    }
}

/// The gradients of a head of four classes whose weight is zero: all logits are 0, so of the mean
/// they are `(1/4 - 1) * hidden` for the class of the targets and `1/4 * hidden` for the others.
#[test]
fn sums_over_tokens_that_half_precision_cannot_hold_are_right() {
    const TOKENS: usize = 1024;
    for (dtype, hidden, class_weight) in [
        (DType::F16, 100.0, 1.0_f32),
        (DType::F16, 1.0, 1e-8),
        (DType::F16, 1.0, 1e5),
        (DType::BF16, 100.0, 1e-8),
    ] {
        let device = flex();
        let weight = Tensor::<2>::zeros([8, 4], (&device, dtype)).require_grad();
        let tokens = Tensor::<2>::full([TOKENS, 8], hidden, (&device, dtype));
        let targets = Tensor::<1, Int>::zeros([TOKENS], &device);
        let config = CrossEntropyLossConfig::new().with_weights(Some(vec![class_weight; 4]));
        let loss =
            linear_cross_entropy(&config.init(&device), tokens, weight.clone(), None, targets);
        let grad = weight.grad(&loss.backward()).unwrap().into_data();
        let expected = [-0.75, 0.25, 0.25, 0.25]
            .map(|share| share * hidden)
            .repeat(8);
        let found: Vec<f64> = grad.iter::<f64>().collect();
        assert_eq!(
            found, expected,
            "{dtype:?}, {hidden}, class weight {class_weight}"
        );
    }
}
