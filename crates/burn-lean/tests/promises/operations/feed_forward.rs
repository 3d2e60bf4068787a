//! The feed-forward network, whose second half is one operation.

use burn::module::{Lora, ParamId};
use burn::nn::transformer::PositionWiseFeedForwardConfig;
use burn::tensor::activation;
use burn_lean::operations::nn::LeanModule;
use burn_lean::operations::nn::transformer::PositionWiseFeedForward;
use burn_lean::operations::{adapted_linear, nn, swiglu, swiglu_linear};

use super::activations::{gelu_of_definition, silu_of_definition};
use super::harness::{Case, differences, noise, shaped, spread};
use super::lora::{SCALE, adapted, frozen};
use crate::harness::prelude::*;
use crate::heap::{HEAP, warm_threads};

/// Two linear layers: the lengths of the input, and of the hidden layer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes(pub(crate) [usize; 3], pub(crate) usize);

/// One row, several, and more than one part.
const SIZES: [Sizes; 4] = [
    Sizes([1, 1, 1], 1),
    Sizes([2, 3, 5], 7),
    Sizes([5, 1, 3], 2),
    Sizes([2, 521, 6], 1031),
];

impl Sizes {
    /// The input, and weight and bias of each layer.
    fn inputs(self) -> Vec<Vec<f64>> {
        let Self(dims, hidden) = self;
        let width = dims[2];
        vec![
            noise(dims.iter().product(), 1),
            noise(width * hidden, 2),
            spread(0.0, 2.0, hidden, 3),
            noise(hidden * width, 4),
            noise(width, 5),
        ]
    }

    fn network(
        self,
        leaves: &[Tensor<1>],
        activation: ActivationConfig,
    ) -> PositionWiseFeedForward {
        let Self([_, _, width], hidden) = self;
        let config = PositionWiseFeedForwardConfig::new(width, hidden).with_activation(activation);
        let mut network = config.with_dropout(0.0).init(&leaves[0].device()).lean();
        let weight = |leaf: &Tensor<1>, dims: [usize; 2]| {
            Param::initialized(ParamId::new(), shaped::<2>(leaf, dims))
        };
        let bias = |leaf: &Tensor<1>| Param::initialized(ParamId::new(), leaf.clone());
        network.linear_inner = nn::Linear {
            weight: weight(&leaves[1], [width, hidden]),
            bias: Some(bias(&leaves[2])),
        };
        network.linear_outer = nn::Linear {
            weight: weight(&leaves[3], [hidden, width]),
            bias: leaves.get(4).map(bias),
        };
        network
    }

    fn run(self, leaves: &[Tensor<1>], activation: ActivationConfig) -> Tensor<1> {
        let x = shaped::<3>(&leaves[0], self.0);
        self.network(leaves, activation).forward(x).flatten(0, 2)
    }

    /// The network beside the sum of its parts.
    pub(crate) fn case(self, activation: ActivationConfig) -> Case {
        // Not Burn's GELU, whose gradient is an approximation.
        let function: fn(Tensor<3>) -> Tensor<3> = match activation {
            ActivationConfig::Gelu => gelu_of_definition,
            _ => activation::gelu_approximate,
        };
        Case::new(
            format!("feed-forward network of {self:?}, {activation:?}"),
            self.inputs(),
            move |leaves| self.definition(leaves, function),
            move |leaves| self.run(leaves, activation.clone()),
        )
    }

    fn definition(self, leaves: &[Tensor<1>], function: fn(Tensor<3>) -> Tensor<3>) -> Tensor<1> {
        let Self(dims, hidden) = self;
        let weight = |leaf: &Tensor<1>, dims: [usize; 2]| shaped::<2>(leaf, dims).unsqueeze();
        let x = shaped::<3>(&leaves[0], dims).matmul(weight(&leaves[1], [dims[2], hidden]));
        let x = function(x + leaves[2].clone().unsqueeze());
        let y = x.matmul(weight(&leaves[3], [hidden, dims[2]]));
        match leaves.get(4) {
            Some(bias) => y + bias.clone().unsqueeze(),
            None => y,
        }
        .flatten(0, 2)
    }
}

#[test]
fn it_is_the_sum_of_its_parts() {
    for sizes in SIZES {
        let case = |activation| sizes.case(activation);
        case(ActivationConfig::Gelu).assert_equal(64.0);
        let case = case(ActivationConfig::GeluApproximate);
        case.without_last_input().assert_equal(64.0);
    }
    let empty = || Sizes([0, 3, 4], 2).case(ActivationConfig::Gelu);
    empty().assert_empty();
    empty().without_last_input().assert_empty();
}

