//! Modules in place of Burn's: the same records, numbers and gradients.

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::nn as plain;
use burn::store::ModuleRecord;
use burn::tensor::{Bool, Device, Tensor};
use burn_lean::operations::nn;
use burn_lean::operations::nn::LeanModule;

use crate::harness::{alone, bits, flex, numbers, seeded};

/// The gradients of all parameters, by path.
fn gradients<M: Module>(model: &M, loss: Tensor<1>) -> Vec<(String, Vec<f32>)> {
    struct Visitor<'a> {
        grads: &'a burn::tensor::Gradients,
        path: Vec<String>,
        found: Vec<(String, Vec<f32>)>,
    }
    impl ModuleVisitor for Visitor<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let grad = param.val().grad(self.grads);
            let numbers = grad.map_or_else(Vec::new, |grad| grad.into_data().iter().collect());
            self.found.push((self.path.join("."), numbers));
        }
        fn enter_module(&mut self, name: &str, _: &str) {
            self.path.push(name.into());
        }
        fn exit_module(&mut self, _: &str, _: &str) {
            self.path.pop();
        }
    }
    let grads = loss.backward();
    let mut visitor = Visitor {
        grads: &grads,
        path: Vec::new(),
        found: Vec::new(),
    };
    model.visit(&mut visitor);
    visitor.found
}

/// Paths and ids of parameters.
fn params<M: Module>(model: &M) -> Vec<ParamId> {
    struct Ids(Vec<ParamId>);
    impl ModuleVisitor for Ids {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.0.push(param.id);
        }
    }
    let mut ids = Ids(Vec::new());
    model.visit(&mut ids);
    ids.0
}

/// That a module of Burn's and its other have the same parameters, outputs and gradients, and read
/// each other's record.
fn assert_same<M>(
    make: impl Fn(&Device) -> M,
    plain_loss: impl Fn(&M) -> Tensor<1>,
    lean_loss: impl Fn(&M::Lean) -> Tensor<1>,
) where
    M: Module + LeanModule + std::fmt::Display,
    M::Lean: Module,
{
    let device = flex();
    let plain = seeded(&device, &make);
    let lean = plain.clone().lean();
    assert_eq!(bits(&lean), bits(&plain));
    assert_eq!(params(&lean), params(&plain));

    let (expected, found) = (plain_loss(&plain), lean_loss(&lean));
    let difference = (expected.clone() - found.clone())
        .abs()
        .into_scalar::<f32>();
    let size = expected.clone().abs().into_scalar::<f32>();
    assert!(difference <= 1e-5 * size, "{difference:e} of {size}");
    let expected = gradients(&plain, expected);
    let found = gradients(&lean, found);
    let scale = |numbers: &[f32]| numbers.iter().fold(1e-3_f32, |max, x| max.max(x.abs()));
    for ((path, expected), (lean_path, found)) in expected.iter().zip(&found) {
        assert_eq!(path, lean_path);
        assert_eq!(expected.len(), found.len(), "{path}");
        let pairs = expected.iter().zip(found);
        let difference = pairs.fold(0.0_f32, |max, (a, b)| max.max((a - b).abs()));
        // Burn's GELU has a gradient of its own: see the test of it.
        let limit = 2e-3 * scale(expected);
        assert!(difference <= limit, "{path}: {difference:e} of {limit:e}");
    }

    // The record of one is that of the other.
    let saved = lean.clone().into_record().into_bytes().unwrap();
    let read = ModuleRecord::from_bytes(saved).unwrap();
    let other = make(&device).load_record(read);
    assert_eq!(bits(&other), bits(&plain));
    let back = M::plain(lean);
    assert_eq!(bits(&back), bits(&plain));
    assert_eq!(params(&back), params(&plain));
    assert_eq!(format!("{back}"), format!("{plain}"));
}

fn input() -> Tensor<3> {
    numbers([2, 5, 8], 3, &flex())
}

#[test]
fn layers_are_those_of_burn() {
    assert_same(
        |device| plain::LinearConfig::new(8, 6).init(device),
        |layer| layer.forward(input()).square().mean(),
        |layer| layer.forward(input()).square().mean(),
    );
    assert_same(
        |device| {
            plain::LayerNormConfig::new(8)
                .with_epsilon(1.234_567e-3)
                .init(device)
        },
        |layer| layer.forward(input()).square().mean(),
        |layer| layer.forward(input()).square().mean(),
    );
    assert_same(
        |device| plain::RmsNormConfig::new(8).with_epsilon(1e-3).init(device),
        |layer| layer.forward(input()).square().mean(),
        |layer| layer.forward(input()).square().mean(),
    );
    assert_same(
        |device| plain::GroupNormConfig::new(5, 5).init(device),
        |layer| layer.forward(input()).powi_scalar(3).mean(),
        |layer| layer.forward(input()).powi_scalar(3).mean(),
    );
    assert_same(
        |device| plain::SwiGluConfig::new(8, 6).with_bias(true).init(device),
        |layer| layer.forward(input()).square().mean(),
        |layer| layer.forward(input()).square().mean(),
    );
}

