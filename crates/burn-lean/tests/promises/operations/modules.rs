//! Modules in place of Burn's: the same records, numbers and gradients.

#![expect(
    unused_qualifications,
    reason = "`plain::Linear` beside `nn::Linear` says which is meant"
)]

use burn::config::Config;
use burn::module::list_param_ids;
use burn::nn as plain;
use burn::tensor::Distribution;
use burn_lean::MixedPrecision;
use burn_lean::operations::Attention;
use burn_lean::operations::nn;
use burn_lean::operations::nn::LeanModule;

use crate::accumulation::bits_of;
use crate::harness::prelude::*;

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
    let (expected, found) = (plain_loss(&plain), lean_loss(&lean));
    let difference = (expected.clone() - found.clone())
        .abs()
        .into_scalar::<f32>();
    let size = expected.clone().abs().into_scalar::<f32>();
    assert!(difference <= 1e-5 * size, "{difference:e} of {size}");
    assert_eq!(list_param_ids(&lean), list_param_ids(&plain));
    let expected = GradientsParams::from_grads(expected.backward(), &plain);
    let found = GradientsParams::from_grads(found.backward(), &lean);
    let pairs = bits_of(&expected, &plain)
        .into_iter()
        .zip(bits_of(&found, &lean));
    for ((path, _), (expected, found)) in bits(&plain).iter().zip(pairs) {
        let [expected, found] = [expected, found].map(|grad| {
            let bits = grad.unwrap_or_default().into_iter();
            bits.map(f32::from_bits).collect::<Vec<_>>()
        });
        assert_eq!(expected.len(), found.len(), "{path}");
        // Burn's GELU has a gradient of its own: see the test of it.
        let limit = 2e-3 * expected.iter().fold(1e-3_f32, |max, x| max.max(x.abs()));
        for (expected, found) in expected.iter().zip(found) {
            let difference = (expected - found).abs();
            assert!(difference <= limit, "{path}: {difference:e} of {limit:e}");
        }
    }

    // The record of one is that of the other.
    let saved = lean.clone().into_record().into_bytes().unwrap();
    let read = ModuleRecord::from_bytes(saved).unwrap();
    let other = make(&device).load_record(read);
    assert_eq!(bits(&other), bits(&plain));
    let back = M::plain(lean);
    assert_eq!(bits(&back), bits(&plain));
    assert_eq!(list_param_ids(&back), list_param_ids(&plain));
    assert_eq!(format!("{back}"), format!("{plain}"));
}

