//! Gradients, models and optimizers that do not belong together.

use super::*;

/// What stands for a gradient that was stepped with must not pass for one.
#[test]
fn gradients_that_were_stepped_with_are_no_numbers() {
    let (model, mut optim) = started();
    let model = optim.arm(LR, model);
    let mut grads = model.loss(1).backward();
    let is_nan = |grad: Option<Tensor<2>>| {
        let bits = grad.map(bits_of).unwrap_or_default();
        bits.iter().all(|bits| f32::from_bits(*bits).is_nan())
    };
    assert!(is_nan(model.tied.grad(&grads)));
    assert!(is_nan(model.tied.val().grad(&grads)));
    let grads = GradientsParams::from_module(&mut grads, &model);
    assert!(is_nan(grads.get::<2>(model.tied.id)));
    let model = optim.step(LR, model, grads);
    assert_goes_on(model, &mut optim, plain(&[0, 1]));
}

/// Not the optimizer that took them, or not in the step in which it did.
#[test]
fn gradients_taken_in_an_earlier_backward_are_refused() {
    let marks_of = |model: &Small, grads: &GradientsParams| {
        let mut marks = GradientsParams::new();
        marks.register(model.tied.id, grads.get::<2>(model.tied.id).unwrap());
        marks
    };
    let other = || adamw().with_gradient_release();

    let (model, mut optim) = started();
    let model = optim.arm(LR, model);
    let grads = grads_of(&model, 1);
    drop(optim);
    let refused = other()
        .try_step(LR, model.materialize(), grads)
        .unwrap_err();
    assert_error!(refused.error(), Taken, "its optimizer was dropped");

    let (model, mut optim) = started();
    let before = model.clone();
    let model = optim.arm(LR, model);
    let grads = grads_of(&model, 1);
    let [to_step, to_arm, to_copy] = [(); 3].map(|()| marks_of(&model, &grads));
    let model = optim.step(LR, model, grads);
    let refused = other().try_step(LR, before, to_copy).unwrap_err();
    assert_error!(refused.error(), Taken);
    assert_eq!(refused.into_model().values(), plain_values(&[0]));
    let refused = optim.try_step(LR, model, to_step).unwrap_err();
    assert_error!(refused.error(), Taken, "tied");
    let refused = optim
        .try_arm_accumulated(LR, refused.into_model(), to_arm)
        .unwrap_err();
    assert_error!(refused.error(), Taken);

    // Added to a gradient in Burn's accumulator.
    let (model, marks) = refused.into_given();
    let mut accumulator = GradientsAccumulator::new();
    accumulator.accumulate(&model, marks);
    accumulator.accumulate(&model, grads_of(&model, 2));
    let refused = optim
        .try_arm_accumulated(LR, model, accumulator.grads())
        .unwrap_err();
    assert_error!(refused.error(), Taken);
    assert_goes_on(refused.into_model(), &mut optim, plain(&[0, 1]));
}

/// Until weights are loaded into it, or somebody takes it as it is.
#[test]
fn a_model_that_was_left_in_mid_step_is_refused() {
    for is_dropped in [false, true] {
        let (model, mut optim) = started();
        let saved = (model.clone(), adamw().load_record(optim.to_record()));
        let record = model.clone().into_record();
        let states = || saved.1.to_record();
        let model = optim.arm(LR, model);
        let before = model.clone();
        let grads = grads_of(&model, 1);
        let (copy, fork) = (model.clone(), model.clone().fork(&flex()));
        let mut optim = match is_dropped {
            false => optim.load_record(states()),
            true => {
                drop(optim);
                adamw().load_record(states()).with_gradient_release()
            }
        };
        let refused = optim.try_step(LR, model, grads).unwrap_err();
        assert_error!(refused.error(), Abandoned, "load the last checkpoint");
        let refused = optim.try_arm(LR, refused.into_model()).unwrap_err();
        assert_error!(refused.error(), Abandoned, "materialize");
        let model = refused.into_model();
        let grads = grads_of(&model, 2);
        let refused = optim.try_step(LR, model, grads).unwrap_err();
        assert_error!(refused.error(), Abandoned);
        // Whatever becomes of its leaves.
        let model = refused.into_model().no_grad().set_require_grad(true);
        let refused = optim.try_arm(LR, model).unwrap_err();
        assert_error!(refused.error(), Abandoned);
        let model = refused.into_model().to_device(&flex());
        let refused = optim.try_arm(LR, model).unwrap_err();
        assert_error!(refused.error(), Abandoned);
        // Copies of it have the same weights, but not those of before.
        for copy in [copy, fork] {
            let refused = optim.try_arm(LR, copy).unwrap_err();
            assert_error!(refused.error(), Abandoned, "materialize");
            let copy = refused.into_model().materialize();
            assert_eq!(bits(&copy), bits(&plain(&[0, 1]).0));
        }
        let before = optim.arm(LR, before);
        assert_eq!(bits(&optim.disarm(before)), bits(&saved.0));
        let model = refused.into_model().load_record(record);
        assert_goes_on(model, &mut optim, saved);
    }
}