fn pad() -> Tensor<2, Bool> {
    let mask = [
        [false, false, false, false, true],
        [false, false, true, true, true],
    ];
    Tensor::from_data(mask, &flex())
}

fn attn() -> Tensor<3, Bool> {
    Tensor::<2, Bool>::tril_mask([5, 5], 0, &flex())
        .unsqueeze::<3>()
        .repeat_dim(0, 2)
}

#[test]
fn attention_is_that_of_burn() {
    for quiet in [false, true] {
        assert_same(
            |device| {
                let config = plain::attention::MultiHeadAttentionConfig::new(8, 2);
                let config = config.with_quiet_softmax(quiet).with_key_bias(false);
                config.with_dropout(0.0).init(device)
            },
            |layer| {
                let input = plain::attention::MhaInput::self_attn(input());
                let input = input.mask_pad(pad()).mask_attn(attn());
                layer.forward(input).context.square().mean()
            },
            |layer| {
                let input = nn::attention::MhaInput::self_attn(input());
                let input = input.mask_pad(pad()).mask_attn(attn());
                layer.forward(input).context.square().mean()
            },
        );
    }
}

#[test]
fn transformers_are_those_of_burn() {
    for norm_first in [false, true] {
        assert_same(
            |device| {
                let config = plain::transformer::TransformerEncoderConfig::new(8, 16, 2, 2);
                let config = config.with_norm_first(norm_first).with_dropout(0.0);
                config.with_layer_norm_eps(1e-3).init(device)
            },
            |encoder| {
                let input = plain::transformer::TransformerEncoderInput::new(input());
                let input = input.mask_pad(pad()).mask_attn(attn());
                encoder.forward(input).powi_scalar(3).mean()
            },
            |encoder| {
                let input = nn::transformer::TransformerEncoderInput::new(input());
                let input = input.mask_pad(pad()).mask_attn(attn());
                encoder.forward(input).powi_scalar(3).mean()
            },
        );
        let memory = || numbers([2, 5, 8], 4, &flex());
        assert_same(
            |device| {
                let config = plain::transformer::TransformerDecoderConfig::new(8, 16, 2, 2);
                let config = config.with_norm_first(norm_first).with_dropout(0.0);
                config
                    .with_activation(plain::activation::ActivationConfig::Relu)
                    .init(device)
            },
            |decoder| {
                let input = plain::transformer::TransformerDecoderInput::new(input(), memory());
                let input = input.target_mask_attn(attn()).memory_mask_pad(pad());
                decoder.forward(input).powi_scalar(3).mean()
            },
            |decoder| {
                let input = nn::transformer::TransformerDecoderInput::new(input(), memory());
                let input = input.target_mask_attn(attn()).memory_mask_pad(pad());
                decoder.forward(input).powi_scalar(3).mean()
            },
        );
    }
}

/// With the same seed, all that is dropped is the same.
#[test]
fn an_encoder_drops_what_burns_does() {
    alone(
        "operations::modules::an_encoder_drops_what_burns_does",
        || {
            let device = flex();
            let config = plain::transformer::TransformerEncoderConfig::new(8, 16, 2, 2);
            let encoder = seeded(&device, |device| config.with_dropout(0.3).init(device));
            let lean = encoder.clone().lean();
            device.seed(5);
            let expected =
                encoder.forward(plain::transformer::TransformerEncoderInput::new(input()));
            device.seed(5);
            let found = lean.forward(nn::transformer::TransformerEncoderInput::new(input()));
            let difference = (found - expected).abs().max().into_scalar::<f32>();
            assert!(difference < 1e-5, "{difference:e}");
        },
    );
}

#[test]
fn weights_and_caches_are_burns() {
    let config = plain::attention::MultiHeadAttentionConfig::new(8, 2);
    let layer = seeded(&flex(), |device| config.init(device)).valid();
    let lean = layer.clone().lean();
    let input = input().inner();
    let expected = layer.forward(plain::attention::MhaInput::self_attn(input.clone()));
    let weights = lean.weights(nn::attention::MhaInput::self_attn(input.clone()));
    assert_eq!(weights.into_data(), expected.weights.into_data());

    let config = plain::transformer::TransformerEncoderConfig::new(8, 16, 2, 2);
    let encoder = seeded(&flex(), |device| config.init(device)).valid();
    let lean = encoder.clone().lean();
    let mut cache = encoder.new_autoregressive_cache();
    let plain_input = plain::transformer::TransformerEncoderInput::new(input.clone());
    let expected = encoder.forward_autoregressive_inference(plain_input, &mut cache);
    let mut cache = lean.new_autoregressive_cache();
    let lean_input = nn::transformer::TransformerEncoderInput::new(input);
    let found = lean.forward_autoregressive_inference(lean_input, &mut cache);
    assert_eq!(found.into_data(), expected.into_data());
}
