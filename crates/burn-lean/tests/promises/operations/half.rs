//! Operations in `f16` and `bf16`: what they compute on the way is in `f32`.

use burn::module::{Param, ParamId};
use burn::nn::activation::ActivationConfig;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::transformer::PositionWiseFeedForwardConfig;
use burn::nn::{GroupNormConfig, LayerNormConfig, RmsNormConfig};
use burn::tensor::ops::AttentionModuleOptions;
use burn::tensor::{DType, Tensor, activation, module};
use burn_lean::operations::nn::LeanModule;
use burn_lean::operations::{
    attention, gelu_approximate, group_norm, layer_norm, linear, linear_cross_entropy, log_softmax,
    quiet_softmax, rms_norm, silu, softmax, swiglu,
};

use super::harness::{Outcome, differences, noise, reference_device, run, shaped, tensor};
use crate::harness::{flex, ids};

const HALVES: [(DType, f64); 2] = [
    (DType::F16, 1.0 / 1024.0), // 2^-10
    (DType::BF16, 1.0 / 128.0), // 2^-7
];

/// Rounding errors of the largest number of a tensor. Half of one is what rounding the result
/// costs.
const MOST: f64 = 1.5;

type Op = Box<dyn Fn(&[Tensor<1>]) -> Tensor<1>>;

struct Case {
    name: &'static str,
    inputs: Vec<Vec<f64>>,
    /// In Burn's operations.
    plain: Op,
    ours: Op,
}

impl Case {
    fn new(
        name: &'static str,
        inputs: Vec<Vec<f64>>,
        plain: impl Fn(&[Tensor<1>]) -> Tensor<1> + 'static,
        ours: impl Fn(&[Tensor<1>]) -> Tensor<1> + 'static,
    ) -> Self {
        Self {
            name,
            inputs,
            plain: Box::new(plain),
            ours: Box::new(ours),
        }
    }
}

/// The loss of so many tokens that it is made in more than a hundred chunks, that the sum of their
/// losses overflows `f16`, and that the gradients of their mean vanish there.
fn loss_of_many_tokens() -> Case {
    const TOKENS: usize = 12_000;
    const WIDTH: usize = 4;
    const CLASSES: usize = 700;
    let parts = |leaves: &[Tensor<1>]| {
        let hidden = shaped::<2>(&leaves[0], [TOKENS, WIDTH]);
        let weight = shaped::<2>(&leaves[1], [WIDTH, CLASSES]);
        let targets = ids([TOKENS], 1, CLASSES, &hidden.device());
        let loss = CrossEntropyLossConfig::new().init(&hidden.device());
        (hidden, weight, targets, loss)
    };
    Case::new(
        "linear_cross_entropy of many tokens",
        vec![noise(TOKENS * WIDTH, 1), noise(WIDTH * CLASSES, 2)],
        // The gradient of a loss that is scaled, as it has to be in `f16`.
        move |leaves| {
            let (hidden, weight, targets, loss) = parts(leaves);
            loss.forward(hidden.matmul(weight), targets) * 1024.0
        },
        move |leaves| {
            let (hidden, weight, targets, loss) = parts(leaves);
            linear_cross_entropy(&loss, hidden, weight, None, targets) * 1024.0
        },
    )
}

/// Errors of an outcome, in roundings of a type: of the output, and of each gradient.
fn errors(found: &Outcome, expected: &Outcome, epsilon: f64) -> Vec<f64> {
    let errors = differences(found, expected).into_iter();
    errors.map(|error| error / epsilon).collect()
}

const ROWS: [usize; 3] = [3, 37, 64];

fn rows(seed: usize, factor: f64) -> Vec<f64> {
    let numbers = noise(ROWS.iter().product(), seed);
    numbers.iter().map(|x| factor * x).collect()
}

