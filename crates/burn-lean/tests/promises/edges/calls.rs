//! Calls in an unusual order, and calls that are refused.

use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use burn::module::Module;
use burn::nn::LinearConfig;
use burn::optim::{
    GradientsParams, LearningRate, ModuleOptimizer, Optimizer, Sgd, SgdConfig, SgdState,
};
use burn::tensor::{Device, Tensor};
use burn_lean::{Budget, ReleaseError, ReleaseOptimizer, WithGradientRelease};

use crate::harness::{LR, adamw, bits, flex, numbers};
use crate::small::{
    PARAMS, Small, assert_goes_on, bits_of, grads_of, numbered_from, panic_of, plain, plain_bits,
    plain_from, plain_values, read_or_refused, small,
};

const OTHER: f64 = LR / 7.0;

/// A model and an optimizer after one step.
fn started() -> (Small, ReleaseOptimizer) {
    let (model, optim) = plain(&[0]);
    (model, optim.with_gradient_release())
}

/// What plain Burn comes to with this last step.
fn plain_with_rate(rate: f64) -> (Small, ModuleOptimizer) {
    let (model, mut optim) = plain(&[0]);
    let grads = grads_of(&model, 1);
    (optim.step(rate, model, grads), optim)
}

#[test]
fn a_forward_thrown_away() {
    let (model, mut optim) = started();
    let model = optim.arm(LR, model);
    drop(model.loss(7));
    let kept_until_later = model.loss(8);
    let grads = grads_of(&model, 1);
    let model = optim.step(LR, model, grads);
    drop(kept_until_later);
    assert_goes_on(model, &mut optim, plain(&[0, 1]));
}

#[test]
fn gradients_thrown_away_before_arm() {
    let (model, mut optim) = started();
    drop(model.loss(7).backward());
    let model = optim.arm(LR, model);
    let grads = grads_of(&model, 1);
    assert_goes_on(optim.step(LR, model, grads), &mut optim, plain(&[0, 1]));
}

#[test]
fn a_second_forward_and_backward() {
    let (model, mut optim) = started();
    let (states, saved) = (adamw().load_record(optim.to_record()), model.clone());
    let model = optim.arm(LR, model);
    let first = grads_of(&model, 1);
    let second = grads_of(&model, 2);
    let refused = optim.try_step(LR, model, first).unwrap_err();
    assert!(
        matches!(refused.error(), ReleaseError::AlreadyStepped { .. }),
        "{refused:?}"
    );
    assert!(refused.to_string().contains("arm_accumulated"));
    let (model, _) = refused.into_given();
    assert_eq!(model.values(), plain_values(&[0, 1]));
    let refused = optim.try_step(LR, model, second).unwrap_err();
    assert!(
        matches!(refused.error(), ReleaseError::AlreadyStepped { .. }),
        "{refused:?}"
    );

    let mut optim = optim.load_record(states.to_record());
    assert_goes_on(saved.clone(), &mut optim, (saved, states));
}

/// Two forward passes on the tape when the first backward runs.
#[test]
fn two_forwards_before_two_backwards() {
    let (model, mut optim) = started();
    let model = optim.arm(LR, model);
    let (one, two) = (model.loss(1), model.loss(2));
    let one = GradientsParams::from_grads(one.backward(), &model);
    // It reads weights that the first backward has stepped: refused there, or by `step`.
    let two = panic_of(|| GradientsParams::from_grads(two.backward(), &model));
    let two = match two {
        Ok(two) => two,
        // Burn's own refusal: both passes share the nodes that stand for the parameters.
        Err(text) => {
            assert!(
                text.contains("Combine losses before backward"),
                "another panic: {text}"
            );
            assert_eq!(model.values(), plain_values(&[0, 1]));
            assert_goes_on(optim.step(LR, model, one), &mut optim, plain(&[0, 1]));
            return;
        }
    };
    assert_eq!(model.values(), plain_values(&[0, 1]));
    let refused = optim.try_step(LR, model, two).unwrap_err();
    assert!(
        matches!(
            refused.error(),
            ReleaseError::AlreadyStepped { .. } | ReleaseError::Unclaimed { .. }
        ),
        "{refused:?}"
    );
    // In plain Burn, a step with the first gradients is a step with these alone.
    match optim.try_step(LR, refused.into_model(), one) {
        Ok(model) => assert_goes_on(model, &mut optim, plain(&[0, 1])),
        Err(refused) => {
            let error = refused.error();
            assert!(
                matches!(error, ReleaseError::AlreadyStepped { .. }),
                "{error}"
            );
        }
    }
}

