//! The feed-forward network, whose second half is one operation.

use burn::module::ParamId;
use burn::nn::transformer::PositionWiseFeedForwardConfig;
use burn::tensor::activation;
use burn_lean::operations::nn;
use burn_lean::operations::nn::LeanModule;
use burn_lean::operations::nn::transformer::PositionWiseFeedForward;

use super::activations::gelu_of_definition;
use super::harness::{Case, noise, shaped, spread};
use crate::harness::prelude::*;

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