/// The parameter is stepped already, with the gradient as it was.
#[test]
fn a_gradient_changed_by_hand_is_refused() {
    type Change = fn(&Small, &mut GradientsParams);
    let changes: [(&str, Change); 3] = [
        ("scaled", |model, grads| {
            let grad = grads.remove::<2>(model.tied.id).unwrap();
            grads.register(model.tied.id, grad.mul_scalar(-3.0));
        }),
        ("replaced", |model, grads| {
            let grad = numbers::<2>([4, 4], 5, &flex().inner());
            grads.register(model.tied.id, grad);
        }),
        ("removed", |model, grads| {
            grads.remove::<2>(model.tied.id);
        }),
    ];
    for (name, change) in changes {
        let (model, mut optim) = started();
        let saved = (model.clone(), adamw().load_record(optim.to_record()));
        let model = optim.arm(LR, model);
        let mut grads = grads_of(&model, 1);
        change(&model, &mut grads);
        let refused = optim.try_step(LR, model, grads).unwrap_err();
        match name {
            "removed" => assert_error!(refused.error(), Unclaimed, "stepped"),
            _ => assert_error!(refused.error(), GradientChanged, "stepped"),
        }
        let mut optim = optim.load_record(saved.1.to_record());
        let record = saved.0.clone().into_record();
        let model = refused.into_model().load_record(record);
        assert_goes_on(model, &mut optim, saved);
    }
}

/// One window must not swallow a gradient: of the first micro-batch, armed or not.
#[test]
fn burns_accumulator_over_an_armed_micro_batch_is_refused() {
    for is_first_armed in [false, true] {
        let (mut model, mut optim) = started();
        let mut accumulator = GradientsAccumulator::new();
        if is_first_armed {
            model = optim.arm(LR, model);
        }
        accumulator.accumulate(&model, grads_of(&model, 1));
        if !is_first_armed {
            model = optim.arm(LR, model);
        }
        accumulator.accumulate(&model, grads_of(&model, 2));
        let refused = optim.try_step(LR, model, accumulator.grads()).unwrap_err();
        match is_first_armed {
            false => assert_error!(refused.error(), GradientChanged, "arm_accumulated"),
            true => assert_error!(refused.error(), AlreadyStepped, "arm_accumulated"),
        }
    }
}

/// A step is taken with the optimizer that the model was armed with.
#[test]
fn an_optimizer_that_is_changed_in_mid_step_is_refused() {
    let own = || AdamWConfig::new().with_weight_decay(0.5).build();
    let group = || ParamGroup::from_predicate("first");
    let later = || {
        let (model, optim) = plain(&[0]);
        (model, optim.with_group(group(), own(), None))
    };
    type Undo = fn(&mut ReleaseOptimizer, Small) -> Small;
    let undo: [Undo; 2] = [
        |optim, model| optim.disarm(model),
        |optim, model| optim.arm(LR, model),
    ];
    for undo in undo {
        let (model, mut optim) = started();
        let model = optim.arm(LR, model);
        let mut optim = optim.with_group(group(), own(), None);
        let grads = grads_of(&model, 1);
        let refused = optim.try_step(LR, model, grads).unwrap_err();
        assert_error!(refused.error(), SetInStep, "`with_group` was called");
        let model = undo(&mut optim, refused.into_model());
        assert_goes_on(model, &mut optim, later());
    }
    // Half of the step is the old optimizer's.
    let (model, mut optim) = started();
    let model = optim.arm(LR, model);
    let grads = grads_of(&model, 1);
    let mut optim = optim.with_group(group(), own(), None);
    let refused = optim.try_step(LR, model, grads).unwrap_err();
    assert_error!(refused.error(), SetInStep, "load the last checkpoint");
    let (saved, states) = plain(&[0]);
    let mut optim = optim.load_record(states.to_record());
    let record = saved.clone().into_record();
    let model = refused.into_model().load_record(record);
    let later = adamw().with_group(group(), own(), None);
    let later = later.load_record(states.to_record());
    assert_goes_on(model, &mut optim, (saved, later));
}

/// A rate that no weight can be stepped with, whether the model is armed or not.
#[test]
fn a_rate_out_of_range() {
    let assert_refused = |error: &ReleaseError| {
        assert_error!(*error, OutOfRange, "the learning rate of ");
    };
    for rate in [f64::NAN, f64::INFINITY, -LR] {
        let (model, mut optim) = started();
        let refused = optim.try_arm(rate, model).unwrap_err();
        assert_refused(refused.error());
        let (model, none) = (refused.into_model(), GradientsParams::new());
        let refused = optim.try_arm_accumulated(rate, model, none).unwrap_err();
        assert_refused(refused.error());
        let model = refused.into_model();
        let grads = grads_of(&model, 1);
        let refused = optim.try_step(rate, model, grads).unwrap_err();
        assert_refused(refused.error());
        let (model, grads) = refused.into_given();
        let model = optim.step(LR, model, grads);
        assert_goes_on(model, &mut optim, plain(&[0, 1]));
    }
}