#[test]
fn two_losses_in_one_backward() {
    let (model, mut optim) = started();
    let (mut model_plain, mut optim_plain) = plain(&[0]);
    let loss = (model_plain.loss(1) + model_plain.loss(2)).backward();
    let grads = GradientsParams::from_grads(loss, &model_plain);
    model_plain = optim_plain.step(LR, model_plain, grads);

    let model = optim.arm(LR, model);
    let loss = (model.loss(1) + model.loss(2)).backward();
    let grads = GradientsParams::from_grads(loss, &model);
    let model = optim.step(LR, model, grads);
    assert_goes_on(model, &mut optim, (model_plain, optim_plain));
}

#[test]
fn the_same_backward_twice() {
    let (model, mut optim) = started();
    let model = optim.arm(LR, model);
    let loss = model.loss(1);
    let grads = GradientsParams::from_grads(loss.backward(), &model);
    let again = panic_of(|| GradientsParams::from_grads(loss.backward(), &model));
    assert_eq!(model.values(), plain_values(&[0, 1]));
    match optim.try_step(LR, model, grads) {
        Ok(model) => assert_goes_on(model, &mut optim, plain(&[0, 1])),
        Err(refused) => {
            let error = refused.error();
            assert!(
                matches!(error, ReleaseError::AlreadyStepped { .. }),
                "{error}"
            );
            assert!(again.is_ok());
        }
    }
}

#[test]
fn arming_again_takes_the_new_rate() {
    for after_forward in [false, true] {
        let (model, mut optim) = started();
        let mut model = optim.arm(LR, model);
        let early = after_forward.then(|| model.loss(1));
        model = optim.arm(OTHER, model);
        let loss = early.unwrap_or_else(|| model.loss(1));
        let grads = GradientsParams::from_grads(loss.backward(), &model);
        let refused = optim.try_step(LR, model, grads).unwrap_err();
        let path = match refused.error() {
            ReleaseError::LearningRate { path, armed, given } => {
                assert_eq!((*armed, *given), (OTHER, LR));
                path.clone()
            }
            error => panic!("{error}"),
        };
        assert!(!path.is_empty());
        assert!(
            refused
                .to_string()
                .contains("the rate that `arm` was given")
        );
        let (model, grads) = refused.into_given();
        let model = optim.step(OTHER, model, grads);
        assert_goes_on(model, &mut optim, plain_with_rate(OTHER));
    }
}

#[test]
fn arming_and_disarming_after_backward_is_refused() {
    let (model, mut optim) = started();
    let model = optim.arm(LR, model);
    let grads = grads_of(&model, 1);
    let unfinished = ReleaseError::Unfinished {
        stepped: PARAMS,
        armed: PARAMS,
    };
    let (model, error) = optim.try_arm(LR, model).unwrap_err().into_parts();
    assert_eq!(error, unfinished);
    assert!(
        error
            .to_string()
            .contains("call `step` with the model and the gradients first")
    );
    let (model, error) = optim.try_disarm(model).unwrap_err().into_parts();
    assert_eq!(error, unfinished);
    assert_eq!(optim.try_to_record().unwrap_err(), unfinished);
    let Err(refused) = optim.try_into_optimizer() else {
        panic!("half of a step was handed out");
    };
    assert_eq!(refused.error(), &unfinished);
    let mut optim = refused.into_model();
    let model = optim.step(LR, model, grads);
    assert_goes_on(model, &mut optim, plain(&[0, 1]));
}

