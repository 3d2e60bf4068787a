//! Optimizers in one pass with gradient release on the device: plain Burn's weights up to rounding.

use burn::record::{FullPrecisionSettings, NamedMpkBytesRecorder, Recorder};
use burn_gradient_release_optim::InOnePass;

use super::Inner;
use super::one_pass::STEPS;
use crate::harness::prelude::*;

/// Plain Burn with one optimizer, release with the other in one pass.
fn near_with_release<S: Scenario>(
    plain: impl SimpleOptimizer<Inner> + 'static,
    lean: impl SimpleOptimizer<Inner> + 'static,
) {
    type P = Plain<Inner>;
    type R = Release<Inner>;
    turn::take::<Inner>();
    let start = Start::new::<S>(Size::Small);
    let mut plain: OptimizerAdaptor<_, S::Model<P>, P> = OptimizerAdaptor::from(plain);
    let lean: OptimizerAdaptor<_, S::Model<R>, R> = OptimizerAdaptor::from(lean);
    let mut lean = lean.with_gradient_release();
    let recorder = NamedMpkBytesRecorder::<FullPrecisionSettings>::default();
    let (mut one, mut other) = (start.model::<S, P>(), start.model::<S, R>());
    for step in 0..STEPS {
        if step == STEPS / 2 {
            // Each goes on from the states of the other.
            let of_plain: Vec<u8> = recorder.record(plain.to_record(), ()).expect("plain data");
            let of_lean: Vec<u8> = recorder.record(lean.to_record(), ()).expect("plain data");
            let device = Default::default();
            plain = plain.load_record(recorder.load(of_lean, &device).expect("Burn's record"));
            lean = lean.load_record(recorder.load(of_plain, &device).expect("Burn's record"));
        }
        let loss = S::loss::<P>(&one, Size::Small, step);
        one = ordinary_step(RATE, one, &mut plain, loss);
        other = lean.arm(RATE, other);
        let loss = S::loss::<R>(&other, Size::Small, step);
        let grads = GradientsParams::from_grads(loss.backward(), &other);
        other = lean.step(RATE, other, grads);
        let wanted = Weights::of::<P, _>(&one);
        let context = format!("after step {step}");
        Weights::of::<R, _>(&other).assert_near(&wanted, WITH_RELEASE, context);
    }
}

/// Gradients of steps after the first differ too. Beside a hundredth, by which Adam moves a weight
/// in a step.
const WITH_RELEASE: f32 = 1e-4;

#[test]
fn with_release_weights_are_plain_burns() {
    // Where a gradient is rounding alone, Adam would step by its sign.
    let adamw = AdamWConfig::new().with_epsilon(1e-3);
    near_with_release::<Mlp>(adamw.build(), adamw.in_one_pass());
    near_with_release::<Transformer>(adamw.build(), adamw.in_one_pass());
    near_with_release::<Tied>(adamw.build(), adamw.in_one_pass());
    let sgd = SgdConfig::new().with_momentum(Some(MomentumConfig::new()));
    near_with_release::<Transformer>(sgd.build(), sgd.in_one_pass());
}