#[test]
fn numbers_that_are_not_finite_are_as_with_burn() {
    let sizes = Sizes([2, 2, 2], 3);
    for strange in [f64::NAN, f64::INFINITY, 1e20, -1e20] {
        let mut inputs = sizes.inputs();
        inputs[0][3] = strange;
        let case = sizes.case(ActivationConfig::Gelu).with_inputs(inputs);
        case.assert_as_plain(64.0);
    }
}

/// Each of them alone has the gradient that it has together with the others.
#[test]
fn what_is_frozen_has_no_gradient_and_changes_none() {
    let sizes = SIZES[3];
    let device = flex();
    let leaves: Vec<Tensor<1>> = (sizes.inputs().iter().map(Vec::len).enumerate())
        .map(|(at, count)| numbers([count], at, &device).require_grad())
        .collect();
    let grads = |leaves: &[Tensor<1>]| {
        let loss = sizes.run(leaves, ActivationConfig::Gelu).square().sum();
        let grads = loss.backward();
        let of = |leaf: &Tensor<1>| leaf.grad(&grads).map(Tensor::into_data);
        leaves.iter().map(of).collect::<Vec<_>>()
    };
    let all = grads(&leaves);
    assert!(all.iter().all(Option::is_some));
    for trained in 0..leaves.len() {
        let some: Vec<_> = (leaves.iter().cloned().enumerate())
            .map(|(at, leaf)| match at == trained {
                true => leaf,
                // A leaf that is detached needs a gradient as before.
                false => Tensor::from_inner(leaf.inner()),
            })
            .collect();
        let found = grads(&some);
        for (at, found) in found.iter().enumerate() {
            let expected = (at == trained).then(|| all[at].clone()).flatten();
            assert_eq!(
                *found, expected,
                "gradient {at}, where {trained} is trained"
            );
        }
    }
}

#[test]
fn it_drops_what_burns_does() {
    alone(|| {
        let Sizes(dims, hidden) = SIZES[3];
        let config = PositionWiseFeedForwardConfig::new(dims[2], hidden).with_dropout(0.3);
        let device = flex();
        let plain = seeded(&device, |device| config.init(device));
        let lean = plain.clone().lean();
        let x = numbers(dims, 3, &device).require_grad();
        let weights = numbers(dims, 4, &device);
        let run = |forward: &dyn Fn(Tensor<3>) -> Tensor<3>| {
            device.seed(5);
            let y = forward(x.clone());
            let grads = (y.clone() * weights.clone()).sum().backward();
            let of = |param: &Param<Tensor<2>>| param.val().grad(&grads).unwrap();
            let flat = [
                y.inner().flatten(0, 2),
                x.grad(&grads).unwrap().flatten(0, 2),
                of(&plain.linear_inner.weight).flatten::<1>(0, 1),
                of(&plain.linear_outer.weight).flatten(0, 1),
            ];
            // The generator stands where it stood after Burn's.
            let next = Tensor::<1>::random([3], burn::tensor::Distribution::Default, &device);
            (flat, next.into_data())
        };
        let (expected, next) = run(&|x| plain.forward(x));
        let (found, next_of_ours) = run(&|x| lean.forward(x));
        assert_eq!(next, next_of_ours);
        for (found, expected) in found.into_iter().zip(expected) {
            let size = expected.clone().abs().max().into_scalar::<f32>();
            let difference = (found - expected).abs().max().into_scalar::<f32>();
            assert!(difference <= 1e-5 * size, "{difference:e} of {size}");
        }
        // Without autodiff nothing is dropped.
        let (plain, lean) = (plain.valid(), lean.valid());
        let (expected, found) = (plain.forward(x.clone().inner()), lean.forward(x.inner()));
        let size = expected.clone().abs().max().into_scalar::<f32>();
        let difference = (found - expected).abs().max().into_scalar::<f32>();
        assert!(difference <= 1e-5 * size, "{difference:e} of {size}");
    });
}

/// The shape of gate and of up, and the length of the output.
const GATED: [([usize; 3], usize); 4] = [
    ([1, 1, 1], 1),
    ([2, 3, 5], 7),
    ([5, 1, 3], 2),
    // Several parts of the rows, and several blocks of columns.
    ([2, 521, 1031], 6),
];

