//! Parameters that are frozen, and unfrozen later.

use burn::module::{Module, ParamGroup};
use burn::optim::GradientsParams;
use burn_lean::{Outcome, ReleaseError, WithGradientRelease};

use crate::harness::{LR, adamw, bits, plain_step, release_step};
use crate::small::{PARAMS, Small, assert_goes_on, grads_of, panic_of, plain, small};

fn first() -> ParamGroup {
    ParamGroup::from_predicate("first")
}

#[test]
fn frozen_from_the_start_and_unfrozen_later() {
    let (mut plain, mut model) = (small().freeze_group(first()), small().freeze_group(first()));
    let (mut plain_optim, mut optim) = (adamw(), adamw().with_gradient_release());
    for step in 0..8 {
        if step == 3 {
            (plain, model) = (plain.unfreeze_group(first()), model.unfreeze_group(first()));
        }
        if step == 6 {
            let tied = ParamGroup::from_predicate("tied");
            plain = plain.freeze_group(tied.clone());
            model = model.freeze_group(tied);
        }
        plain = plain_step(plain, &mut plain_optim, |model| model.loss(step));
        model = release_step(model, &mut optim, |model| model.loss(step));
        assert_eq!(bits(&model), bits(&plain), "after step {step}");
        let active =
            [PARAMS - 2, PARAMS, PARAMS - 1][usize::from(step > 2) + usize::from(step > 5)];
        assert_eq!(optim.last_step().unwrap().outcomes().count(), active);
    }
}

#[test]
fn frozen_between_arm_and_forward() {
    let (mut plain, mut optim) = plain(&[0]);
    let mut model = plain.clone();
    let mut release = adamw()
        .with_gradient_release()
        .load_record(optim.to_record());
    plain = plain.freeze_group(first());
    plain = plain_step(plain, &mut optim, |model| model.loss(1));

    model = release.arm(LR, model).freeze_group(first());
    assert_eq!(model.values()[0], plain.values()[0]);
    let grads = grads_of(&model, 1);
    model = release.step(LR, model, grads);
    assert_eq!(bits(&model), bits(&plain));
    assert!(!model.first.weight.is_require_grad());
    assert!(!model.first.weight.val().is_require_grad());
    assert!(model.second.weight.val().is_require_grad());

    let (plain, model) = (plain.unfreeze_group(first()), model.unfreeze_group(first()));
    assert_goes_on(model, &mut release, (plain, optim));
}

#[test]
fn everything_frozen_while_armed() {
    let (plain, optim) = plain(&[0]);
    let mut release = adamw()
        .with_gradient_release()
        .load_record(optim.to_record());
    let model = release.arm(LR, plain.clone()).no_grad();
    assert!(!model.loss(1).is_require_grad());
    assert_eq!(model.values(), plain.values());
    let model = release.step(LR, model, GradientsParams::new());
    assert_eq!(bits(&model), bits(&plain));
    assert!(!model.tied.is_require_grad());
    assert_goes_on(model.set_require_grad(true), &mut release, (plain, optim));
}

#[test]
fn frozen_and_unfrozen_while_armed() {
    let (plain, optim) = plain(&[0]);
    let mut release = adamw()
        .with_gradient_release()
        .load_record(optim.to_record());
    let model = release
        .arm(LR, plain.clone())
        .no_grad()
        .set_require_grad(true);
    assert_eq!(model.values(), plain.values());
    let grads = grads_of(&model, 1);
    let model = release.step(LR, model, grads);
    let (plain, optim) = crate::small::plain_from(plain, optim, &[1]);
    assert_goes_on(model, &mut release, (plain, optim));
}

/// The moments before which a step can be disturbed.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Moment {
    Backward,
    Claim,
    Step,
}

/// Freezes a layer in the middle of a step. In plain Burn it gets its step only if its gradient was
/// asked
/// for before that.
fn frozen_at(moment: Moment, model: Small) -> (Small, GradientsParams) {
    let freeze = |model: Small, at| {
        if at == moment {
            model.freeze_group(first())
        } else {
            model
        }
    };
    let loss = model.loss(1);
    let model = freeze(model, Moment::Backward);
    let grads = loss.backward();
    let model = freeze(model, Moment::Claim);
    let grads = GradientsParams::from_grads(grads, &model);
    (freeze(model, Moment::Step), grads)
}

fn freeze_in_the_middle(moment: Moment) {
    let (model, mut optim) = plain(&[0]);
    let mut release = adamw()
        .with_gradient_release()
        .load_record(optim.to_record());
    let before = optim.clone();
    let (plain, grads) = frozen_at(moment, model.clone());
    let plain = optim.step(LR, plain, grads);

    let outcome = panic_of(|| {
        let (armed, grads) = frozen_at(moment, release.arm(LR, model.clone()));
        release
            .try_step(LR, armed, grads)
            .map_err(ReleaseError::from)
    });
    match outcome {
        Ok(Ok(stepped)) => {
            assert_eq!(bits(&stepped), bits(&plain), "{moment:?}");
            let plain = plain.unfreeze_group(first());
            assert_goes_on(
                stepped.unfreeze_group(first()),
                &mut release,
                (plain, optim),
            );
        }
        Ok(Err(error)) => {
            assert!(
                matches!(error, ReleaseError::Unclaimed { .. }),
                "{moment:?}: {error}"
            );
            let mut release = release.load_record(before.to_record());
            assert_goes_on(model.clone(), &mut release, (model, before));
        }
        Err(text) => panic!("{moment:?}: {text}"),
    }
}

#[test]
fn frozen_between_forward_and_backward() {
    freeze_in_the_middle(Moment::Backward);
}

#[test]
fn frozen_between_backward_and_the_claim() {
    freeze_in_the_middle(Moment::Claim);
}

#[test]
fn frozen_between_the_claim_and_step() {
    freeze_in_the_middle(Moment::Step);
}

/// Unfrozen in the middle: without a gradient in plain Burn, so without a step.
#[test]
fn unfrozen_between_arm_and_forward() {
    let (plain, mut optim) = plain(&[0]);
    let plain = plain.freeze_group(first());
    let mut release = adamw()
        .with_gradient_release()
        .load_record(optim.to_record());
    let model = release.arm(LR, plain.clone()).unfreeze_group(first());
    let grads = grads_of(&model, 1);
    let model = release.step(LR, model, grads);
    let count = |outcome| release.last_step().unwrap().count(outcome);
    assert_eq!(count(Outcome::Ordinary), 2);
    let plain = plain_step(plain.unfreeze_group(first()), &mut optim, |model| {
        model.loss(1)
    });
    assert_goes_on(model, &mut release, (plain, optim));
}
