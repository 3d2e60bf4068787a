//! Armings of models with adapters that were left, and what may come of them into later ones:
//! weights, sums, copies.

use super::*;

/// Plain Burn's model and optimizer after one step with the sum of these batches.
fn window((model, mut optim): Plain, batches: &[usize]) -> Plain {
    let mut sums = GradientsAccumulator::new();
    for step in batches {
        sums.accumulate(&model, grads_of(&model, *step));
    }
    (optim.step(LR, model, sums.grads()), optim)
}

fn micro_batch(model: Small, sums: &mut ReleaseAccumulator, step: usize) -> Small {
    let model = sums.arm(model);
    let grads = grads_of(&model, step);
    sums.accumulate(&model, grads);
    model
}

/// After a micro-batch the model is disarmed, or stepped as one that is not armed.
#[test]
fn by_an_accumulator() {
    let (start, mut optim) = started();
    let mut sums = ReleaseAccumulator::new();
    let model = micro_batch(start.0.clone(), &mut sums, 1);
    let model = optim.step(LR, model, sums.grads());
    assert_goes_on(model, &mut optim, train_plain(start, &[1]));

    let (start, mut optim) = started();
    let model = micro_batch(start.0.clone(), &mut sums, 1);
    let model = optim.disarm(model);
    assert_goes_on(model, &mut optim, start);
}

/// With sums of a window and without.
#[test]
fn by_an_optimizer_that_is_gone() {
    for batches in [&[2][..], &[1, 2]] {
        let (start, mut optim) = started();
        let sums = match batches {
            [_] => GradientsParams::new(),
            _ => grads_of(&start.0, 1),
        };
        let model = optim.arm_accumulated(LR, start.0.clone(), sums);
        let mut optim = optim.load_record(start.1.to_record());
        let grads = grads_of(&model, 2);
        let model = optim.step(LR, model, grads);
        assert_goes_on(model, &mut optim, window(start, batches));
    }
}

/// A record that is loaded while the model is armed, or in the middle of a window.
#[test]
fn a_record_loaded_into_an_armed_model() {
    let load = |model: Small, from: &Plain| model.load_record(from.0.clone().into_record());
    // With a backward pass of the arming, which the optimizer forgets, and armed again.
    let (start, optim) = started();
    let mut optim = optim.with_first_pass(FirstPass::Small);
    let later = train_plain(start.clone(), &[1]);
    let model = optim.arm(LR, later.0.clone());
    grads_of(&model, 1);
    let mut optim = optim.load_record(start.1.to_record());
    let model = optim.arm(LR, load(model, &start));
    assert_eq!(model.values(), start.0.values());
    let model = optim.disarm(model);
    assert_goes_on(model, &mut optim, start.clone());

    // Stepped at once.
    let mut optim = later.1.clone().with_gradient_release();
    let model = load(optim.arm(LR, later.0.clone()), &start);
    let model = finish(model, &mut optim, 2);
    let plain = (start.0.clone(), later.1.clone());
    assert_goes_on(model, &mut optim, train_plain(plain, &[2]));

    let mut sums = ReleaseAccumulator::new();
    let mut optim = later.1.clone().with_gradient_release();
    let model = load(micro_batch(later.0.clone(), &mut sums, 1), &start);
    let model = optim.arm_accumulated(LR, model, sums.grads());
    assert_eq!(model.values(), start.0.values());
    let model = finish(model, &mut optim, 2);
    let mut sums = GradientsAccumulator::new();
    sums.accumulate(&later.0, grads_of(&later.0, 1));
    sums.accumulate(&start.0, grads_of(&start.0, 2));
    let (mut plain, mut plain_optim) = (start.0, later.1);
    plain = plain_optim.step(LR, plain, sums.grads());
    assert_goes_on(model, &mut optim, (plain, plain_optim));
}

/// A record of another model, whose ids Burn gives to the parameters.
#[test]
fn a_record_with_other_ids() {
    let other = train_plain((lora(), adamw()), &[3]);
    for is_armed in [false, true] {
        for loads_states in [false, true] {
            let (start, mut optim) = started();
            let (mut plain, mut plain_optim) = train_plain(start.clone(), &[1]);
            let mut model = release_step(start.0, &mut optim, |model| model.loss(1));
            if is_armed {
                model = optim.arm(LR, model);
            }
            model = model.load_record(other.0.clone().into_record());
            plain = plain.load_record(other.0.clone().into_record());
            if loads_states {
                optim = optim.load_record(other.1.to_record());
                plain_optim = other.1.clone();
            }
            assert_goes_on(model, &mut optim, (plain, plain_optim));
            let released = optim.last_step().unwrap().count(Outcome::Released);
            assert_eq!(released, FACTORS, "{is_armed}, {loads_states}");
        }
    }
}

