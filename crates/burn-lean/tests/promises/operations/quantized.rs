//! Quantized parameters: read as by Burn's modules, constants of the backward pass.

#![expect(
    unused_qualifications,
    reason = "`plain::Linear` beside `nn::Linear` says which is meant"
)]

use burn::module::{Lora, QLora, Quantizer};
use burn::nn as plain;
use burn::tensor::quantization::{Calibration, QuantScheme};
use burn_lean::operations::nn::LeanModule;
use burn_lean::operations::{layer_norm, linear};

use crate::accumulation::bits_of;
use crate::harness::prelude::*;

const DIMS: [usize; 3] = [2, 5, 32];

fn quantizer() -> Quantizer {
    Quantizer::new(Calibration::MinMax, QuantScheme::default())
}

/// All parameters, the weights with factors that are trained, and all but `linear_outer`.
fn quantized<M: Module>(layer: M) -> [M; 3] {
    let adapted = |lora: Lora| {
        let layer = layer.clone().apply_qlora(QLora::new(lora, quantizer()));
        seeded(&flex(), |_| layer)
    };
    let lora = || Lora::new(2, 4.0);
    let without_outer = ParamGroup::all().exclude(ParamGroup::from_predicate("linear_outer"));
    [
        layer.clone().quantize_weights(&mut quantizer()),
        adapted(lora()),
        adapted(lora().set_param_group(without_outer)),
    ]
}

fn assert_near(found: &[Vec<f32>], expected: &[Vec<f32>]) {
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        assert_eq!(found.len(), expected.len());
        let size = expected.iter().fold(0.0_f32, |max, x| max.max(x.abs()));
        for (found, expected) in found.iter().zip(expected) {
            let difference = (found - expected).abs();
            assert!(difference <= 1e-4 * size, "{difference:e} of {size}");
        }
    }
}

/// The output in training, the gradients of the input and of what is trained, and the output without
/// autodiff.
fn outcome<M: Module>(layer: &M, forward: impl Fn(&M, Tensor<3>) -> Tensor<3>) -> Vec<Vec<f32>> {
    let x = numbers(DIMS, 3, &flex()).require_grad();
    let loss = |y: Tensor<3>| (y * numbers(DIMS, 4, &flex())).sum();
    let y = forward(layer, x.clone());
    let of_input = x.grad(&loss(y.clone()).backward()).unwrap();
    let grads = loss(forward(layer, x.clone())).backward();
    let of_params = bits_of(&GradientsParams::from_grads(grads, layer), layer);
    let inference = forward(&layer.valid(), x.inner());
    let tensors = [y.inner(), of_input, inference].map(|x| x.into_data().iter().collect());
    let of_params = of_params.into_iter().map(|bits| {
        let bits = bits.unwrap_or_default().into_iter();
        bits.map(f32::from_bits).collect()
    });
    tensors.into_iter().chain(of_params).collect()
}

/// Compares a layer of Burn's with ours: `nn` is Burn's or ours.
macro_rules! assert_same {
    ($config:expr, |$layer:ident, $x:ident| $forward:expr) => {
        let layer = seeded(&flex(), |device| $config.init(device));
        for layer in quantized(layer) {
            let expected = outcome(&layer, |$layer, $x| {
                #[allow(unused_imports, reason = "not each layer has an input of its own")]
                use burn::nn;
                $forward
            });
            let found = outcome(&layer.lean(), |$layer, $x| {
                #[allow(unused_imports, reason = "as above")]
                use burn_lean::operations::nn;
                $forward
            });
            assert_near(&found, &expected);
        }
    };
}

/// Burn's usual calls quantize gains and biases, too.
#[test]
fn layers_are_those_of_burn() {
    assert_same!(plain::LinearConfig::new(32, 32), |layer, x| layer
        .forward(x));
    assert_same!(plain::LayerNormConfig::new(32), |layer, x| layer.forward(x));
    assert_same!(plain::RmsNormConfig::new(32), |layer, x| layer.forward(x));
    let swiglu = plain::SwiGluConfig::new(32, 32).with_bias(true);
    assert_same!(swiglu, |layer, x| layer.forward(x));
    let group_norm = plain::GroupNormConfig::new(4, 32);
    assert_same!(group_norm, |layer, x| layer
        .forward(x.swap_dims(1, 2))
        .swap_dims(1, 2));
}

#[test]
fn feed_forward_networks_are_those_of_burn() {
    let pwff = plain::transformer::PositionWiseFeedForwardConfig::new(32, 64).with_dropout(0.0);
    assert_same!(pwff, |layer, x| layer.forward(x));
}

#[test]
fn transformers_are_those_of_burn() {
    let attention = plain::attention::MultiHeadAttentionConfig::new(32, 2).with_dropout(0.0);
    assert_same!(attention, |layer, x| {
        layer.forward(nn::attention::MhaInput::self_attn(x)).context
    });
    let encoder = plain::transformer::TransformerEncoderConfig::new(32, 64, 2, 2).with_dropout(0.0);
    assert_same!(encoder, |layer, x| {
        layer.forward(nn::transformer::TransformerEncoderInput::new(x))
    });
}

/// A gain keeps its digits in f32, and a bias has the type of the product that it is added to.
#[test]
fn they_fit_an_input_of_any_type() {
    for dtype in [DType::F64, DType::F16, DType::BF16] {
        let x = || numbers([2, 32], 1, &flex()).cast(dtype);
        let weight = numbers([32, 32], 2, &flex()).cast(dtype);
        let packed = numbers([32], 3, &flex()).inner();
        let packed = packed.quantize_dynamic(&QuantScheme::default());
        let dense = || Tensor::from_inner(packed.clone().dequantize());
        let found = layer_norm(x(), packed.clone(), Some(packed.clone()), 1e-5);
        let gain = || match dtype {
            DType::F64 => dense().cast(dtype),
            _ => dense(),
        };
        let expected = layer_norm(x(), gain(), Some(gain()), 1e-5);
        assert_eq!(found.into_data(), expected.into_data());
        let found = linear(x(), weight.clone(), Some(packed.clone()));
        let expected = linear(x(), weight, Some(dense().cast(dtype)));
        assert_eq!(found.into_data(), expected.into_data());
    }
}