fn input() -> Tensor<3> {
    numbers([2, 5, 8], 3, &flex())
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

/// Compares the module of a configuration with ours, by a loss in which `nn` is Burn's or ours.
macro_rules! assert_same {
    ($config:expr, |$layer:ident| $loss:expr) => {
        assert_same(
            |device| $config.init(device),
            |$layer| {
                #[allow(unused_imports, reason = "not each loss has an input of its own")]
                use burn::nn;
                $loss
            },
            |$layer| {
                #[allow(unused_imports, reason = "as above")]
                use burn_lean::operations::nn;
                $loss
            },
        )
    };
}

#[test]
fn layers_are_those_of_burn() {
    let linear = plain::LinearConfig::new(8, 6);
    let layer_norm = plain::LayerNormConfig::new(8).with_epsilon(1.234_567e-3);
    let rms_norm = plain::RmsNormConfig::new(8).with_epsilon(1e-3);
    let swiglu = plain::SwiGluConfig::new(8, 6).with_bias(true);
    let group_norm = plain::GroupNormConfig::new(5, 5);
    let embedding = plain::EmbeddingConfig::new(10, 8);
    assert_same!(embedding, |layer| layer
        .forward(ids([2, 5], 1, 10, &flex()))
        .square()
        .mean());
    assert_same!(linear, |layer| layer.forward(input()).square().mean());
    assert_same!(layer_norm, |layer| layer.forward(input()).square().mean());
    assert_same!(rms_norm, |layer| layer.forward(input()).square().mean());
    assert_same!(swiglu, |layer| layer.forward(input()).square().mean());
    assert_same!(group_norm, |layer| layer
        .forward(input())
        .powi_scalar(3)
        .mean());
}

#[test]
fn attention_is_that_of_burn() {
    for quiet in [false, true] {
        let config = plain::attention::MultiHeadAttentionConfig::new(8, 2);
        let config = config.with_quiet_softmax(quiet).with_key_bias(false);
        let config = config.with_dropout(0.0);
        assert_same!(config, |layer| {
            let input = nn::attention::MhaInput::self_attn(input());
            let input = input.mask_pad(pad()).mask_attn(attn());
            layer.forward(input).context.square().mean()
        });
    }
}

/// What is not given to `new` is Burn's default.
#[test]
fn the_file_of_a_configuration_is_that_of_burn() {
    let plain = plain::SwiGluConfig::new(8, 6).with_layout(plain::LinearLayout::Col);
    let lean = nn::SwiGluConfig::new(8, 6).with_layout(plain::LinearLayout::Col);
    assert_eq!(lean.to_string(), plain.to_string());
    let mut read = nn::SwiGluConfig::load_binary(plain.to_string().as_bytes()).unwrap();
    assert_eq!((read.d_output, read.bias), (6, false));
    read.bias = true;
    assert_eq!(read.to_string(), plain.with_bias(true).to_string());
}

/// The masks of the module replace scores by a finite number: those that an option has hidden stay so.
#[test]
fn keys_that_options_hide_stay_hidden() {
    let config = nn::attention::MultiHeadAttentionConfig::new(8, 2).with_output_bias(false);
    let layer = seeded(&flex(), |device| config.init(device)).valid();
    let hidden = Tensor::<4, Bool>::full([1, 1, 5, 5], true, &flex());
    let attention = || Attention::new().with_mask(hidden.clone(), f64::NEG_INFINITY);
    let x = nn::attention::MhaInput::self_attn(input().inner());
    for x in [x.clone().mask_pad(pad()), x.mask_attn(attn())] {
        let output = layer.forward_with(x, attention()).context;
        assert_eq!(output.abs().max().into_scalar::<f32>(), 0.0);
    }
}

#[test]
fn transformers_are_those_of_burn() {
    for norm_first in [false, true] {
        let config = plain::transformer::TransformerEncoderConfig::new(8, 16, 2, 2);
        let config = config.with_norm_first(norm_first).with_dropout(0.0);
        let config = config.with_layer_norm_eps(1e-3);
        assert_same!(config, |encoder| {
            let input = nn::transformer::TransformerEncoderInput::new(input());
            let input = input.mask_pad(pad()).mask_attn(attn());
            encoder.forward(input).powi_scalar(3).mean()
        });
        let config = plain::transformer::TransformerDecoderConfig::new(8, 16, 2, 2);
        let config = config.with_norm_first(norm_first).with_dropout(0.0);
        let config = config.with_activation(plain::activation::ActivationConfig::Relu);
        assert_same!(config, |decoder| {
            let memory = numbers([2, 5, 8], 4, &flex());
            let input = nn::transformer::TransformerDecoderInput::new(input(), memory);
            let input = input.target_mask_attn(attn()).memory_mask_pad(pad());
            decoder.forward(input).powi_scalar(3).mean()
        });
    }
}

/// As with masks of Burn's modules: causal, with a window and documents.
#[test]
fn options_of_attention_are_masks_of_the_modules() {
    let ids = [0, 0, 0, 4, 4];
    let hidden =
        |query: usize, key: usize| key > query || query - key >= 2 || ids[query] != ids[key];
    let mask = std::array::from_fn::<_, 5, _>(|query| {
        std::array::from_fn::<_, 5, _>(|key| hidden(query, key))
    });
    let mask = || Tensor::from_data([mask, mask], &flex());
    let options = || {
        let ids = Tensor::from_data([ids, ids], &flex());
        let attention = Attention::new().causal().with_window(2);
        attention.with_documents(ids)
    };
    let config = plain::attention::MultiHeadAttentionConfig::new(8, 2).with_dropout(0.0);
    assert_same(
        |device| config.init(device),
        |layer| {
            let input = plain::attention::MhaInput::self_attn(input());
            let output = layer.forward(input.mask_attn(mask()));
            output.context.powi_scalar(3).mean()
        },
        |layer| {
            let input = nn::attention::MhaInput::self_attn(input());
            let output = layer.forward_with(input, options());
            output.context.powi_scalar(3).mean()
        },
    );
    let config = plain::transformer::TransformerEncoderConfig::new(8, 16, 2, 2).with_dropout(0.0);
    assert_same(
        |device| config.init(device),
        |encoder| {
            let input = plain::transformer::TransformerEncoderInput::new(input());
            let output = encoder.forward(input.mask_attn(mask()));
            output.powi_scalar(3).mean()
        },
        |encoder| {
            let input = nn::transformer::TransformerEncoderInput::new(input());
            let output = encoder.forward(input.attention(options()));
            output.powi_scalar(3).mean()
        },
    );
    let config = plain::transformer::TransformerDecoderConfig::new(8, 16, 2, 2).with_dropout(0.0);
    let memory = || numbers([2, 5, 8], 4, &flex());
    assert_same(
        |device| config.init(device),
        |decoder| {
            let input = plain::transformer::TransformerDecoderInput::new(input(), memory());
            let output = decoder.forward(input.target_mask_attn(mask()));
            output.powi_scalar(3).mean()
        },
        |decoder| {
            let input = nn::transformer::TransformerDecoderInput::new(input(), memory());
            let output = decoder.forward(input.target_attention(options()));
            output.powi_scalar(3).mean()
        },
    );
}

/// Burn's inference with a cache would see all keys.
#[test]
#[should_panic(expected = "inference with a cache has no options of attention")]
fn a_cache_has_no_options_of_attention() {
    let config = nn::transformer::TransformerEncoderConfig::new(8, 16, 2, 1);
    let encoder = config.init(&flex()).valid();
    let input = nn::transformer::TransformerEncoderInput::new(input().inner());
    let mut cache = encoder.new_autoregressive_cache();
    let input = input.attention(Attention::new().with_window(2));
    encoder.forward_autoregressive_inference(input, &mut cache);
}

/// Burn's normalizations take an input in bf16 with gains in bf16 only.
#[test]
fn caches_of_models_in_half_precision() {
    fn difference(found: Tensor<3>, expected: Tensor<3>) -> f32 {
        let difference = found.cast(DType::F32) - expected;
        difference.abs().max().into_scalar()
    }
    for (precision, half) in [
        (MixedPrecision::bf16(), DType::BF16),
        (MixedPrecision::f16(), DType::F16),
    ] {
        for norm_first in [false, true] {
            let config = nn::transformer::TransformerEncoderConfig::new(8, 16, 2, 2);
            let config = config.with_norm_first(norm_first);
            let encoder = seeded(&flex(), |device| config.init(device)).valid();
            let x = || input().inner();
            let expected = encoder.forward(nn::transformer::TransformerEncoderInput::new(x()));
            let encoder = precision.cast(encoder).unwrap();
            let mut cache = encoder.new_autoregressive_cache();
            let x = nn::transformer::TransformerEncoderInput::new(x().cast(half));
            let found = encoder.forward_autoregressive_inference(x, &mut cache);
            assert_eq!(found.dtype(), half);
            let difference_of_encoder = difference(found, expected);

            let config = nn::transformer::TransformerDecoderConfig::new(8, 16, 2, 2);
            let config = config.with_norm_first(norm_first);
            let decoder = seeded(&flex(), |device| config.init(device)).valid();
            let [x, memory] = [3, 4].map(|seed| numbers([2, 5, 8], seed, &flex()).inner());
            let pair = nn::transformer::TransformerDecoderInput::new(x.clone(), memory.clone());
            let expected = decoder.forward(pair);
            let decoder = precision.cast(decoder).unwrap();
            let mut cache = decoder.new_autoregressive_cache();
            let [x, memory] = [x, memory].map(|tensor| tensor.cast(half));
            let pair = nn::transformer::TransformerDecoderInput::new(x, memory);
            let found = decoder.forward_autoregressive_inference(pair, &mut cache);
            assert_eq!(found.dtype(), half);
            let difference = difference_of_encoder.max(difference(found, expected));
            assert!(difference < 0.1, "{half:?}: {difference}");
        }
    }
}

/// With the same seed, all that is dropped is the same.
#[test]
fn an_encoder_drops_what_burns_does() {
    alone(|| {
        let device = flex();
        let config = plain::transformer::TransformerEncoderConfig::new(8, 16, 2, 2);
        let encoder = seeded(&device, |device| config.with_dropout(0.3).init(device));
        let lean = encoder.clone().lean();
        device.seed(5);
        let expected = plain::transformer::TransformerEncoderInput::new(input());
        let expected = encoder.forward(expected);
        device.seed(5);
        let found = lean.forward(nn::transformer::TransformerEncoderInput::new(input()));
        let difference = (found - expected).abs().max().into_scalar::<f32>();
        assert!(difference < 1e-5, "{difference:e}");
    });
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

/// To look at the weights in training changes nothing of what is trained.
#[test]
fn weights_are_those_before_dropout() {
    alone(|| {
        let config = nn::attention::MultiHeadAttentionConfig::new(8, 2).with_dropout(0.5);
        let layer = seeded(&flex(), |device| config.init(device));
        let weights = |layer: &nn::attention::MultiHeadAttention, x| {
            let weights = layer.weights(nn::attention::MhaInput::self_attn(x));
            weights.inner()
        };
        let random = || Tensor::<1>::random([3], Distribution::Default, &flex()).into_data();
        flex().seed(5);
        let expected = random();
        flex().seed(5);
        let found = weights(&layer, input());
        assert_eq!(random(), expected);
        let difference = found - weights(&layer.valid(), input().inner());
        let difference = difference.abs().max().into_scalar::<f32>();
        assert!(difference < 1e-6, "{difference:e}");
    });
}
