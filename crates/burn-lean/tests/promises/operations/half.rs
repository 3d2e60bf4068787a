//! Operations in `f16` and `bf16`: what they compute on the way is in `f32`.

use burn::nn::activation::ActivationConfig;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::tensor::{DType, Int, Tensor};
use burn_lean::operations::linear_cross_entropy;

use super::attention::{NONE, Shape};
use super::feed_forward::Sizes;
use super::harness::{Case, differences, noise, spread};
use super::{activations, cross_entropy, linear, norms};
use crate::harness::flex;

const HALVES: [(DType, f64); 2] = [
    (DType::F16, 1.0 / 1024.0), // 2^-10
    (DType::BF16, 1.0 / 128.0), // 2^-7
];

/// Rounding errors of the largest number of a tensor. Half of one is what rounding the result
/// costs.
const MOST: f64 = 1.5;

const ROWS: [usize; 3] = [3, 37, 64];

fn rows(seed: usize, factor: f64) -> Vec<f64> {
    spread(0.0, factor, ROWS.iter().product(), seed)
}

fn cases() -> Vec<Case> {
    let of_norm = || vec![rows(1, 2.0), spread(1.5, 1.0, 64, 2), noise(64, 3)];
    // Both layers have the same numbers, and the second no bias.
    let of_network = vec![
        rows(1, 1.0),
        noise(64 * 64, 2),
        noise(64, 3),
        noise(64 * 64, 2),
    ];
    let network = Sizes(ROWS, 64).case(ActivationConfig::GeluApproximate);
    // So many tokens that they are made in more than a hundred chunks, that the sum of their losses
    // overflows `f16`, and that the gradients of their mean vanish there: the loss is scaled, as it
    // has to be in `f16`.
    let many_tokens = cross_entropy::case(12_000, 4, 700).without_last_input();
    let mut cases = vec![
        activations::function("gelu_approximate", rows(1, 6.0)),
        activations::function("silu", rows(1, 6.0)),
        activations::swiglu_case(rows(1, 3.0), rows(2, 2.0)),
        norms::layer_norm_case(ROWS, of_norm()),
        norms::rms_norm_case(ROWS, of_norm()),
        norms::group_norm_case([3, 36, 64], 4, true),
        linear::case(ROWS, 48),
        network.with_inputs(of_network),
        NONE.case(Shape::new(2, 3, 40, 16)),
        cross_entropy::case(90, 32, 50),
        many_tokens.times(1024.0),
    ];
    cases.extend(activations::along_axes(rows(1, 5.0), ROWS, 2));
    cases
}

#[test]
fn operations_in_half_precision_are_near_those_in_f64() {
    for (dtype, epsilon) in HALVES {
        for case in cases() {
            let case = case.rounded(dtype);
            let errors = differences(&case.found(&flex(), dtype), &case.expected());
            let errors: Vec<f64> = errors.into_iter().map(|error| error / epsilon).collect();
            assert!(
                errors.iter().all(|error| *error <= MOST),
                "{} in {dtype:?}: off by {errors:.2?} roundings",
                case.name()
            );
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
