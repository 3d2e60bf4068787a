//! Models in half precision with normalizations in f32, and all that saves memory with them.

#![expect(
    unused_qualifications,
    reason = "`plain::Linear` beside `nn::Linear` says which is meant"
)]

mod training;

use burn::module::{Lora, ModuleDisplay};
use burn::nn as plain;
#[cfg(feature = "ndarray")]
use burn::optim::LionConfig;
use burn::optim::{AdamW, MuonConfig};
use burn::tensor::FloatDType;
use burn_lean::operations::{Attention, linear_cross_entropy, nn};
use burn_lean::optim::{
    AdaLomoConfig, Bf16Weights, CameConfig, InFiveBytes, InOnePass, Lean, MasterWeights,
    MasterWeights24, Rounding, Stochastic,
};
#[cfg(feature = "ndarray")]
use burn_lean::optim::{Offload, StableAdamWConfig};
use burn_lean::{CastError, LossScaler, MixedPrecision, checkpoint_each, no_decay};

pub(crate) use self::training::sum_in_f32;
use crate::clipping::by_hand::{clip_global, global_norm, gradients, scale};
use crate::harness::prelude::*;

/// Mixes types where it may not.
#[derive(Module, Debug)]
struct Mixed<M: Module> {
    linear: plain::Linear,
    inner: Vec<M>,
}

fn mixed<M: Module + ModuleDisplay>(inner: M) -> Mixed<M> {
    let linear = plain::LinearConfig::new(8, 8).init(&flex());
    let inner = vec![inner];
    seeded(&flex(), |_| Mixed { linear, inner })
}

fn types<M: Module>(model: &M) -> Vec<DType> {
    struct Types(Vec<DType>);
    impl ModuleVisitor for Types {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.0.push(param.val().dtype());
        }
    }
    let mut types = Types(Vec::new());
    model.visit(&mut types);
    types.0
}

/// Casts, or refuses by the path of what cannot take an input in half precision. A refused model is
/// as it was.
#[test]
fn modules_that_cannot_mix_types_are_refused_by_path() {
    fn assert_cast<M: Module>(model: M) {
        for (precision, half) in [
            (MixedPrecision::bf16(), DType::BF16),
            (MixedPrecision::f16(), DType::F16),
        ] {
            let cast = precision.cast(model.clone()).unwrap();
            let mut expected = vec![half; 2];
            expected.resize(types(&cast).len(), DType::F32);
            assert_eq!(types(&cast), expected);
            assert_eq!(types(&precision.cast(cast).unwrap()), expected);
        }
    }
    fn assert_refused<M: Module>(model: M, name: &str) {
        let before = bits(&model);
        let refused = MixedPrecision::bf16().cast(model).unwrap_err();
        let text = refused.error().to_string();
        assert!(
            text.starts_with(&format!("inner.0 is a `{name}`")),
            "{text}"
        );
        let (model, error) = refused.into_parts();
        assert!(matches!(error, CastError::CannotMix { .. }));
        assert_bits(&bits(&model), &before, name);
    }
    let device = flex();
    let layer = plain::LayerNormConfig::new(8).init(&device);
    let rms = plain::RmsNormConfig::new(8).init(&device);
    let group = plain::GroupNormConfig::new(2, 8).init(&device);
    let rotary = plain::RotaryEncodingConfig::new(16, 8).init(&device);
    let positions = plain::PositionalEncodingConfig::new(8).init(&device);
    assert_cast(mixed(nn::LayerNorm::from(layer.clone())));
    assert_cast(mixed(nn::RmsNorm::from(rms.clone())));
    assert_cast(mixed(nn::GroupNorm::from(group.clone())));
    assert_cast(mixed(nn::RotaryEncoding::from(rotary.clone())));
    assert_cast(mixed(nn::PositionalEncoding::from(positions.clone())));
    assert_refused(mixed(layer.clone()), "LayerNorm");
    assert_refused(mixed(rms), "RmsNorm");
    assert_refused(mixed(group), "GroupNorm");
    assert_refused(mixed(rotary), "RotaryEncoding");
    assert_refused(mixed(positions), "PositionalEncoding");
    let batch = mixed(plain::BatchNormConfig::new(8).init(&device));
    assert_refused(batch.clone(), "BatchNorm");

    // Both ways out.
    let all = MixedPrecision::bf16().cast_norms();
    let model = all.cast(mixed(layer)).unwrap();
    assert_eq!(types(&model), [DType::BF16; 4]);
    let x = numbers([3, 8], 1, &device).cast(DType::BF16);
    assert_eq!(model.inner[0].forward(x).dtype(), DType::BF16);
    let kept = MixedPrecision::bf16().keep(ParamGroup::from_predicate("inner"));
    let model = kept.cast(batch).unwrap();
    assert_eq!(types(&model)[..3], [DType::BF16, DType::BF16, DType::F32]);
}