/// The sums of parameters whose step was skipped are not stepped with later.
#[test]
fn sums_of_a_skipped_step() {
    let (start, optim) = started();
    let scaler = LossScalerConfig::new().with_init_scale(1024.0).init();
    let mut optim = optim
        .with_loss_scaler(scaler.clone())
        .with_non_finite_stop();
    let grads = |model: &Small, factor: f64| {
        let loss = scaler.scale(model.loss(1) * factor);
        GradientsParams::from_grads(loss.backward(), model)
    };
    let sums = grads(&start.0, 1.0);
    let model = optim.arm_accumulated(LR, start.0.clone(), sums);
    let overflown = grads(&model, 1e38);
    let model = optim.step(LR, model, overflown);
    assert_eq!(optim.last_step().unwrap().count(Outcome::Skipped), FACTORS);
    assert_eq!(all(&model), all(&start.0));
    let model = optim.arm(LR, model);
    let finite = grads(&model, 1.0);
    let model = optim.step(LR, model, finite);
    assert_eq!(all(&model), all(&train_plain(start, &[1]).0));
}

/// A copy of the armed model, when its slots are armed again: it has its weights, or is refused.
#[test]
fn copies_of_an_earlier_arming() {
    let (start, mut optim) = started();
    let model = optim.arm(LR, start.0.clone());
    let copy = model.clone();
    let model = finish(model, &mut optim, 1);
    let model = optim.arm(LR, model);
    // A copy of the new arming, whose weights are not those of the old one.
    let later = model.clone();
    let x = || numbers::<2>([3, 4], 9, &flex());
    let scope = || checkpoint(&copy, x(), Small::forward);
    assert_panics(scope, "which a scope cannot use");
    for copy in [copy.clone(), copy.valid()] {
        match panic_of(|| copy.into_record()) {
            Ok(record) => {
                let loaded = numbered_from(lora(), 900).load_record(record);
                assert_eq!(all(&loaded), all(&start.0));
            }
            Err(text) => assert!(text.contains("`copy.materialize()`"), "{text}"),
        }
    }
    let merged = copy.clone().materialize().into_record();
    let merged = small().load_record(merged);
    assert_eq!(bits(&merged), bits(&start.0.clone().materialize()));
    assert_eq!(copy.values(), start.0.values());
    let plain = train_plain(start, &[1]);
    assert_eq!(later.values(), plain.0.values());
    assert_goes_on(optim.disarm(model), &mut optim, plain);
}

/// The optimizer goes on with another model.
#[test]
fn by_a_model_that_is_gone() {
    let (start, mut optim) = started();
    let (other, _) = started();
    drop(optim.arm(LR, other.0));
    let model = optim.arm(LR, start.0.clone());
    let model = optim.disarm(model);
    assert_goes_on(model, &mut optim, start);
}

/// Factors that were trained by an earlier arming, and are frozen since.
#[test]
fn with_factors_that_are_frozen() {
    for is_loaded in [true, false] {
        frozen_factors(is_loaded);
    }
}

/// The arming may have been of another optimizer, or of this one before it has loaded a record.
fn frozen_factors(is_loaded: bool) {
    let first = || ParamGroup::from_predicate("first");
    let trained = || {
        let (start, mut optim) = started();
        let model = release_step(start.0.clone(), &mut optim, |model| model.loss(1));
        let plain = train_plain(start, &[1]);
        if is_loaded {
            optim = optim.load_record(plain.1.to_record());
        }
        (model, optim, plain)
    };
    let frozen = |(plain, optim): Plain| (plain.freeze_group(first()), optim);

    let (model, mut optim, plain) = trained();
    let model = model.freeze_group(first());
    let sums = grads_of(&model, 2);
    let stepped = optim.try_two_passes(LR, model, sums, |model| model.loss(3));
    let expected = window(frozen(plain), &[2, 3]);
    assert_goes_on(stepped.unwrap().0, &mut optim, expected);

    // In the second micro-batch a scope uses the model, and a copy of it is moved.
    let (model, mut optim, plain) = trained();
    let mut sums = ReleaseAccumulator::new();
    let model = micro_batch(model.freeze_group(first()), &mut sums, 2);
    let model = sums.arm(model);
    let x = numbers::<2>([3, 4], 3, &flex());
    let loss = checkpoint(&model, x, Small::forward).square().mean();
    assert_eq!(model.clone().fork(&flex()).values(), plain.0.values());
    let grads = GradientsParams::from_grads(loss.backward(), &model);
    sums.accumulate(&model, grads);
    let model = optim.arm_accumulated(LR, model, sums.grads());
    let model = finish(model, &mut optim, 4);
    assert_goes_on(model, &mut optim, window(frozen(plain), &[2, 3, 4]));

    // Sums of before they were frozen go with their accumulator, ..
    let (model, mut optim, plain) = trained();
    let mut sums = ReleaseAccumulator::new();
    sums.accumulate(&model, grads_of(&model, 9));
    let model = sums.arm(model.freeze_group(first()));
    drop(sums);
    let model = finish(optim.arm(LR, model), &mut optim, 2);
    assert_goes_on(model, &mut optim, train_plain(frozen(plain), &[2]));

    // .. or are stepped with, as in plain Burn.
    let (model, mut optim, plain) = trained();
    let mut sums = ReleaseAccumulator::new();
    let model = micro_batch(model, &mut sums, 2).freeze_group(first());
    let model = optim.arm_accumulated(LR, model, sums.grads());
    let model = finish(model, &mut optim, 3);
    let mut sums = GradientsAccumulator::new();
    sums.accumulate(&plain.0, grads_of(&plain.0, 2));
    let (plain, mut plain_optim) = frozen(plain);
    sums.accumulate(&plain, grads_of(&plain, 3));
    let plain = plain_optim.step(LR, plain, sums.grads());
    assert_goes_on(model, &mut optim, (plain, plain_optim));
}

