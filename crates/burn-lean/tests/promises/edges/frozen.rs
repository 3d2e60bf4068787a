//! Parameters that are frozen, and unfrozen later.

use crate::harness::prelude::*;

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
        let active = match step {
            0..3 => PARAMS - 2,
            3..6 => PARAMS,
            _ => PARAMS - 1,
        };
        assert_eq!(optim.last_step().unwrap().outcomes().count(), active);
    }
}

/// Nothing is trained: as in plain Burn, whose `step` is given no gradients, nothing changes.
#[test]
fn nothing_to_train() {
    let model = small().no_grad();
    let before = bits(&model);
    let mut optim = adamw().with_gradient_release();
    let model = optim.arm(LR, model);
    let model = optim.step(LR, model, GradientsParams::new());
    assert_eq!(bits(&model), before);
    assert_eq!(optim.last_step().unwrap().outcomes().count(), 0);
    assert!(!optim.is_armed());
    // And goes on once something is.
    let model = model.set_require_grad(true);
    let model = release_step(model, &mut optim, |model| model.loss(0));
    assert_ne!(bits(&model), before);
}

/// Changes between `arm` and the forward pass that are no rows of the table in `moments`: the step is
/// plain Burn's with the same change.
#[test]
fn changed_between_arm_and_forward() {
    type Change = fn(Small) -> Small;
    // With the number of parameters that have no slot, and are stepped after backward.
    let changes: [(usize, Change, Change); 2] = [
        (
            2,
            |model| model.freeze_group(first()),
            |model| model.unfreeze_group(first()),
        ),
        (0, |model| model, |model| model.no_grad()),
    ];
    for (ordinary, before, change) in changes {
        let (start, mut plain_optim) = plain(&[0]);
        let start = before(start);
        let mut optim = plain_optim.clone().with_gradient_release();
        let model = change(optim.arm(LR, start.clone()));
        let mut plain = change(start);
        let is_trained = plain.tied.is_require_grad();
        assert_eq!(model.loss(1).is_tracked(), is_trained);
        let (mut grads, mut plain_grads) = Default::default();
        if is_trained {
            (grads, plain_grads) = (grads_of(&model, 1), grads_of(&plain, 1));
        }
        let model = optim.step(LR, model, grads);
        plain = plain_optim.step(LR, plain, plain_grads);
        assert_eq!(bits(&model), bits(&plain));
        let weights = [&model, &plain].map(|model| model.first.weight.is_require_grad());
        assert_eq!(weights[0], weights[1]);
        let report = optim.last_step().unwrap();
        assert_eq!(report.count(Outcome::Ordinary), ordinary);
        let all = |model: Small| model.set_require_grad(true);
        assert_goes_on(all(model), &mut optim, (all(plain), plain_optim));
    }
}

/// The sums of a window belong to the model: they outlive the states of the optimizer, also those of
/// parameters that were frozen since.
#[test]
fn sums_of_a_window_over_a_record() {
    let (start, plain_optim) = plain(&[0]);
    let states = || plain_optim.to_record();
    let frozen = || start.clone().freeze_group(first());
    let optim = || plain_optim.clone().with_gradient_release();
    let armed = |optim: &mut ReleaseOptimizer| {
        let sums = grads_of(&start, 1);
        optim.arm_accumulated(LR, frozen(), sums)
    };
    let mut trained = Vec::new();
    for arms_again in [true, false] {
        let mut optim = optim();
        let model = armed(&mut optim);
        let mut optim = optim.load_record(states());
        let model = match arms_again {
            true => optim.arm(LR, model),
            false => model,
        };
        let grads = grads_of(&model, 2);
        trained.push(bits(&optim.step(LR, model, grads)));
    }

    let mut sums = GradientsAccumulator::new();
    sums.accumulate(&start, grads_of(&start, 1));
    let plain = frozen();
    sums.accumulate(&plain, grads_of(&plain, 2));
    let plain = plain_optim.clone().step(LR, plain, sums.grads());
    assert_eq!(trained, [bits(&plain), bits(&plain)]);

    // Another model of the same ids has no part in them.
    let model = start.clone().freeze_group(first());
    for arms in [true, false] {
        let mut optim_of_sums = optim();
        let left = armed(&mut optim_of_sums);
        let mut optim = optim_of_sums.load_record(states());
        let mut other = model.clone();
        if arms {
            other = optim.arm(LR, other);
        } else {
            // A refused step keeps them for their model.
            let refused = optim.try_step(f64::NAN, other, GradientsParams::new());
            other = refused.unwrap_err().into_model();
        }
        let grads = grads_of(&other, 2);
        let other = optim.step(LR, other, grads);
        let expected = train_plain((model.clone(), plain_optim.clone()), &[2]);
        assert_eq!(bits(&other), bits(&expected.0), "arms {arms}");
        drop(left);
    }

    // They are not dropped silently.
    let mut optim_of_sums = optim();
    let model = armed(&mut optim_of_sums);
    let refused = optim_of_sums.try_into_optimizer().err().unwrap();
    assert_error!(refused.error(), Accumulated);
    let mut optim = refused.into_model().load_record(states());
    let refused = optim.try_disarm(model).unwrap_err();
    assert_error!(refused.error(), Accumulated);
    let (model, sums) = optim.try_disarm_accumulated(refused.into_model()).unwrap();
    assert_eq!(bits(&model), bits(&start));
    assert_eq!(sums.len(), PARAMS);
}

/// `Param::set_require_grad`, which drops what says where the weight of an armed parameter is.
/// `Module::set_require_grad` does not.
#[test]
fn one_param_frozen_or_unfrozen_by_itself() {
    for is_active in [false, true] {
        let change = |mut model: Small| {
            model.tied = model.tied.set_require_grad(is_active);
            model
        };
        // Before the forward pass: refused, and `disarm` is the way back. After backward it is as in
        // plain Burn, which is a row of the table in `moments`.
        let (start, plain_optim) = plain(&[0]);
        let mut optim = plain_optim.with_gradient_release();
        let armed = change(optim.arm(LR, start.clone()));
        let refused = optim.try_arm(LR, armed).unwrap_err();
        assert_error!(
            refused.error(),
            Placeholder,
            "`disarm` gives the weight back"
        );
        let model = optim.disarm(refused.into_model());
        assert_eq!(model.tied.is_require_grad(), is_active);
        assert_eq!(bits(&model), bits(&start));

        // Within a window: refused before anything is computed from it.
        let mut accumulator = ReleaseAccumulator::new();
        let model = accumulator.arm(start);
        let grads = grads_of(&model, 1);
        accumulator.accumulate(&model, grads);
        let model = change(model);
        let refused = accumulator.try_arm(model).unwrap_err();
        assert_error!(refused.error(), Placeholder, "between `step` and `arm`");
        let sums = accumulator.grads();
        let refused = optim.try_arm_accumulated(LR, refused.into_model(), sums);
        let refused = refused.unwrap_err();
        assert_error!(refused.error(), Placeholder, "checkpoint");
    }
}