#[test]
fn disarmed_before_forward() {
    let (model, mut optim) = started();
    let armed = optim.arm(LR, model);
    assert!(optim.is_armed());
    let model = optim.disarm(armed);
    assert!(!optim.is_armed());
    assert_eq!(bits(&model), plain_bits(&[0]));
    // An ordinary step, with the same states.
    let grads = grads_of(&model, 1);
    assert_eq!(bits(&model), plain_bits(&[0]));
    let model = optim.step(LR, model, grads);
    assert_goes_on(model, &mut optim, plain(&[0, 1]));
}

#[test]
fn disarmed_between_forward_and_backward() {
    let (model, mut optim) = started();
    let model = optim.arm(LR, model);
    let loss = model.loss(1);
    let model = optim.disarm(model);
    let text = panic_of(|| loss.backward()).map(|_| ()).unwrap_err();
    assert!(text.contains("run backward before `disarm`"), "{text}");
    assert_goes_on(model, &mut optim, plain(&[0]));
}

/// A forward pass of the unarmed model, whose backward runs after `arm`: plain Burn gives it
/// gradients.
#[test]
fn armed_between_forward_and_backward() {
    let (model, mut optim) = started();
    let loss = model.loss(1);
    let model = optim.arm(LR, model);
    let outcome = panic_of(|| {
        let grads = GradientsParams::from_grads(loss.backward(), &model);
        optim
            .try_step(LR, model, grads)
            .map_err(|refused| refused.error().clone())
    });
    match outcome {
        Ok(Ok(model)) => assert_goes_on(model, &mut optim, plain(&[0, 1])),
        Ok(Err(error)) => assert!(!error.to_string().is_empty()),
        Err(text) => assert!(
            text.starts_with("gradient release: "),
            "another panic: {text}"
        ),
    }
}

/// The gradients are there, and `arm` comes before `step`.
#[test]
fn armed_between_backward_and_step() {
    let (model, mut optim) = started();
    let grads = grads_of(&model, 1);
    let model = optim.arm(LR, model);
    let model = optim.step(LR, model, grads);
    assert_goes_on(model, &mut optim, plain(&[0, 1]));
}

#[test]
fn disarmed_with_another_model_or_a_copy() {
    let (model, mut optim) = started();
    let model = optim.arm(LR, model);
    let (other, error) = optim.try_disarm(small()).unwrap_err().into_parts();
    assert!(matches!(error, ReleaseError::WrongModel { .. }), "{error}");
    assert_eq!(bits(&other), bits(&small()));
    let (copy, error) = optim.try_disarm(model.clone()).unwrap_err().into_parts();
    assert!(matches!(error, ReleaseError::Copy { .. }), "{error}");
    assert_eq!(copy.values(), plain_values(&[0]));
    let grads = grads_of(&model, 1);
    let model = optim.step(LR, model, grads);
    assert_goes_on(model, &mut optim, plain(&[0, 1]));
}

#[test]
fn a_step_with_something_else_is_refused() {
    let (model, mut optim) = started();
    let model = optim.arm(LR, model);
    let grads = grads_of(&model, 1);

    let (other, grads) = optim
        .try_step(LR, small(), grads)
        .map_err(|refused| {
            assert!(
                matches!(refused.error(), ReleaseError::WrongModel { .. }),
                "{refused:?}"
            );
            assert!(
                refused
                    .to_string()
                    .contains("pass the model that `arm` returned")
            );
            refused.into_given()
        })
        .unwrap_err();
    assert_eq!(bits(&other), bits(&small()));

    let copy = model.clone();
    let (copy, grads) = optim
        .try_step(LR, copy, grads)
        .map_err(|refused| {
            assert!(
                matches!(refused.error(), ReleaseError::Copy { .. }),
                "{refused:?}"
            );
            refused.into_given()
        })
        .unwrap_err();
    drop(copy);

    let (model, _) = optim
        .try_step(LR, model, grads_of(&other, 1))
        .map_err(|refused| {
            assert!(
                matches!(refused.error(), ReleaseError::Unclaimed { .. }),
                "{refused:?}"
            );
            assert!(refused.to_string().contains("GradientsParams::from_grads"));
            refused.into_given()
        })
        .unwrap_err();
    let refused = optim
        .try_step(LR, model, GradientsParams::new())
        .unwrap_err();
    assert!(
        matches!(refused.error(), ReleaseError::Unclaimed { .. }),
        "{refused:?}"
    );

    let model = optim.step(LR, refused.into_model(), grads);
    assert_goes_on(model, &mut optim, plain(&[0, 1]));
}

