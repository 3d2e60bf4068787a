//! Gradients that are not finite.

use super::by_hand::{global_norm, gradients};
use super::models::Encoder;
use crate::accumulation::bits_of;
use crate::harness::prelude::*;

/// The paths of the parameters, in the order of the model's fields.
const PATHS: [&str; PARAMS] = [
    "first.weight",
    "first.bias",
    "second.weight",
    "second.bias",
    "tied",
];

fn optim() -> ReleaseOptimizer {
    adamw().with_gradient_release().with_non_finite_stop()
}

/// The loss, with a gradient that is not finite in the weight of one layer, and in no other.
fn planted(model: &Small, at: usize, factor: f64) -> Tensor<1> {
    let weight = [&model.first.weight, &model.second.weight][at / 2];
    model.loss(0) + weight.val().sum() * factor
}

#[test]
fn in_one_pass_nothing_is_stepped_after_it() {
    for at in [0, 2] {
        for factor in [f64::NAN, f64::INFINITY] {
            let mut optim = optim();
            // The first pass steps at the end of backward, where the order is that of the tape.
            let model = release_step(small(), &mut optim, |model| model.loss(1));
            let before = model.values();
            let model = optim.arm(LR, model);
            let grads = gradients(&model, planted(&model, at, factor));
            let refused = optim.try_step(LR, model, grads).unwrap_err();
            let ReleaseError::NonFinite {
                path,
                stepped,
                armed,
            } = refused.error().clone()
            else {
                panic!("{:?}", refused.error());
            };
            assert_eq!(path, PATHS[at]);
            assert_eq!(armed, PARAMS);
            let (model, grads) = refused.into_given();
            let after = model.values();
            let changed = before.iter().zip(&after).filter(|(a, b)| a != b).count();
            assert_eq!(changed, stepped);
            assert!(stepped < PARAMS);
            // Gradients of layers further back come later.
            assert_eq!(after[..=at], before[..=at]);
            // And so it stays, until a checkpoint is loaded.
            let refused = optim.try_step(LR, model, grads).unwrap_err();
            assert!(matches!(refused.error(), ReleaseError::NonFinite { .. }));
            let refused = optim.try_arm(LR, refused.into_given().0);
            assert_eq!(refused.is_err(), stepped > 0);
        }
    }
}

/// Clipping by the global norm has no coefficient for it, so it is refused without being asked to.
#[test]
fn in_two_passes_and_unarmed_nothing_is_stepped_at_all() {
    let clipping = NormClipping::GlobalNorm { max_norm: 1.0 };
    let clipped = || adamw().with_gradient_release().with_norm_clipping(clipping);
    let before = bits(&small());
    for (at, factor) in [
        (0, f64::NAN),
        (0, f64::NEG_INFINITY),
        (2, f64::NAN),
        (2, f64::NEG_INFINITY),
    ] {
        for mut optim in [optim(), clipped()] {
            let planted = |model: &Small| planted(model, at, factor);
            let none = GradientsParams::new();
            let refused = optim
                .try_two_passes(LR, small(), none, planted)
                .unwrap_err();
            let expected = ReleaseError::NonFinite {
                path: PATHS[at].into(),
                stepped: 0,
                armed: 0,
            };
            assert_eq!(*refused.error(), expected);
            let model = refused.into_model();
            assert_eq!(bits(&model), before);

            let grads = gradients(&model, planted(&model));
            let refused = optim.try_step(LR, model, grads).unwrap_err();
            assert_eq!(*refused.error(), expected);
            let (model, grads) = refused.into_given();
            assert_eq!(grads.len(), PARAMS);
            assert_eq!(bits(&model), before);
            // Another batch is not what was refused.
            let grads = gradients(&model, model.loss(0));
            let model = optim.step(LR, model, grads);
            assert_ne!(bits(&model), before);
            optim.two_passes(LR, model, |model| model.loss(0));
        }
    }
}

