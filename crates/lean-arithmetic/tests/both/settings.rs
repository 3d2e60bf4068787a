//! Settings that no step can be taken with, and clipping that the configuration asks for.

use burn::grad_clipping::GradientClippingConfig as Clipping;
use burn::optim::decay::WeightDecayConfig;
use burn::optim::momentum::MomentumConfig;
use burn::optim::{AdamConfig, AdamWConfig, SgdConfig};

use super::noise::Noise;
use super::run::Run;
use super::side::{
    AdaLomoConfig, CameConfig, InOnePass, Lean, LionConfig, Optimizer, RAdamConfig,
    StableAdamWConfig, Tensor, lion,
};

/// What building an optimizer panics with.
pub(crate) fn refused<T>(build: impl FnOnce() -> T) -> String {
    let build = std::panic::AssertUnwindSafe(build);
    let Err(payload) = std::panic::catch_unwind(build) else {
        panic!("it was built");
    };
    *payload.downcast::<String>().expect("it says why")
}

/// That each optimizer is refused, with this in the message.
macro_rules! assert_refused {
    ($($message:literal: $optimizer:expr;)+) => {$(
        let said = refused(|| $optimizer);
        assert!(said.contains($message), "{}: {said}", $message);
    )+};
}

fn decay(penalty: f32) -> Option<WeightDecayConfig> {
    Some(WeightDecayConfig::new(penalty))
}

fn sgd(momentum: MomentumConfig) -> SgdConfig {
    SgdConfig::new().with_momentum(Some(momentum))
}

#[test]
fn settings_out_of_range_are_named() {
    let adam = AdamConfig::new;
    let adamw = AdamWConfig::new;
    let adalomo = AdaLomoConfig::new;
    let came = CameConfig::new;
    let radam = RAdamConfig::new;
    let stable = StableAdamWConfig::new;
    let momentum = MomentumConfig::new;
    let by_norm = |threshold| Some(Clipping::Norm(threshold));
    let by_value = |threshold| Some(Clipping::Value(threshold));
    assert_refused! {
        "Adam: beta_2 is 1.5": adam().with_beta_2(1.5).in_one_pass();
        "Adam: weight_decay is -0.5": adam().with_weight_decay(decay(-0.5)).in_one_pass();
        "AdamW: beta_1 is 1": adamw().with_beta_1(1.0).in_one_pass();
        "AdamW: beta_1 is NaN": adamw().with_beta_1(f32::NAN).in_one_pass();
        "AdamW: epsilon is -": adamw().with_epsilon(-1e-8).in_one_pass();
        "AdamW: epsilon is inf": adamw().with_epsilon(f32::INFINITY).in_one_pass();
        "AdamW: max_lr is 0": adamw().in_one_pass().with_decoupled_lr(0.0);
        "Lion: beta_1 is -": lion(&LionConfig::new().with_beta_1(-0.5));
        "RAdam: beta_2 is 1": radam().with_beta_2(1.0).build();
        "StableAdamW: weight_decay is -1": stable().with_weight_decay(-1.0).build();
        "Came: beta_3 is NaN": came().with_beta_3(f64::NAN).build();
        "Adafactor: decay_rate is 0.8": adalomo().with_decay_rate(0.8).build();
        "Adafactor: clip_threshold is 0": adalomo().with_clip_threshold(0.0).build();
        "SGD: weight_decay is -0.5": SgdConfig::new().with_weight_decay(decay(-0.5)).in_one_pass();
        "SGD: momentum is 1": sgd(momentum().with_momentum(1.0)).in_one_pass();
        "SGD: momentum is -": sgd(momentum().with_momentum(-0.1)).in_one_pass();
        "SGD: dampening is NaN": sgd(momentum().with_dampening(f64::NAN)).in_one_pass();
        "the threshold is 0": adamw().with_grad_clipping(by_norm(0.0)).in_one_pass();
        "the threshold is -1": radam().with_grad_clipping(by_value(-1.0)).build();
        "the threshold is NaN": came().with_grad_clipping(by_value(f32::NAN)).build();
        "the threshold is 0": adalomo().with_grad_clipping(by_norm(0.0)).build();
        // Moments in bf16 that keep more than 0.99 of themselves would stand still.
        "AdamW: beta_2 is 0.999": adamw().in_one_pass().with_bf16_moments();
        "RAdam: beta_2 is 0.999": radam().build().with_bf16_moments();
    }
}

#[test]
fn clipping_of_the_configuration_is_the_optimizers_own() {
    /// Compares steps that clip with steps whose gradient was clipped before.
    fn check<O: Optimizer>(name: &str, build: impl Fn(Option<Clipping>) -> O) {
        let mut noise = Noise(3);
        let (weight, grad) = (noise.numbers([5, 7]), noise.numbers([5, 7]));
        let step = |clipping: Option<Clipping>, grad: Tensor<2>| {
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
        assert!(found == step(clipping(), clipped), "{name}: not clipped");
        assert!(
            found != step(None, grad),
            "{name}: clipping changes nothing"
        );
    }
    check("adalomo", |clipping| {
        AdaLomoConfig::new().with_grad_clipping(clipping).build()
    });
    check("came", |clipping| {
        CameConfig::new().with_grad_clipping(clipping).build()
    });
    check("radam", |clipping| {
        RAdamConfig::new().with_grad_clipping(clipping).build()
    });
    check("stable adamw", |clipping| {
        StableAdamWConfig::new()
            .with_grad_clipping(clipping)
            .build()
    });
}

#[test]
fn a_tensor_without_elements_is_stepped() {
    fn check(optimizer: impl Optimizer) {
        let empty = || Noise(1).numbers([0, 3]);
        let mut run = Run::new(optimizer, empty());
        run.step(1e-2, empty());
        assert!(run.weights().is_empty());
    }
    check(AdaLomoConfig::new().build());
    check(CameConfig::new().build());
}

/// As in Burn.
#[test]
fn an_infinite_threshold_clips_nothing() {
    let mut noise = Noise(5);
    let (weight, grad) = (noise.numbers([5, 7]), noise.numbers([5, 7]));
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