/// A clone is given to `step`, and nothing was stepped: whoever keeps the model must not read a
/// placeholder.
#[test]
fn a_copy_ends_an_arming_without_backward() {
    let (model, mut optim) = started();
    let model = optim.arm(LR, model);
    match optim.try_step(LR, model.clone(), GradientsParams::new()) {
        Ok(stepped) => {
            if let Some(values) = read_or_refused(&model) {
                assert_eq!(values, plain_values(&[0]));
            }
            drop(model);
            assert_goes_on(stepped, &mut optim, plain(&[0]));
        }
        Err(refused) => {
            assert!(
                matches!(
                    refused.error(),
                    ReleaseError::Copy { .. } | ReleaseError::NoForward
                ),
                "{refused:?}"
            );
            drop(refused);
            assert_goes_on(optim.disarm(model), &mut optim, plain(&[0]));
        }
    }
}

/// An armed model of which another copy is armed in its place.
#[test]
fn a_copy_armed_in_place_of_the_armed_model() {
    let (model, mut optim) = started();
    let original = optim.arm(LR, model);
    let copy = optim.arm(LR, original.clone());
    assert_eq!(copy.values(), plain_values(&[0]));
    if let Some(values) = read_or_refused(&original) {
        assert_eq!(values, plain_values(&[0]));
    }
    let grads = grads_of(&copy, 1);
    let copy = optim.step(LR, copy, grads);
    if let Some(values) = read_or_refused(&original) {
        assert_eq!(values, plain_values(&[0]));
    }
    assert_goes_on(copy, &mut optim, plain(&[0, 1]));
}

/// The armed model is lost without `disarm`, and another one is armed.
#[test]
fn another_model_armed_in_place_of_the_armed_model() {
    let (model, mut optim) = started();
    let original = optim.arm(LR, model);
    let other = optim.arm(LR, plain(&[0]).0);
    if let Some(values) = read_or_refused(&original) {
        assert_eq!(values, plain_values(&[0]));
    }
    let grads = grads_of(&other, 1);
    let other = optim.step(LR, other, grads);
    if let Some(values) = read_or_refused(&original) {
        assert_eq!(values, plain_values(&[0]));
    }
    // States are kept by id, and the new model has other ids.
    let mut plain_optim = adamw();
    let (plain, _) = plain(&[0]);
    let mut grads = plain.loss(1).backward();
    let grads = GradientsParams::from_module(&mut grads, &plain);
    let plain = plain_optim.step(LR, plain, grads);
    assert_goes_on(other, &mut optim, (plain, plain_optim));
}

#[test]
fn the_armed_model_is_dropped() {
    let (model, mut optim) = started();
    let copy = model.clone();
    drop(optim.arm(LR, model));
    assert_goes_on(copy, &mut optim, plain(&[0]));
}

#[test]
fn a_step_without_arm() {
    let (model, mut optim) = started();
    let grads = grads_of(&model, 1);
    let model = optim.step(LR, model, grads);
    let model = optim.step(LR, model, GradientsParams::new());
    assert_goes_on(model, &mut optim, plain(&[0, 1]));
}

