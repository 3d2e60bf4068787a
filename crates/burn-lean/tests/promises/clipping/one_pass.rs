//! Rules of norms, released and in ordinary steps. Their numbers are compared with the papers' in
//! `reference`.

use super::by_hand::gradients;
use super::models::{LARGEST, deep, deep_loss};
use crate::harness::prelude::*;
use crate::heap::peak_of;

const STEPS: usize = 68;
const RATE: f64 = 0.05;

fn loss(model: &Small, step: usize) -> Tensor<1> {
    let spike = if step % 17 == 13 { 40.0 } else { 1.0 };
    model.loss(step % 5) * spike
}

fn optim(clipping: NormClipping) -> ReleaseOptimizer {
    let optim = SgdConfig::new().init().with_gradient_release();
    optim.with_norm_clipping(clipping)
}

/// One step inside backward, in two passes where the rule needs them.
fn release<M: Module>(optim: &mut ReleaseOptimizer, model: M, loss: impl Fn(&M) -> Tensor<1>) -> M {
    match optim.needs_two_passes() {
        true => optim.two_passes(RATE, model, loss).0,
        false => optim.backward(RATE, loss(&model), model),
    }
}

/// Spikes among the gradients, and half way a resume with a record that was saved.
#[test]
fn released_steps_are_the_ordinary_ones() {
    let adaptive = AdaptiveClippingConfig::new().with_clip_factor(0.05);
    let auto = AutoClipConfig::new().with_percentile(25.0);
    for clipping in [
        NormClipping::ZClip(ZClipConfig::new().with_warm_up(5)),
        NormClipping::Adaptive(adaptive),
        NormClipping::AutoClip(auto),
    ] {
        let (mut ordinary, mut ordinary_optim) = (small(), optim(clipping));
        let (mut model, mut released) = (small(), optim(clipping));
        let (mut unclipped, mut plain_optim) = (small(), SgdConfig::new().init());
        for step in 0..STEPS {
            if step == STEPS / 2 {
                let saved = serde_json::to_string(&released.gradient_record()).unwrap();
                let record = serde_json::from_str(&saved).unwrap();
                released = optim(clipping).load_gradient_record(record);
            }
            model = release(&mut released, model, |model| loss(model, step));
            let report = released.last_step().unwrap();
            assert_eq!(report.count(Outcome::Released), PARAMS);

            let grads = gradients(&ordinary, loss(&ordinary, step));
            ordinary = ordinary_optim.step(RATE, ordinary, grads);
            let what = format!("{clipping:?}, step {step}");
            assert_bits(&bits(&model), &bits(&ordinary), &what);
            unclipped = plain_step(unclipped, &mut plain_optim, |model| loss(model, step));
        }
        assert_ne!(bits(&model), bits(&unclipped), "{clipping:?}");
    }
}

/// Whose squares are infinite in 32 bits, and zero: the history survives them, in JSON too.
#[test]
fn auto_clip_remembers_norms_of_any_size() {
    let config = AutoClipConfig::new().with_percentile(50.0);
    let run = |resumes: bool| {
        let mut optim = optim(NormClipping::AutoClip(config));
        let mut model = small();
        for step in 0..12usize {
            let factor = [1.0, 1e20, 1e-20][step.saturating_sub(7).min(2)];
            if resumes {
                let saved = serde_json::to_string(&optim.gradient_record()).unwrap();
                let record = serde_json::from_str(&saved).unwrap();
                optim = optim.load_gradient_record(record);
            }
            model = optim.backward(RATE, model.loss(step) * factor, model);
        }
        bits(&model)
    };
    let found = run(true);
    assert_bits(&found, &run(false), "resumed");
    let mut values = found.iter().flat_map(|(_, bits)| bits);
    assert!(values.all(|bits| f32::from_bits(*bits).is_finite()));
}

/// A first pass keeps no gradient, and a rule of one pass takes at most one gradient more than a step
/// without clipping, for the squares of one.
#[test]
fn takes_the_memory_of_one_gradient_more() {
    let peak = |mut optim: ReleaseOptimizer| {
        let mut model = seeded(&flex(), deep);
        let mut last = 0;
        for step in 0..2 {
            let loss = |model: &Vec<Linear>| deep_loss(model, step);
            (model, last) = peak_of(|| release(&mut optim, model, loss));
        }
        last
    };
    alone(|| {
        let sgd = || SgdConfig::new().init().with_gradient_release();
        let global = NormClipping::GlobalNorm { max_norm: 1e-3 };
        let adaptive = NormClipping::Adaptive(AdaptiveClippingConfig::new());
        let auto = NormClipping::AutoClip(AutoClipConfig::new());
        let plain = peak(sgd());
        for (what, optim, gradients) in [
            ("the global norm", optim(global), 0),
            ("adaptive clipping", optim(adaptive), 1),
            ("auto clip", optim(auto), 1),
            ("the norm", sgd().with_grad_norm(), 1),
        ] {
            let found = peak(optim);
            println!("{what}: {found} bytes, {plain} without");
            // Norms, and what a thread packs of a product at the moment of the peak or at another.
            let most = plain + gradients * LARGEST + LARGEST / 8 + (17 << 10);
            assert!(found <= most, "{what}");
        }
    });
}
