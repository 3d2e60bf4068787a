//! Settings that no step can be taken with, and clipping that the configuration asks for.

use std::panic::{AssertUnwindSafe, catch_unwind};

use burn::{
    backend::Flex,
    grad_clipping::GradientClippingConfig as Clipping,
    optim::{
        AdaGradConfig, AdamConfig, AdamWConfig, RmsPropConfig, SgdConfig, SimpleOptimizer,
        decay::WeightDecayConfig, momentum::MomentumConfig,
    },
    tensor::Tensor,
};
use burn_lean_optim::{
    AdaLomoConfig, AdafactorConfig, CameConfig, InOnePass, Lean, LionConfig, RAdamConfig,
    StableAdamWConfig,
};

use crate::harness::{Noise, Run};

fn refused<T>(build: impl FnOnce() -> T) -> String {
    let Err(payload) = catch_unwind(AssertUnwindSafe(build)) else {
        panic!("it was built");
    };
    *payload.downcast::<String>().expect("it says why")
}

fn decay(penalty: f32) -> Option<WeightDecayConfig> {
    Some(WeightDecayConfig::new(penalty))
}

fn sgd(momentum: MomentumConfig) -> SgdConfig {
    SgdConfig::new().with_momentum(Some(momentum))
}

#[test]
fn settings_out_of_range_are_named() {
    let adamw = AdamWConfig::new;
    let said = [
        (
            "AdamW: beta_1 is 1",
            refused(|| adamw().with_beta_1(1.0).in_one_pass()),
        ),
        (
            "AdamW: epsilon is -",
            refused(|| adamw().with_epsilon(-1e-8).in_one_pass()),
        ),
        (
            "AdamW: max_lr is 0",
            refused(|| adamw().in_one_pass().with_decoupled_lr(0.0)),
        ),
        (
            "Adam: beta_2 is 1.5",
            refused(|| AdamConfig::new().with_beta_2(1.5).in_one_pass()),
        ),
        (
            "Lion: beta_1 is -",
            refused(|| LionConfig::new().with_beta_1(-0.5).build()),
        ),
        (
            "RAdam: beta_2 is 1",
            refused(|| RAdamConfig::new().with_beta_2(1.0).build()),
        ),
        (
            "StableAdamW: weight_decay is -1",
            refused(|| StableAdamWConfig::new().with_weight_decay(-1.0).build()),
        ),
        (
            "Came: beta_3 is NaN",
            refused(|| CameConfig::new().with_beta_3(f64::NAN).build()),
        ),
        (
            "Adafactor: decay_rate is 0.8",
            refused(|| AdaLomoConfig::new().with_decay_rate(0.8).build()),
        ),
        (
            "Adafactor: clip_threshold is 0",
            refused(|| AdaLomoConfig::new().with_clip_threshold(0.0).build()),
        ),
        (
            "AdamW: beta_2 is 0.999",
            refused(|| adamw().in_one_pass().with_bf16_moments()),
        ),
        (
            "RAdam: beta_2 is 0.999",
            refused(|| RAdamConfig::new().build().with_bf16_moments()),
        ),
        (
            "AdaGrad: the share of the sum of squares that is kept is 1",
            refused(|| AdaGradConfig::new().in_one_pass().with_bf16_moments()),
        ),
        (
            "AdamW: epsilon is inf",
            refused(|| adamw().with_epsilon(f32::INFINITY).in_one_pass()),
        ),
        (
            "AdamW: beta_1 is NaN",
            refused(|| adamw().with_beta_1(f32::NAN).in_one_pass()),
        ),
        (
            "Adam: weight_decay is -0.5",
            refused(|| {
                AdamConfig::new()
                    .with_weight_decay(decay(-0.5))
                    .in_one_pass()
            }),
        ),
        (
            "SGD: weight_decay is -0.5",
            refused(|| {
                SgdConfig::new()
                    .with_weight_decay(decay(-0.5))
                    .in_one_pass()
            }),
        ),
        (
            "SGD: momentum is 1",
            refused(|| sgd(MomentumConfig::new().with_momentum(1.0)).in_one_pass()),
        ),
        (
            "SGD: momentum is -",
            refused(|| sgd(MomentumConfig::new().with_momentum(-0.1)).in_one_pass()),
        ),
        (
            "SGD: dampening is NaN",
            refused(|| sgd(MomentumConfig::new().with_dampening(f64::NAN)).in_one_pass()),
        ),
        (
            "the threshold is 0",
            refused(|| {
                adamw()
                    .with_grad_clipping(Some(Clipping::Norm(0.0)))
                    .in_one_pass()
            }),
        ),
        (
            "the threshold is -1",
            refused(|| {
                RAdamConfig::new()
                    .with_grad_clipping(Some(Clipping::Value(-1.0)))
                    .build()
            }),
        ),
        (
            "the threshold is NaN",
            refused(|| {
                CameConfig::new()
                    .with_grad_clipping(Some(Clipping::Value(f32::NAN)))
                    .build()
            }),
        ),
        (
            "the threshold is 0",
            refused(|| {
                AdaLomoConfig::new()
                    .with_grad_clipping(Some(Clipping::Norm(0.0)))
                    .build()
            }),
        ),
        (
            "AdaGrad: epsilon is -",
            refused(|| AdaGradConfig::new().with_epsilon(-1e-5).in_one_pass()),
        ),
        (
            "AdaGrad: lr_decay is -1",
            refused(|| AdaGradConfig::new().with_lr_decay(-1.0).in_one_pass()),
        ),
        (
            "AdaGrad: weight_decay is -0.5",
            refused(|| {
                AdaGradConfig::new()
                    .with_weight_decay(decay(-0.5))
                    .in_one_pass()
            }),
        ),
        (
            "RMSProp: alpha is 1",
            refused(|| RmsPropConfig::new().with_alpha(1.0).in_one_pass()),
        ),
        (
            "RMSProp: momentum is 1.5",
            refused(|| RmsPropConfig::new().with_momentum(1.5).in_one_pass()),
        ),
        (
            "RMSProp: epsilon is -",
            refused(|| RmsPropConfig::new().with_epsilon(-1e-5).in_one_pass()),
        ),
        (
            "RMSProp: weight_decay is -0.5",
            refused(|| {
                RmsPropConfig::new()
                    .with_weight_decay(decay(-0.5))
                    .in_one_pass()
            }),
        ),
        (
            "the threshold is -1",
            refused(|| {
                AdafactorConfig::new()
                    .with_grad_clipping(Some(Clipping::Norm(-1.0)))
                    .build()
            }),
        ),
    ];
    for (expected, said) in said {
        assert!(said.contains(expected), "{expected}: {said}");
    }
}