#[test]
fn armed_and_unarmed_steps_in_turn() {
    let (mut model, mut optim) = (small(), adamw().with_gradient_release());
    for step in 0..6 {
        if step % 2 == 0 {
            model = optim.arm(LR, model);
        }
        let grads = grads_of(&model, step);
        model = optim.step(LR, model, grads);
        let batches: Vec<usize> = (0..=step).collect();
        assert_eq!(bits(&model), plain_bits(&batches), "after step {step}");
    }
    let (mut plain, mut plain_optim) = (model.clone(), optim.into_optimizer());
    (plain, plain_optim) = plain_from(plain, plain_optim, &[6]);
    assert_eq!(bits(&plain), plain_bits(&[0, 1, 2, 3, 4, 5, 6]));
    drop(plain_optim);
}

#[test]
fn the_optimizer_is_dropped_between_forward_and_backward() {
    let (model, mut optim) = started();
    let states = optim.to_record();
    let model = optim.arm(LR, model);
    let loss = model.loss(1);
    drop(optim);
    assert_eq!(model.values(), plain_values(&[0]));
    let grads = GradientsParams::from_grads(loss.backward(), &model);
    assert_eq!(grads.len(), PARAMS);
    assert_eq!(model.values(), plain_values(&[0]));
    // The way out: an ordinary model, with ordinary gradients.
    let mut optim = adamw().load_record(states);
    let model = optim.step(LR, model.materialize(), grads);
    assert_goes_on(model, &mut optim.with_gradient_release(), plain(&[0, 1]));
}

/// An armed model stepped by Burn's own optimizer, which reads around `Param::val`.
#[test]
fn an_armed_model_given_to_burns_optimizer() {
    for is_dropped in [true, false] {
        let (model, mut optim) = started();
        let mut plain_optim = adamw().load_record(optim.to_record());
        let model = optim.arm(LR, model);
        let loss = model.loss(1);
        let keep = (!is_dropped).then_some(optim);
        let outcome = panic_of(|| {
            let grads = GradientsParams::from_grads(loss.backward(), &model);
            plain_optim.step(LR, model, grads)
        });
        drop(keep);
        // Refused, or right, or at least not readable.
        if let Ok(model) = outcome
            && let Some(values) = read_or_refused(&model)
        {
            assert_eq!(values, plain_values(&[0, 1]), "dropped {is_dropped}");
        }
    }
}

#[test]
fn a_record_loaded_into_the_armed_optimizer() {
    for after_forward in [false, true] {
        let (model, mut optim) = started();
        let states = optim.to_record();
        let mut model = optim.arm(LR, model);
        let early = after_forward.then(|| model.loss(1));
        let mut optim = optim.load_record(states);
        assert!(!optim.is_armed());
        assert_eq!(model.values(), plain_values(&[0]));
        match early {
            None => {
                model = optim.arm(LR, model);
                let grads = grads_of(&model, 1);
                model = optim.step(LR, model, grads);
            }
            Some(loss) => {
                let grads = GradientsParams::from_grads(loss.backward(), &model);
                assert_eq!(model.values(), plain_values(&[0]));
                model = match optim.try_step(LR, model, grads) {
                    Ok(model) => model,
                    Err(refused) => {
                        let (model, grads) = refused.into_given();
                        let model = optim.arm(LR, model);
                        optim.step(LR, model, grads)
                    }
                };
            }
        }
        assert_goes_on(model, &mut optim, plain(&[0, 1]));
    }
}

#[test]
fn armed_by_two_optimizers() {
    let (model, mut optim) = started();
    let mut other = adamw().with_gradient_release();
    let model = optim.arm(LR, model);
    let (model, error) = other.try_arm(LR, model).unwrap_err().into_parts();
    assert!(
        matches!(error, ReleaseError::ArmedElsewhere { .. }),
        "{error}"
    );
    assert!(error.to_string().contains("`disarm` the other step first"));
    assert!(!other.is_armed());
    let grads = grads_of(&model, 1);
    let refused = other.try_step(LR, model, grads).unwrap_err();
    assert!(
        matches!(refused.error(), ReleaseError::ArmedElsewhere { .. }),
        "{refused:?}"
    );
    let (model, grads) = refused.into_given();
    let model = optim.step(LR, model, grads);
    assert_goes_on(model, &mut optim, plain(&[0, 1]));
}