/// The linear layer of a gated hidden layer beside the sum of its parts. With a rank, its weight is frozen and
/// has an adapter.
fn gated(dims: [usize; 3], d_output: usize, rank: Option<usize>) -> Case {
    let width = dims[2];
    let mut inputs = vec![
        spread(0.0, 3.0, dims.iter().product(), 1),
        noise(dims.iter().product(), 2),
    ];
    match rank {
        Some(rank) => inputs.extend([noise(width * rank, 3), noise(rank * d_output, 4)]),
        None => inputs.push(noise(width * d_output, 3)),
    }
    inputs.push(noise(d_output, 5));
    let parts = move |leaves: &[Tensor<1>]| {
        let [gate, up] = [0, 1].map(|at| shaped::<3>(&leaves[at], dims));
        let bias = leaves.get(if rank.is_some() { 4 } else { 3 }).cloned();
        (gate, up, bias)
    };
    let factors = move |leaves: &[Tensor<1>], rank: usize| {
        let a: Tensor<2> = shaped(&leaves[2], [width, rank]);
        (a, shaped::<2>(&leaves[3], [rank, d_output]))
    };
    Case::new(
        format!("gated linear layer of {dims:?} to {d_output} of rank {rank:?}"),
        inputs,
        move |leaves| {
            let (gate, up, bias) = parts(leaves);
            let weight = match rank {
                Some(rank) => {
                    let (a, b) = factors(leaves, rank);
                    frozen([width, d_output], &leaves[0]) + a.matmul(b) * SCALE
                }
                None => shaped(&leaves[2], [width, d_output]),
            };
            let y = (silu_of_definition(gate) * up).matmul(weight.unsqueeze());
            match bias {
                Some(bias) => y + bias.unsqueeze(),
                None => y,
            }
            .flatten(0, 2)
        },
        move |leaves| {
            let (gate, up, bias) = parts(leaves);
            match rank {
                Some(rank) => {
                    let (a, b) = factors(leaves, rank);
                    let weight = adapted(frozen([width, d_output], &leaves[0]), a, b);
                    swiglu_linear(gate, up, &weight, bias)
                }
                None => {
                    let weight: Tensor<2> = shaped(&leaves[2], [width, d_output]);
                    swiglu_linear(gate, up, weight, bias)
                }
            }
            .flatten(0, 2)
        },
    )
}

#[test]
fn a_gated_one_is_the_sum_of_its_parts() {
    for (dims, d_output) in GATED {
        for rank in [None, Some(3)] {
            // Sums of 1031 products.
            gated(dims, d_output, rank).assert_equal(128.0);
            let case = gated(dims, d_output, rank).without_last_input();
            case.assert_equal(128.0);
        }
    }
    gated([0, 3, 4], 2, None).assert_empty();
    gated([0, 3, 4], 2, Some(1)).assert_empty();
}

/// Activations in half precision over factors in f32: what is between is in f32.
#[test]
fn half_precision_is_rounded_once() {
    for (dtype, epsilon) in [
        (DType::F16, 2.0_f64.powi(-10)),
        (DType::BF16, 2.0_f64.powi(-7)),
    ] {
        let case = gated([2, 9, 70], 6, Some(3)).rounded(dtype);
        let found = case.found_in(|at| if at < 2 { dtype } else { DType::F32 });
        for (at, difference) in differences(&found, &case.expected())
            .into_iter()
            .enumerate()
        {
            // Those of the factors are not rounded.
            let most = if (3..=5).contains(&at) { 1e-5 } else { epsilon };
            assert!(
                difference <= most,
                "tensor {at} in {dtype:?}: {difference:e}"
            );
        }
    }
}

