//! Gradients that are not finite.

use super::by_hand::gradients;
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

fn at(place: usize, stepped: usize) -> ReleaseError {
    ReleaseError::NonFinite {
        path: PATHS[place].into(),
        stepped,
        of: PARAMS,
    }
}

#[test]
fn in_one_pass_nothing_is_stepped_after_it() {
    for place in [0, 2] {
        for factor in [f64::NAN, f64::INFINITY] {
            let mut optim = optim();
            let model = release_step(small(), &mut optim, |model| model.loss(1));
            let before = model.values();
            let record = optim.to_record();
            let loss = planted(&model, place, factor);
            let refused = optim.try_backward(LR, loss, model).unwrap_err();
            let ReleaseError::NonFinite { stepped, .. } = *refused.error() else {
                panic!("{}", refused.error());
            };
            assert_eq!(*refused.error(), at(place, stepped));
            let (model, loss) = refused.into_given();
            assert!((1..PARAMS).contains(&stepped) && loss.is_none());
            let after = model.values();
            let changed = before.iter().zip(&after).filter(|(a, b)| a != b).count();
            assert_eq!(changed, stepped);
            assert_eq!(after[place], before[place]);
            // And so it stays, until a checkpoint is loaded.
            let refused = optim.try_backward(LR, model.loss(0), model).unwrap_err();
            let stays = ReleaseError::Interrupted {
                stepped,
                of: PARAMS,
            };
            assert_eq!(*refused.error(), stays);
            assert_eq!(optim.try_to_record().unwrap_err(), stays);
            let mut optim = optim.load_record(record);
            release_step(refused.into_model(), &mut optim, |model| model.loss(0));
        }
    }
}

/// Clipping by the global norm has no coefficient for it, so it is refused without being asked to.
#[test]
fn in_two_passes_and_in_an_ordinary_step_nothing_is_stepped_at_all() {
    let clipping = NormClipping::GlobalNorm { max_norm: 1.0 };
    let clipped = || adamw().with_gradient_release().with_norm_clipping(clipping);
    let before = bits(&small());
    for (place, factor) in [(0, f64::NAN), (2, f64::NEG_INFINITY)] {
        for mut optim in [optim(), clipped()] {
            let planted = |model: &Small| planted(model, place, factor);
            let refused = optim.try_two_passes(LR, small(), planted).unwrap_err();
            assert_eq!(*refused.error(), at(place, 0));
            let model = refused.into_model();
            assert_eq!(bits(&model), before);

            let grads = gradients(&model, planted(&model));
            let refused = optim.try_step(LR, model, grads).unwrap_err();
            assert_eq!(*refused.error(), at(place, 0));
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

/// Where nothing was stepped, the sums of the window stay: the batch can be left out.
#[test]
fn the_sums_of_a_window_survive() {
    let mut optim = optim();
    let model = small();
    optim.accumulate(model.loss(1), &model);
    let expected = gradients(&model, model.loss(1));
    let loss = model.loss(0) * f64::NAN;
    let refused = optim.try_backward(LR, loss, model).unwrap_err();
    assert_error!(refused.error(), NonFinite, "leave this batch out");
    let model = refused.into_model();
    let none = GradientsParams::new();
    let grads = gradients(&model, model.loss(0) * f64::NAN);
    let refused = optim.try_step(LR, model, grads).unwrap_err();
    assert_error!(refused.error(), NonFinite, "leave this batch out");
    let model = refused.into_model();
    let record = optim.sums_to_record(&model);
    let sums = optim.take_sums(&model);
    assert_eq!(bits_of(&sums, &model), bits_of(&expected, &model));
    optim.load_sums(&model, record).unwrap();
    let model = optim.step(LR, model, none);
    let expected = plain_step(small(), &mut adamw(), |model| model.loss(1));
    assert_bits(&bits(&model), &bits(&expected), "left out");

    // A sum that is not finite is found before anything is stepped, too.
    optim.accumulate(planted(&model, 2, f64::NAN), &model);
    let none = GradientsParams::new();
    let refused = optim.try_step(LR, model, none).unwrap_err();
    assert_eq!(*refused.error(), at(2, 0));
    assert!(optim.has_sums());
}