/// Compares steps that clip with steps whose gradient was clipped before.
fn assert_clips<O: SimpleOptimizer<Flex>>(build: impl Fn(Option<Clipping>) -> O) {
    let mut noise = Noise(3);
    let (weight, grad) = (
        noise.tensor([5, 7], Noise::number),
        noise.tensor([5, 7], Noise::number),
    );
    let step = |clipping: Option<Clipping>, grad: Tensor<Flex, 2>| {
        let mut run = Run::new(build(clipping), weight.clone());
        // The second step knows what the first one has seen.
        for scale in [1.0, 100.0] {
            run.step(1e-2, grad.clone() * scale);
        }
        run.weights()
    };
    let clipping = || Some(Clipping::Value(1e-3));
    let clipped = grad.clone().clamp(-1e-3, 1e-3);
    let found = step(clipping(), grad.clone());
    // Clipped already, the larger one is clipped to the same.
    assert!(found == step(clipping(), clipped), "not clipped");
    assert!(found != step(None, grad), "clipping changes nothing");
}

#[test]
fn clipping_of_the_configuration_is_the_optimizers_own() {
    assert_clips(|clipping| AdaLomoConfig::new().with_grad_clipping(clipping).build());
    assert_clips(|clipping| AdafactorConfig::new().with_grad_clipping(clipping).build());
    assert_clips(|clipping| CameConfig::new().with_grad_clipping(clipping).build());
}

#[test]
fn a_tensor_without_elements_is_stepped() {
    let empty = || Tensor::<Flex, 2>::zeros([0, 3], &Default::default());
    let mut run = Run::new(AdaLomoConfig::new().build(), empty());
    run.step(1e-2, empty());
    assert!(run.weights().is_empty());
    let mut run = Run::new(CameConfig::new().build(), empty());
    run.step(1e-2, empty());
    assert!(run.weights().is_empty());
}

/// As in Burn.
#[test]
fn an_infinite_threshold_clips_nothing() {
    let mut noise = Noise(5);
    let weight: Tensor<Flex, 2> = noise.tensor([5, 7], Noise::number);
    let grad: Tensor<Flex, 2> = noise.tensor([5, 7], Noise::number);
    let step = |clipping: Option<Clipping>| {
        let adamw = AdamWConfig::new().with_grad_clipping(clipping);
        let mut run = Run::new(adamw.in_one_pass(), weight.clone());
        run.step(1e-2, grad.clone() * 100.0);
        run.weights()
    };
    let unclipped = step(None);
    assert!(step(Some(Clipping::Value(f32::INFINITY))) == unclipped);
    assert!(step(Some(Clipping::Norm(f32::INFINITY))) == unclipped);
    assert!(step(Some(Clipping::Norm(1.0))) != unclipped);
}