/// Burn initializes a parameter at its first use.
#[test]
fn a_cast_initializes_nothing() {
    let model: plain::Linear = plain::LinearConfig::new(64, 8).init(&flex());
    let cast = MixedPrecision::bf16().cast(model.clone()).unwrap();
    assert!(!cast.weight.is_initialized() && !model.weight.is_initialized());
    let rounded = model.weight.val().cast(DType::BF16);
    assert_eq!(cast.weight.val().into_data(), rounded.into_data());
    assert!(cast.weight.is_require_grad() && cast.weight.id == model.weight.id);
}

/// It will be in the type of its device.
#[test]
fn a_parameter_of_a_third_type_is_refused_before_it_is_initialized() {
    alone(|| {
        let mut device = flex();
        device.configure(FloatDType::F64).unwrap();
        let model: plain::Linear = plain::LinearConfig::new(8, 8).init(&device);
        let Err(refused) = MixedPrecision::bf16().cast(model.clone()) else {
            panic!("from f64 to bf16");
        };
        assert!(matches!(refused.error(), CastError::NotF32 { .. }));
        assert!(!model.weight.is_initialized());
    });
}

#[test]
fn other_models_are_refused_and_handed_back() {
    let linear = || -> plain::Linear {
        seeded(&flex(), |device| {
            plain::LinearConfig::new(64, 8).init(device)
        })
    };
    let bf16 = MixedPrecision::bf16();
    let refused = |precision: &MixedPrecision, model: plain::Linear| {
        let before = bits(&model);
        let (model, error) = precision.cast(model).unwrap_err().into_parts();
        assert_bits(&bits(&model), &before, &error.to_string());
        error
    };
    let misspelt = bf16.clone().keep(ParamGroup::from_path("wieght"));
    let error = refused(&misspelt, linear());
    assert!(matches!(error, CastError::EmptyGroup { .. }), "{error}");

    let half = MixedPrecision::f16().cast(linear()).unwrap();
    let error = refused(&bf16, half.clone());
    assert!(matches!(error, CastError::NotF32 { .. }), "{error}");

    let back = MixedPrecision::to_f32(half);
    assert_eq!(types(&back), [DType::F32; 2]);
    // The numbers that are nearest to those of before.
    let nearest = linear().weight.val().cast(DType::F16).cast(DType::F32);
    assert_eq!(back.weight.val().into_data(), nearest.into_data());
}

/// The type of a matrix of a model that was not cast, or that loaded a record in f32 afterwards.
#[test]
#[should_panic(expected = "this one is in F32: cast the model with `MixedPrecision`")]
fn matrices_in_f32_are_refused_in_five_bytes() {
    let model: plain::Linear = plain::LinearConfig::new(8, 8).init(&flex());
    let x = Tensor::<2>::ones([1, 8], &flex());
    let grads = gradients(&model, model.forward(x).sum());
    let optim = AdamWConfig::new().in_five_bytes(1);
    let _ = optim.init().step(1e-3, model, grads);
}

#[derive(Module, Debug)]
struct Tokens {
    embedding: plain::Embedding,
    head: plain::Linear,
}