/// An earlier accumulator that has not been asked for its sums takes none of the optimizer's.
#[test]
fn by_an_accumulator_that_was_not_asked() {
    let (start, mut optim) = started();
    let mut sums = ReleaseAccumulator::new();
    let model = micro_batch(start.0.clone(), &mut sums, 1);
    let model = optim.arm_accumulated(LR, model, grads_of(&start.0, 2));
    let refused = sums.try_arm(model).unwrap_err();
    assert_error!(refused.error(), ArmedElsewhere);
    let model = refused.into_model();
    sums.accumulate(&model, GradientsParams::new());
    let grads = grads_of(&model, 3);
    let refused = sums.try_accumulate(&model, grads_of(&start.0, 4));
    let refused = refused.unwrap_err();
    assert_error!(refused.error(), ArmedElsewhere);
    let model = optim.step(LR, model, grads);
    let sums = sums.grads();
    assert_eq!(sums.len(), FACTORS);
    assert_goes_on(model, &mut optim, window(start, &[2, 3]));
}

/// The optimizer goes to another model and back.
#[test]
fn by_a_model_in_between() {
    let (start, mut optim) = started();
    let (other, _) = started();
    let model = optim.arm(LR, start.0.clone());
    let between = optim.arm(LR, other.0.clone());
    let model = optim.arm(LR, model);
    assert_eq!(between.values(), other.0.values());
    let model = finish(model, &mut optim, 1);
    assert_goes_on(model, &mut optim, train_plain(start, &[1]));
}

/// A frozen copy of a model that another optimizer is about to step.
#[test]
fn beside_a_copy_of_an_armed_model() {
    let (start, mut optim) = started();
    let (teacher, mut other) = crate::small::started();
    let teacher = other.arm(LR, teacher);
    let copy = teacher.clone().no_grad();
    let grads = grads_of(&teacher, 1);
    let (model, copy) = optim.arm(LR, (start.0.clone(), copy));
    let teacher = other.step(LR, teacher, grads);
    assert_eq!(bits(&teacher), bits(&plain(&[0, 1]).0));
    let grads = grads_of(&model, 1);
    let (model, _) = optim.step(LR, (model, copy), grads);
    assert_goes_on(model, &mut optim, train_plain(start, &[1]));
}

/// A scope of an earlier arming, when a forward pass of the next one was made.
#[test]
fn backward_over_a_scope_of_an_earlier_arming() {
    let (start, mut optim) = started();
    let loss = |model: &Small, step| {
        let x = numbers::<2>([3, 4], step, &flex());
        checkpoint(model, x, Small::forward).square().mean()
    };
    let model = optim.arm(LR, start.0.clone());
    let earlier = loss(&model, 2);
    let model = optim.disarm(model);
    let model = optim.arm(LR, model);
    let later = loss(&model, 1);
    assert_panics(|| earlier.backward(), "before `step` or `disarm`");
    assert_eq!(model.values(), start.0.values());
    let grads = GradientsParams::from_grads(later.backward(), &model);
    let model = optim.step(LR, model, grads);
    assert_goes_on(model, &mut optim, train_plain(start, &[1]));
}

/// Their slots go on from one micro-batch to the next.
#[test]
fn backward_over_an_earlier_micro_batch() {
    let (start, mut optim) = started();
    let mut sums = ReleaseAccumulator::new();
    let model = sums.arm(start.0.clone());
    let earlier = model.loss(2);
    sums.accumulate(&model, GradientsParams::new());
    let model = sums.arm(model);
    let grads = grads_of(&model, 1);
    assert_panics(
        || earlier.backward(),
        "before the next micro-batch is armed",
    );
    sums.accumulate(&model, grads);
    let model = optim.arm_accumulated(LR, model, sums.grads());
    let model = finish(model, &mut optim, 3);
    assert_goes_on(model, &mut optim, window(start, &[1, 3]));
}

/// An earlier accumulator takes no sums of a later one with it.
#[test]
fn by_one_of_two_accumulators() {
    let (start, mut optim) = started();
    let (mut first, mut second) = (ReleaseAccumulator::new(), ReleaseAccumulator::new());
    let model = micro_batch(start.0.clone(), &mut first, 1);
    let model = micro_batch(model, &mut second, 2);
    let model = optim.arm_accumulated(LR, model, second.grads());
    drop(first);
    let model = finish(model, &mut optim, 3);
    let batches = [2, 3];
    assert_goes_on(model, &mut optim, window(start, &batches));
}