#[test]
fn the_panicking_twins_say_the_same() {
    let (model, mut optim) = started();
    let model = optim.arm(LR, model);
    let grads = grads_of(&model, 1);
    let text = panic_of(|| optim.arm(LR, model.clone()))
        .map(|_| ())
        .unwrap_err();
    assert!(
        text.starts_with("gradient release: 5 of 5 armed parameters"),
        "{text}"
    );
    let text = panic_of(|| optim.disarm(model.clone()))
        .map(|_| ())
        .unwrap_err();
    assert!(
        text.starts_with("gradient release: 5 of 5 armed parameters"),
        "{text}"
    );
    let text = panic_of(|| optim.to_record()).map(|_| ()).unwrap_err();
    assert!(
        text.starts_with("gradient release: 5 of 5 armed parameters"),
        "{text}"
    );
    let empty = GradientsParams::new();
    let text = panic_of(|| optim.step(LR, model.clone(), empty))
        .map(|_| ())
        .unwrap_err();
    assert!(text.starts_with("gradient release: "), "{text}");
    let model = optim.step(LR, model, grads);
    assert_goes_on(model, &mut optim, plain(&[0, 1]));
}

/// What stands for a gradient that was stepped with must not pass for one.
#[test]
fn gradients_that_were_stepped_with_are_no_numbers() {
    let (model, mut optim) = started();
    let model = optim.arm(LR, model);
    let mut grads = model.loss(1).backward();
    let is_nan = |grad: Option<Tensor<2>>| {
        grad.is_none_or(|grad| {
            bits_of(grad)
                .iter()
                .all(|bits| f32::from_bits(*bits).is_nan())
        })
    };
    assert!(is_nan(model.tied.grad(&grads)));
    assert!(is_nan(model.tied.val().grad(&grads)));
    let grads = GradientsParams::from_module(&mut grads, &model);
    assert!(is_nan(grads.get::<2>(model.tied.id)));
    let model = optim.step(LR, model, grads);
    assert_goes_on(model, &mut optim, plain(&[0, 1]));
}

/// Changes the gradients between backward and `step`.
fn with_changed_gradients(change: impl Fn(&Small, &mut GradientsParams)) {
    let (model, mut optim) = started();
    let saved = (model.clone(), adamw().load_record(optim.to_record()));
    let mut grads = grads_of(&saved.0, 1);
    change(&saved.0, &mut grads);
    let plain = saved.1.clone().step(LR, saved.0.clone(), grads);

    let model = optim.arm(LR, model);
    let mut grads = grads_of(&model, 1);
    change(&model, &mut grads);
    match optim.try_step(LR, model, grads) {
        Ok(model) => assert_eq!(bits(&model), bits(&plain)),
        Err(refused) => {
            let text = refused.to_string();
            assert!(text.contains("stepped"), "{text}");
            let mut optim = optim.load_record(saved.1.to_record());
            let model = refused
                .into_model()
                .load_record(saved.0.clone().into_record());
            assert_goes_on(model, &mut optim, saved);
        }
    }
}

/// As clipping by hand does. The parameter is stepped already, with the gradient as it was.
#[test]
fn a_gradient_scaled_by_hand() {
    with_changed_gradients(|model, grads| {
        let grad = grads.remove::<2>(model.tied.id).unwrap();
        grads.register(model.tied.id, grad.mul_scalar(-3.0));
    });
}

#[test]
fn a_gradient_replaced_by_hand() {
    with_changed_gradients(|model, grads| {
        let grad = numbers::<2>([4, 4], 5, &flex().inner());
        grads.register(model.tied.id, grad);
    });
}