/// Before a weight has changed: a matrix in f32, a type that the rounding does not have, and states
/// with the lower bits of other weights.
#[test]
fn what_the_optimizer_does_not_step_is_refused_before_backward() {
    type Optim = ReleaseOptimizer;
    fn assert_refused<M: Module>(model: M, mut optim: Optim, path: &str, text: &str) -> (M, Optim) {
        let before = bits(&model);
        let refused = optim.try_backward(1e-3, any_loss(), model);
        let (model, error) = refused.unwrap_err().into_parts();
        assert!(
            matches!(&error, ReleaseError::NotSteppable { path: found, .. } if found == path),
            "{error}"
        );
        assert!(error.to_string().contains(text), "{error}");
        let unrun = |_: &M| unreachable!("refused before");
        let refused = optim.try_two_passes(1e-3, model, unrun);
        let (model, again) = refused.unwrap_err().into_parts();
        assert_eq!(again, error);
        let refused = optim.try_step(1e-3, model, GradientsParams::new());
        let (model, again) = refused.unwrap_err().into_parts();
        assert_eq!(again, error);
        assert_bits(&bits(&model), &before, "refused");
        (model, optim)
    }
    let adamw = AdamWConfig::new();
    let five_bytes = || adamw.in_five_bytes(1).init();
    let tokens: Tokens = seeded(&flex(), |device| Tokens {
        embedding: plain::EmbeddingConfig::new(10, 64).init(device),
        head: plain::LinearConfig::new(64, 10).init(device),
    });
    let group = || ParamGroup::from_predicate("embedding");
    let kept = MixedPrecision::bf16().keep(group());
    let cast = || kept.cast(tokens.clone()).unwrap();
    let stochastic = || rounded(Stochastic { seed: 1 });
    let grouped = || adamw.init().with_group(group(), stochastic(), None);
    for (model, optim) in [
        (cast(), five_bytes()),
        (tokens.clone(), five_bytes()),
        // One of Burn's with a group that does not take it.
        (cast(), grouped()),
    ] {
        let optim = optim.with_gradient_release();
        let text = "`with_f32_parameters()`";
        let (_, optim) = assert_refused(model, optim, "embedding.weight", text);
        // A group of an optimizer that takes it.
        steppable(optim.with_group(group(), adamw.build(), None), cast());
    }
    let all = adamw.in_five_bytes(1).with_f32_parameters().init();
    steppable(all.with_gradient_release(), cast());

    let matrix = matrix();
    let f16 = || MixedPrecision::f16().cast(matrix.clone()).unwrap();
    let bf16 = || MixedPrecision::bf16().cast(matrix.clone()).unwrap();
    let bits_of_24 = |optim: ModuleOptimizer| {
        let mut before = rounded(MasterWeights24 { seed: 1 }).init();
        drop(step_without_gradient(bf16(), &mut before, 1e-3));
        optim.load_record(before.to_record())
    };
    let masters = || rounded(MasterWeights).init();
    let masters_of_24 = |seed| rounded(MasterWeights24 { seed }).init();
    // What the optimizer inside does not step.
    let inner = Bf16Weights::new(rounded(MasterWeights), Stochastic { seed: 1 });
    for (model, optim, text) in [
        (f16(), stochastic().init(), "this one is in F16"),
        (f16(), masters(), "this one is in F16"),
        (bf16(), inner.init(), "this one is in F32"),
        (
            f16(),
            bits_of_24(masters_of_24(1)),
            "lower bits of weights in BF16",
        ),
        (
            bf16(),
            bits_of_24(masters()),
            "and not the 3200 of its size",
        ),
        (
            bf16(),
            bits_of_24(stochastic().init()),
            "stochastic rounding does not",
        ),
    ] {
        assert_refused(model, optim.with_gradient_release(), "weight", text);
    }
    let optim = bits_of_24(masters_of_24(2));
    steppable(optim.with_gradient_release(), bf16());
}

/// A loss that no backward pass runs from.
fn any_loss() -> Tensor<1> {
    Tensor::<1>::ones([1], &flex()).require_grad()
}

/// Fails if the optimizer refuses a parameter of the model.
fn steppable<M: Module>(mut optim: ReleaseOptimizer, model: M) -> M {
    optim.step(1e-3, model, GradientsParams::new())
}