/// Beside the two operations that keep the hidden layer: all bits, where all of it is one block.
#[test]
fn what_is_computed_again_has_the_bits_of_what_was_kept() {
    const DIMS: [usize; 3] = [2, 150, 120];
    for is_adapted in [true, false] {
        let [gate, up] = [1, 2].map(|at| (numbers(DIMS, at, &flex()) * 4.0).require_grad());
        let [a, b] = [([120, 3], 3), ([3, 10], 4)]
            .map(|(dims, at)| numbers(dims, at, &flex()).require_grad());
        let weight = match is_adapted {
            true => adapted(numbers([120, 10], 5, &flex()), a, b),
            false => Param::from_tensor(numbers([120, 10], 5, &flex())),
        };
        let run = |y: Tensor<3>| {
            let value = bits_of(y.clone().inner());
            let grads = (y * numbers([2, 150, 10], 6, &flex())).sum().backward();
            let mut all = vec![value];
            all.extend([&gate, &up].map(|x| bits_of(x.grad(&grads).unwrap())));
            all.extend(
                match weight.adapter() {
                    Some(it) => vec![&it.a, &it.b],
                    None => vec![&weight],
                }
                .into_iter()
                .map(|param| bits_of(param.base().grad(&grads).unwrap())),
            );
            all
        };
        let found = run(swiglu_linear(gate.clone(), up.clone(), &weight, None));
        let kept = swiglu(gate.clone(), up.clone());
        let expected = run(adapted_linear(kept, &weight, None));
        assert!(found == expected, "adapted: {is_adapted}");
    }
}

#[test]
fn modules_are_their_parts() {
    let device = flex();
    let gate = nn::SwiGluConfig::new(8, 12).with_bias(true).init(&device);
    let down = nn::LinearConfig::new(12, 8).init(&device);
    let x = numbers::<3>([2, 3, 8], 1, &device);
    let expected = down.forward(gate.forward(x.clone()));
    assert_eq!(
        bits_of(gate.forward_linear(x, &down).inner()),
        bits_of(expected.inner())
    );
    let refused = |forward: &dyn Fn() -> Tensor<2>, why: &str| assert_panics(forward, why);
    let zeros = |dims: [usize; 2]| Tensor::<2>::zeros(dims, &device);
    refused(
        &|| swiglu_linear(zeros([2, 3]), zeros([3, 2]), zeros([3, 4]), None),
        "the shapes differ",
    );
    refused(
        &|| swiglu_linear(zeros([2, 3]), zeros([2, 3]), zeros([2, 4]), None),
        "the last axis of the input is `d_input` of the weight",
    );
    refused(
        &|| {
            let weight = zeros([3, 4]).cast(DType::BF16);
            swiglu_linear(zeros([2, 3]), zeros([2, 3]), weight, None)
        },
        "cast them to one",
    );
}

/// A hidden layer that is large beside the rest, whose weights have adapters: it is not kept, and its gradient
/// is made in blocks.
#[test]
fn memory_with_adapters() {
    const ROWS: usize = 4096;
    const WIDTH: usize = 64;
    const HIDDEN: usize = 4 * ROWS * 16 * WIDTH;
    alone(|| {
        for activation in [ActivationConfig::Gelu, ActivationConfig::GeluApproximate] {
            let config = PositionWiseFeedForwardConfig::new(WIDTH, 16 * WIDTH);
            let config = config.with_dropout(0.0).with_activation(activation);
            let network = config.init(&flex()).apply_lora(Lora::new(4, 4.0)).lean();
            let x = numbers::<2>([ROWS, WIDTH], 1, &flex()).require_grad();
            assert_keeps(HIDDEN, || network.forward(x.clone()));
        }
        let down = nn::LinearConfig::new(16 * WIDTH, WIDTH).init(&flex());
        let down = down.apply_lora(Lora::new(4, 4.0));
        let leaf = |at| numbers::<2>([ROWS, 16 * WIDTH], at, &flex()).require_grad();
        let (gate, up) = (leaf(1), leaf(2));
        let run = || {
            // Not leaves, so that their gradients are written over them.
            swiglu_linear(gate.clone() * 2.0, up.clone() * 2.0, &down.weight, None)
        };
        assert_keeps(2 * HIDDEN, run);
    });
}

/// Bytes that are kept, and a quarter of the hidden layer for all else that backward makes, beyond gradients of
/// what is kept.
fn assert_keeps(bytes: usize, forward: impl Fn() -> Tensor<2>) {
    /// Of the input and of the output.
    const OTHERS: usize = 4 * (4 * 4096 * 64);
    warm_threads();
    let before = HEAP.current_usage();
    let y = forward();
    let kept = HEAP.current_usage() - before;
    HEAP.reset_peak_usage();
    let grads = y.sum().backward();
    let peak = HEAP.peak_usage() - before;
    drop(grads);
    println!("{kept} kept of {bytes}, peak {peak}");
    assert!(kept <= bytes + OTHERS, "{kept} of {bytes}");
    let blocks = 4 * (2 << 20);
    assert!(peak <= kept + OTHERS + blocks, "{peak} of {kept}");
}