#[test]
fn a_gradient_removed_by_hand() {
    with_changed_gradients(|model, grads| {
        grads.remove::<2>(model.tied.id);
    });
}

/// Burn's accumulator holds the first micro-batch, and the second one is armed without it.
#[test]
fn an_armed_micro_batch_after_an_ordinary_one() {
    use burn::optim::GradientsAccumulator;
    let (model, mut optim) = started();
    let mut plain_optim = adamw().load_record(optim.to_record());
    let window = |optim: Option<&mut ReleaseOptimizer>, mut model: Small| {
        let mut accumulator = GradientsAccumulator::new();
        let grads = grads_of(&model, 1);
        accumulator.accumulate(&model, grads);
        if let Some(optim) = optim {
            model = optim.arm(LR, model);
        }
        let grads = grads_of(&model, 2);
        accumulator.accumulate(&model, grads);
        (model, accumulator.grads())
    };
    let (plain, grads) = window(None, model.clone());
    let plain = plain_optim.step(LR, plain, grads);
    let (model, grads) = window(Some(&mut optim), model);
    match optim.try_step(LR, model, grads) {
        Ok(model) => assert_goes_on(model, &mut optim, (plain, plain_optim)),
        Err(refused) => assert!(refused.to_string().contains("arm_accumulated"), "{refused}"),
    }
}

/// A copy from while the model is armed, in the same loss: it has the same leaves, as in plain
/// Burn.
#[test]
fn a_copy_in_the_loss() {
    let difference = |model: &Small, copy: &Small| {
        let x = numbers::<2>([3, 4], 1, &flex());
        (model.forward(x.clone()) - copy.forward(x.mul_scalar(0.5)))
            .square()
            .mean()
    };
    let (model, mut optim) = started();
    let (plain, mut plain_optim) = plain(&[0]);
    let copy = plain.clone();
    let grads = GradientsParams::from_grads(difference(&plain, &copy).backward(), &plain);
    let plain = plain_optim.step(LR, plain, grads);

    let model = optim.arm(LR, model);
    let copy = model.clone();
    let outcome = panic_of(|| {
        let grads = GradientsParams::from_grads(difference(&model, &copy).backward(), &model);
        optim
            .try_step(LR, model, grads)
            .map_err(|refused| refused.error().clone())
    });
    match outcome {
        Ok(Ok(model)) => {
            assert_eq!(bits(&model), bits(&plain));
            assert_goes_on(model, &mut optim, (plain, plain_optim));
        }
        Ok(Err(error)) => assert!(!error.to_string().is_empty()),
        Err(text) => assert!(text.starts_with("gradient release: "), "{text}"),
    }
}

/// The forward pass runs on the model of before `arm`, which was armed as a clone.
#[test]
fn the_original_is_used_and_a_clone_is_armed() {
    let (model, mut optim) = started();
    let armed = optim.arm(LR, model.clone());
    let outcome = panic_of(|| {
        let grads = GradientsParams::from_grads(model.loss(1).backward(), &armed);
        optim
            .try_step(LR, armed, grads)
            .map_err(|refused| refused.error().clone())
    });
    match outcome {
        // In plain Burn a clone is as good as its original.
        Ok(Ok(stepped)) => assert_goes_on(stepped, &mut optim, plain(&[0, 1])),
        Ok(Err(error)) => assert!(!error.to_string().is_empty()),
        Err(text) => assert!(text.starts_with("gradient release: "), "{text}"),
    }
}

/// A layer is replaced by a new one in the middle of a step.
#[test]
fn a_layer_replaced_while_armed() {
    let replaced = |mut model: Small| {
        model.second = numbered_from(LinearConfig::new(6, 4).init(&flex()), 77);
        model
    };
    let (model, mut optim) = started();
    let model = replaced(optim.arm(LR, model));
    let grads = grads_of(&model, 1);
    let model = optim.step(LR, model, grads);
    let (start, states) = plain(&[0]);
    let plain = plain_from(replaced(start), states, &[1]);
    assert_goes_on(model, &mut optim, plain);

    let (model, mut optim) = started();
    let model = optim.arm(LR, model);
    let second = model.second.clone();
    let grads = grads_of(&model, 1);
    drop(second);
    let model = replaced(model);
    let refused = optim.try_step(LR, model, grads).unwrap_err();
    assert!(
        matches!(refused.error(), ReleaseError::WrongModel { .. }),
        "{refused:?}"
    );
    assert!(refused.to_string().contains("rebuilt"));
}