fn rounded<R: Rounding>(rounding: R) -> Bf16Weights<AdamW, R> {
    Bf16Weights::new(AdamWConfig::new().build(), rounding)
}

fn matrix() -> plain::Linear {
    let config = plain::LinearConfig::new(64, 100).with_bias(false);
    seeded(&flex(), |device| config.init(device))
}

/// A step with a gradient of zero, which the moments of earlier steps still move.
fn step_without_gradient(
    model: plain::Linear,
    optim: &mut ModuleOptimizer,
    lr: f64,
) -> plain::Linear {
    let x = Tensor::<2>::zeros([1, 64], &flex()).cast(model.weight.val().dtype());
    let grads = gradients(&model, model.forward(x).sum());
    optim.step(lr, model, grads)
}

fn distances(found: &plain::Linear, expected: &plain::Linear) -> f32 {
    crate::harness::distance(&bits(found), &bits(expected))
}

/// The record of AdamW in f32, with the weights of that run and with weights that were cast.
#[test]
fn states_of_a_run_in_f32_go_on() {
    let adamw = AdamWConfig::new().in_one_pass();
    let (mut model, mut optim) = (matrix(), adamw.clone().init());
    for step in 0..3 {
        let x = numbers([4, 64], step, &flex());
        let grads = gradients(&model, model.forward(x).square().mean());
        model = optim.step(1e-2, model, grads);
    }
    let record = || optim.to_record();
    let five_bytes = AdamWConfig::new().in_five_bytes(7);
    let bf16 = MixedPrecision::bf16();
    let params = bf16.params(&model).unwrap();
    let with_bits = five_bytes.weights_from_f32(model.clone(), &params, DType::BF16, record());
    let cast = (bf16.cast(model.clone()).unwrap(), record());
    for (half, record) in [with_bits.unwrap(), cast] {
        let mut resumed = five_bytes.clone().init().load_record(record);
        let start = five_bytes
            .weights_to_f32(half.clone(), resumed.to_record())
            .unwrap();
        let half = step_without_gradient(half, &mut resumed, 1e-2);
        let found = five_bytes
            .weights_to_f32(half, resumed.to_record())
            .unwrap();
        let mut exact = adamw.clone().init().load_record(optim.to_record());
        let expected = step_without_gradient(start.clone(), &mut exact, 1e-2);
        let moved = distances(&expected, &start);
        let off = distances(&found, &expected);
        // The moments of AdamW in f32 were rounded to 8 bits before the step.
        assert!(moved > 4e-3 && off < 0.1 * moved, "{off} of {moved}");
    }
}

/// The bits beside a weight in half precision are in the weight once it is in f32: a step with the
/// same record does not add them again.
#[test]
fn bits_are_added_to_a_weight_once() {
    let five_bytes = AdamWConfig::new().in_five_bytes(7).with_f32_parameters();
    let mut model = MixedPrecision::bf16().cast(matrix()).unwrap();
    let mut optim = five_bytes.clone().init();
    for step in 0..2 {
        let x = numbers([4, 64], step, &flex()).cast(DType::BF16);
        let loss = model.forward(x).cast(DType::F32).square().mean();
        let grads = gradients(&model, loss);
        model = optim.step(1e-3, model, grads);
    }
    let in_f32 = five_bytes.weights_to_f32(model, optim.to_record()).unwrap();
    let before = bits(&in_f32);
    let after = step_without_gradient(in_f32, &mut optim, 0.0);
    assert_bits(&bits(&after), &before, "a rate of 0");
}