/// A measuring pass that was refused may get other gradients.
#[test]
fn other_gradients_are_measured_after_a_refusal() {
    let mut optim = optim();
    let frozen = optim.try_arm_to_measure(small().no_grad(), GradientsParams::new());
    // Their gradients are ordinary.
    let model = frozen.unwrap().set_require_grad(true);
    let of = |factor| gradients(&model, planted(&model, 0, factor));
    let refused = optim.try_measured(&model, of(f64::NAN)).unwrap_err();
    assert_error!(refused.error(), NonFinite);
    let measured = optim.try_measured(&model, of(0.0)).unwrap();
    let expected = global_norm(&model, &of(0.0));
    assert!((measured.norm() / expected - 1.0).abs() < 1e-6);
}

/// Sums that an optimizer that is gone has left in the model are looked at before a step, too.
#[test]
fn sums_that_were_left_are_measured() {
    let mut gone = adamw().with_gradient_release();
    let model = small();
    let sums = gradients(&model, planted(&model, 2, f64::NAN));
    let model = gone.arm_accumulated(LR, model, sums);
    drop(gone);
    let mut optim = optim();
    let grads = gradients(&model, model.loss(0));
    let refused = optim.try_step(LR, model, grads).unwrap_err();
    let expected = ReleaseError::NonFinite {
        path: PATHS[2].into(),
        stepped: 0,
        armed: 0,
    };
    assert_eq!(*refused.error(), expected);
    // Nothing was taken: the sums are there the next time, too.
    let (model, grads) = refused.into_given();
    let refused = optim.try_step(LR, model, grads).unwrap_err();
    assert_eq!(*refused.error(), expected);
}

/// Where nothing was stepped, disarming hands back all sums of the window.
#[test]
fn the_sums_of_a_window_survive() {
    let mut optim = optim().with_first_pass(FirstPass::Small);
    let mut sums = ReleaseAccumulator::new();
    let armed = sums.arm(small());
    let grads = gradients(&armed, armed.loss(1));
    sums.accumulate(&armed, grads);
    let plain = small();
    let expected = gradients(&plain, plain.loss(1));
    let model = optim.arm_accumulated(LR, armed, sums.grads());
    let grads = gradients(&model, model.loss(0) * f64::NAN);
    let refused = optim.try_step(LR, model, grads).unwrap_err();
    let is_first = matches!(refused.error(), ReleaseError::NonFinite { stepped: 0, .. });
    assert!(is_first, "{}", refused.error());
    let model = refused.into_model();
    let (model, sums) = optim.try_disarm_accumulated(model).unwrap();
    assert_eq!(sums.len(), PARAMS);
    assert_eq!(bits_of(&sums, &model), bits_of(&expected, &plain));
}

/// Plain Burn's weights, where nothing is wrong, and the norm by hand.
#[test]
fn looking_changes_nothing() {
    let device = flex();
    for in_scopes in [false, true] {
        let loss = |model: &Encoder, step| match in_scopes {
            true => model.loss_in_scopes(step, &device),
            false => model.loss(step, &device),
        };
        let (mut plain, mut plain_optim) = (seeded(&device, Encoder::new), adamw());
        let mut optim = optim().with_grad_norm();
        let mut model = seeded(&device, Encoder::new);
        for step in 0..5 {
            let norm = global_norm(&plain, &gradients(&plain, loss(&plain, step)));
            plain = plain_step(plain, &mut plain_optim, |model| loss(model, step));
            model = release_step(model, &mut optim, |model| loss(model, step));
            assert_bits(&bits(&model), &bits(&plain), &format!("step {step}"));
            let report = optim.last_step().unwrap();
            assert_eq!(report.grad_norm(), Some(norm));
            assert_eq!(report.clip_coefficient(), None);
            assert_eq!(report.count(Outcome::Ordinary), 0);
        }
    }
}