/// No rate that a weight cannot be stepped with, whether the model is armed or not.
#[test]
fn a_rate_out_of_range() {
    for rate in [f64::NAN, f64::INFINITY, -LR] {
        let is_refused = |error: &ReleaseError| {
            let ReleaseError::OutOfRange { setting, .. } = error else {
                panic!("{error}");
            };
            assert!(setting.starts_with("the learning rate of "), "{setting}");
        };
        let (model, mut optim) = started();
        let refused = optim.try_arm(rate, model).unwrap_err();
        is_refused(refused.error());
        let refused = optim
            .try_arm_accumulated(rate, refused.into_model(), GradientsParams::new())
            .unwrap_err();
        is_refused(refused.error());
        let model = refused.into_model();
        let grads = grads_of(&model, 1);
        let refused = optim.try_step(rate, model, grads).unwrap_err();
        is_refused(refused.error());
        let (model, grads) = refused.into_given();
        let model = optim.step(LR, model, grads);
        assert_goes_on(model, &mut optim, plain(&[0, 1]));
    }
}

/// A rate of zero is one: what a schedule warms up from.
#[test]
fn a_rate_of_zero() {
    let (model, mut optim) = started();
    let model = optim.arm(0.0, model);
    let grads = grads_of(&model, 1);
    let model = optim.step(0.0, model, grads);
    assert_goes_on(model, &mut optim, plain_with_rate(0.0));
}

#[test]
#[should_panic(expected = "a budget of 0 bytes keeps no activation")]
fn a_budget_of_nothing() {
    Budget::new(0, || 0);
}

/// Steps as SGD, and looks at the armed model meanwhile.
#[derive(Clone)]
struct Onlooker {
    sgd: Sgd,
    armed: Arc<Mutex<Option<Small>>>,
}

impl Optimizer for Onlooker {
    type State<const D: usize> = SgdState<D>;

    fn step<const D: usize>(
        &self,
        lr: LearningRate,
        tensor: Tensor<D>,
        grad: Tensor<D>,
        state: Option<Self::State<D>>,
    ) -> (Tensor<D>, Option<Self::State<D>>) {
        let armed = self.armed.lock().expect("nobody panics with it").clone();
        if let Some(armed) = armed {
            armed.values();
        }
        self.sgd.step(lr, tensor, grad, state)
    }

    fn to_device<const D: usize>(state: Self::State<D>, device: &Device) -> Self::State<D> {
        Sgd::to_device(state, device)
    }
}

/// It waited for itself before.
#[test]
fn an_optimizer_that_reads_the_parameter_it_steps_is_refused() {
    let (done, is_done) = mpsc::channel();
    thread::spawn(move || {
        let armed = Arc::<Mutex<Option<Small>>>::default();
        let onlooker = Onlooker {
            sgd: SgdConfig::new().build(),
            armed: armed.clone(),
        };
        let refused = panic_of(|| {
            let mut optim = ModuleOptimizer::from(onlooker).with_gradient_release();
            let model = optim.arm(LR, small());
            *armed.lock().expect("nobody panics with it") = Some(model.clone());
            grads_of(&model, 0);
        });
        // Nobody listens any more if it took too long.
        let _ = done.send(refused.expect_err("it reads what it steps"));
    });
    let text = is_done
        .recv_timeout(Duration::from_secs(120))
        .expect("the step waits for itself");
    assert!(text.contains("while it steps"), "{text}");
    assert!(
        text.contains("a copy of the model taken before `arm`"),
        "{text}"
    );
}