/// At the call, and not in the middle of the backward pass; of each group.
#[test]
fn optimizers_that_take_no_gradients_in_f32_are_refused() {
    let model = || MixedPrecision::f16().cast(matrix()).unwrap();
    let adamw = AdamWConfig::new();
    let five_bytes = || adamw.in_five_bytes(7).init();
    let group = || ParamGroup::from_path("weight");
    for optim in [
        adamw.init().with_gradient_release(),
        adamw.in_one_pass().init().with_gradient_release(),
        five_bytes()
            .with_gradient_release()
            .with_group(group(), adamw.build(), None),
        // Groups of Burn's optimizer, and an optimizer of matrices only.
        five_bytes()
            .with_group(group(), adamw.build(), None)
            .with_gradient_release(),
        five_bytes()
            .with_group(group(), MuonConfig::new().build(), None)
            .with_gradient_release(),
    ] {
        let mut optim = optim.with_f32_gradients();
        let refused = optim.try_backward(1e-3, any_loss(), model()).unwrap_err();
        assert_error!(refused.error(), NotSteppable, "takes no gradient in f32");
        let grads = GradientsParams::new();
        let refused = optim.try_step(1e-3, refused.into_model(), grads);
        assert!(refused.is_err());
    }
    // Those that compute in f32.
    for optim in [
        five_bytes(),
        AdaLomoConfig::new().init(),
        CameConfig::new().init(),
    ] {
        steppable(optim.with_gradient_release().with_f32_gradients(), model());
    }
}

/// Burn keeps the update of running statistics for the next forward pass, in the type of before.
#[test]
fn running_statistics_are_cast_with_their_update() {
    let device = flex();
    let batch_norm = plain::BatchNormConfig::new(8).init(&device);
    let model = mixed(batch_norm);
    let x = numbers([4, 8], 1, &device);
    let _ = model.inner[0].forward(x.clone() + 3.0);
    let expected = model.inner[0].running_mean.value_sync().cast(DType::BF16);
    let cast = MixedPrecision::bf16().cast_norms().cast(model).unwrap();
    let valid = cast.valid();
    let mean = valid.inner[0].running_mean.value_sync();
    assert_eq!(mean.into_data(), expected.inner().into_data());
    let out = valid.inner[0].forward(x.inner().cast(DType::BF16));
    assert_eq!(out.dtype(), DType::BF16);
}

#[cfg(feature = "ndarray")]
#[test]
#[allow(deprecated)] // Burn 0.22 deprecates NdArray.
fn a_device_without_the_type_is_refused() {
    let model: plain::Linear = plain::LinearConfig::new(8, 8).init(&Device::ndarray().autodiff());
    let refused = MixedPrecision::bf16().cast(model).unwrap_err();
    assert!(matches!(refused.error(), CastError::NoSuchType { .. }));
}

/// In place of a panic in the middle of backward.
#[cfg(feature = "ndarray")]
#[test]
#[allow(deprecated)] // Burn 0.22 deprecates NdArray.
fn moments_in_bf16_are_refused_on_a_device_without_it() {
    let device = Device::ndarray().autodiff();
    let model: plain::Linear = plain::LinearConfig::new(8, 8).init(&device);
    let adamw = || AdamWConfig::new().with_beta_2(0.99).in_one_pass();
    let lion = LionConfig::new().in_one_pass();
    let stable = StableAdamWConfig::new().with_beta_2(0.99).build();
    for optim in [
        adamw().with_bf16_moments().init(),
        adamw().with_bf16_moments().offloaded().init(),
        lion.with_bf16_moments().init(),
        stable.with_bf16_moments().init(),
    ] {
        let mut optim = optim.with_gradient_release();
        let none = GradientsParams::new();
        let refused = optim.try_step(1e-3, model.clone(), none);
        let text = refused.unwrap_err().error().to_string();
        assert!(text.contains("the device has no bf16"), "{text}");
    }
    // After steps on another device, whose states are on it or are loaded.
    for is_loaded in [false, true] {
        let optim = || adamw().with_bf16_moments().init().with_gradient_release();
        let (mut trained, mut optim_there) = (matrix(), optim());
        let x = Tensor::<2>::ones([2, 64], &flex());
        trained = optim_there.backward(1e-3, trained.forward(x).sum(), trained);
        let mut optim = match is_loaded {
            true => optim().load_record(optim_there.to_record()),
            false => optim_there,
        };
        let none = GradientsParams::new();
        let refused = optim.try_step(1e-3, trained.fork(&device), none);
        let refused = refused.unwrap_err();
        let text = refused.error().to_string();
        assert!(text.contains("the device has no bf16"), "{text}");
    }
    steppable(adamw().init().with_gradient_release(), model);
}