fn cases() -> Vec<Case> {
    let width = ROWS[2];
    let x = |leaves: &[Tensor<1>]| shaped::<3>(&leaves[0], ROWS);
    let around = |mean: f64, seed| noise(width, seed).iter().map(|x| mean + x).collect();
    let of_norm = || vec![rows(1, 2.0), around(1.5, 2), around(0.0, 3)];
    vec![
        Case::new(
            "gelu_approximate",
            vec![rows(1, 6.0)],
            |leaves| activation::gelu_approximate(leaves[0].clone()),
            |leaves| gelu_approximate(leaves[0].clone()),
        ),
        Case::new(
            "silu",
            vec![rows(1, 6.0)],
            |leaves| activation::silu(leaves[0].clone()),
            |leaves| silu(leaves[0].clone()),
        ),
        Case::new(
            "feed-forward network",
            vec![rows(1, 1.0), noise(64 * 64, 2), noise(64, 3)],
            move |leaves| {
                let weight = || shaped::<2>(&leaves[1], [64, 64]);
                let hidden = module::linear(x(leaves), weight(), Some(leaves[2].clone()));
                let hidden = activation::gelu_approximate(hidden);
                module::linear(hidden, weight(), None).flatten(0, 2)
            },
            move |leaves| {
                let weight = || Param::initialized(ParamId::new(), shaped(&leaves[1], [64, 64]));
                let config = PositionWiseFeedForwardConfig::new(64, 64).with_dropout(0.0);
                let config = config.with_activation(ActivationConfig::GeluApproximate);
                let mut network = config.init(&leaves[0].device()).lean();
                network.linear_inner.weight = weight();
                network.linear_inner.bias =
                    Some(Param::initialized(ParamId::new(), leaves[2].clone()));
                network.linear_outer.weight = weight();
                network.linear_outer.bias = None;
                network.forward(x(leaves)).flatten(0, 2)
            },
        ),
        Case::new(
            "swiglu",
            vec![rows(1, 3.0), rows(2, 2.0)],
            |leaves| activation::silu(leaves[0].clone()) * leaves[1].clone(),
            |leaves| swiglu(leaves[0].clone(), leaves[1].clone()),
        ),
        Case::new(
            "softmax",
            vec![rows(1, 5.0)],
            move |leaves| activation::softmax(x(leaves), 2).flatten(0, 2),
            move |leaves| softmax(x(leaves), 2).flatten(0, 2),
        ),
        Case::new(
            "quiet_softmax",
            vec![rows(1, 5.0)],
            move |leaves| activation::quiet_softmax(x(leaves), 2).flatten(0, 2),
            move |leaves| quiet_softmax(x(leaves), 2).flatten(0, 2),
        ),
        Case::new(
            "log_softmax",
            vec![rows(1, 5.0)],
            move |leaves| activation::log_softmax(x(leaves), 2).flatten(0, 2),
            move |leaves| log_softmax(x(leaves), 2).flatten(0, 2),
        ),
        Case::new(
            "layer_norm",
            of_norm(),
            move |leaves| {
                let mut norm = LayerNormConfig::new(width).init(&leaves[0].device());
                norm.gamma = Param::from_tensor(leaves[1].clone());
                norm.beta = Some(Param::from_tensor(leaves[2].clone()));
                norm.forward(x(leaves)).flatten(0, 2)
            },
            move |leaves| {
                let (gamma, beta) = (leaves[1].clone(), Some(leaves[2].clone()));
                layer_norm(x(leaves), gamma, beta, 1e-5).flatten(0, 2)
            },
        ),
        Case::new(
            "rms_norm",
            of_norm()[..2].to_vec(),
            move |leaves| {
                let config = RmsNormConfig::new(width).with_epsilon(1e-5);
                let mut norm = config.init(&leaves[0].device());
                norm.gamma = Param::from_tensor(leaves[1].clone());
                norm.forward(x(leaves)).flatten(0, 2)
            },
            move |leaves| rms_norm(x(leaves), leaves[1].clone(), 1e-5).flatten(0, 2),
        ),
        Case::new(
            "group_norm",
            vec![noise(3 * 36 * 64, 1), noise(36, 2), noise(36, 3)],
            |leaves| {
                let x: Tensor<3> = shaped(&leaves[0], [3, 36, 64]);
                let mut norm = GroupNormConfig::new(4, 36).init(&x.device());
                norm.gamma = Some(Param::from_tensor(leaves[1].clone()));
                norm.beta = Some(Param::from_tensor(leaves[2].clone()));
                norm.forward(x).flatten(0, 2)
            },
            |leaves| {
                let x: Tensor<3> = shaped(&leaves[0], [3, 36, 64]);
                let (gamma, beta) = (Some(leaves[1].clone()), Some(leaves[2].clone()));
                group_norm(x, gamma, beta, 4, 1e-5).flatten(0, 2)
            },
        ),
        Case::new(
            "linear",
            vec![rows(1, 1.0), noise(64 * 48, 2), noise(48, 3)],
            move |leaves| {
                let weight: Tensor<2> = shaped(&leaves[1], [64, 48]);
                module::linear(x(leaves), weight, Some(leaves[2].clone())).flatten(0, 2)
            },
            move |leaves| {
                let weight: Tensor<2> = shaped(&leaves[1], [64, 48]);
                linear(x(leaves), weight, Some(leaves[2].clone())).flatten(0, 2)
            },
        ),
        Case::new(
            "attention",
            (1..=3).map(|seed| noise(2 * 3 * 40 * 16, seed)).collect(),
            |leaves| {
                let [query, key, value] =
                    [0, 1, 2].map(|at| shaped::<4>(&leaves[at], [2, 3, 40, 16]));
                let options = AttentionModuleOptions::default();
                module::attention(query, key, value, None, None, options).flatten(0, 3)
            },
            |leaves| {
                let [query, key, value] =
                    [0, 1, 2].map(|at| shaped::<4>(&leaves[at], [2, 3, 40, 16]));
                let options = AttentionModuleOptions::default();
                attention(query, key, value, None, None, options).flatten(0, 3)
            },
        ),
        Case::new(
            "linear_cross_entropy",
            vec![noise(90 * 32, 1), noise(32 * 50, 2), noise(50, 3)],
            |leaves| {
                let [hidden, weight] = [
                    shaped::<2>(&leaves[0], [90, 32]),
                    shaped::<2>(&leaves[1], [32, 50]),
                ];
                let loss = CrossEntropyLossConfig::new().init(&hidden.device());
                let targets = ids([90], 1, 50, &hidden.device());
                let logits = hidden.matmul(weight) + leaves[2].clone().unsqueeze();
                loss.forward(logits, targets)
            },
            |leaves| {
                let [hidden, weight] = [
                    shaped::<2>(&leaves[0], [90, 32]),
                    shaped::<2>(&leaves[1], [32, 50]),
                ];
                let loss = CrossEntropyLossConfig::new().init(&hidden.device());
                let targets = ids([90], 1, 50, &hidden.device());
                linear_cross_entropy(&loss, hidden, weight, Some(leaves[2].clone()), targets)
            },
        ),
    ]
}

#[test]
fn operations_in_half_precision_are_near_those_in_f64() {
    for case in cases().into_iter().chain([loss_of_many_tokens()]) {
        for (dtype, epsilon) in HALVES {
            let device = flex();
            // Numbers that the type holds.
            let inputs: Vec<Vec<f64>> = case
                .inputs
                .iter()
                .map(|input| {
                    let rounded = tensor(input, &device, dtype).into_data();
                    rounded.iter::<f64>().collect()
                })
                .collect();
            let expected = run(&reference_device(), DType::F64, &inputs, &case.plain);
            let ours = run(&device, dtype, &inputs, &case.ours);
            let plain = run(&device, dtype, &inputs, &case.plain);
            let ours = errors(&ours, &expected, epsilon);
            let plain = errors(&plain, &expected, epsilon);
            println!("{} in {dtype:?}: {ours:.2?}, Burn's {plain:.2?}", case.name);
            assert!(
                ours.iter().all(|error| *error <= MOST),
                "{} in {dtype:?}: off by {ours:.2?} roundings, Burn's by {plain:.2?}",
                case.name
            );
        }
    }
}
