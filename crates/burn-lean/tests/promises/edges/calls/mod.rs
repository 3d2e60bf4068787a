//! Calls in an unusual order, and calls that are refused. What can be done in any order with one
//! model and one optimizer is walked through in [`sequences`](super::sequences).

mod refused;

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use burn::module::ParamId;
use burn_lean::{GradientReduction, PendingGradient, Recipients, ReductionError};

use crate::harness::prelude::*;
use crate::harness::watched_adamw;
use crate::small::{plain_values, started, unless_refused};

const OTHER: f64 = LR / 7.0;

/// What plain Burn comes to with this rate in its last step.
fn plain_with_rate(rate: f64) -> Plain {
    let (model, mut optim) = plain(&[0]);
    let grads = grads_of(&model, 1);
    (optim.step(rate, model, grads), optim)
}

#[test]
fn a_second_forward_and_backward() {
    let (model, mut optim) = started();
    let (states, saved) = (adamw().load_record(optim.to_record()), model.clone());
    let mut model = optim.arm(LR, model);
    let first = grads_of(&model, 1);
    let second = grads_of(&model, 2);
    for grads in [first, second] {
        let refused = optim.try_step(LR, model, grads).unwrap_err();
        assert_error!(refused.error(), AlreadyStepped, "arm_accumulated");
        model = refused.into_model();
        assert_eq!(model.values(), plain_values(&[0, 1]));
    }
    let mut optim = optim.load_record(states.to_record());
    assert_goes_on(saved.clone(), &mut optim, (saved, states));
}

/// Two forward passes on the tape when the first backward runs, or one backward twice: Burn refuses
/// it, as both share the nodes that stand for the parameters.
#[test]
fn two_backwards_of_one_tape() {
    for is_same in [false, true] {
        let (model, mut optim) = started();
        let model = optim.arm(LR, model);
        let (one, two) = (model.loss(1), model.loss(2));
        let two = if is_same { one.clone() } else { two };
        let grads = GradientsParams::from_grads(one.backward(), &model);
        assert_panics(|| two.backward(), "Combine losses before backward");
        assert_eq!(model.values(), plain_values(&[0, 1]), "same {is_same}");
        let model = optim.step(LR, model, grads);
        assert_goes_on(model, &mut optim, plain(&[0, 1]));
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
        let ReleaseError::LearningRate { path, armed, given } = refused.error() else {
            panic!("{refused:?}");
        };
        assert_eq!((*armed, *given), (OTHER, LR));
        assert!(!path.is_empty());
        assert_error!(
            refused.error(),
            LearningRate,
            "the rate that `arm` was given"
        );
        let (model, grads) = refused.into_given();
        let model = optim.step(OTHER, model, grads);
        assert_goes_on(model, &mut optim, plain_with_rate(OTHER));
    }
}

/// The panicking twins of the calls that the table in `moments` refuses after backward.
#[test]
fn after_backward_step_is_the_only_call() {
    let (model, mut optim) = started();
    let model = optim.arm(LR, model);
    let grads = grads_of(&model, 1);
    let text = "gradient release: 5 of 5 armed parameters";
    assert_panics(|| optim.arm(LR, model.clone()), text);
    assert_panics(|| optim.disarm(model.clone()), text);
    assert_panics(|| optim.to_record(), text);
    let what_to_do = "call `step` with the model and the gradients first";
    assert_panics(|| optim.to_record(), what_to_do);
    let step = || optim.step(LR, model.clone(), GradientsParams::new());
    assert_panics(step, "gradient release: ");
    let model = optim.step(LR, model, grads);
    assert_goes_on(model, &mut optim, plain(&[0, 1]));
}

/// Plain Burn gives such a forward pass gradients, of parameters that no step has changed: here they
/// would be lost.
#[test]
fn a_forward_pass_of_an_arming_that_has_ended_is_refused() {
    let what_to_do = "run backward before `step` or `disarm`";
    let (mut model, mut optim) = started();
    // A step that leaves a parameter unused.
    let (mut expected, mut plain_optim) = plain(&[0]);
    let of_first = |model: &Small| model.first.forward(numbers([3, 4], 1, &flex())).mean();
    expected = plain_step(expected, &mut plain_optim, of_first);
    for is_armed_again in [false, true] {
        model = optim.arm(LR, model);
        let kept = model.tied.val().mean();
        let grads = GradientsParams::from_grads(of_first(&model).backward(), &model);
        model = optim.step(LR, model, grads);
        if is_armed_again {
            model = optim.arm(LR, model);
        }
        assert_panics(|| kept.backward(), what_to_do);
        if is_armed_again {
            model = optim.disarm(model);
            expected = plain_step(expected, &mut plain_optim, of_first);
        }
        assert_eq!(bits(&model), bits(&expected));
    }

    // The last micro-batch is armed by the optimizer.
    let mut accumulator = ReleaseAccumulator::new();
    model = accumulator.arm(model);
    let kept = model.tied.val().mean();
    let grads = GradientsParams::from_grads(of_first(&model).backward(), &model);
    accumulator.accumulate(&model, grads);
    model = optim.arm_accumulated(LR, model, accumulator.grads());
    assert_panics(|| kept.backward(), "before the next micro-batch is armed");
    let _ = optim.step(LR, model, GradientsParams::new());

    // A scope of a model in whose place another was armed.
    let (model, mut optim) = started();
    let armed = optim.arm(LR, model.clone());
    let x = numbers::<2>([3, 4], 1, &flex());
    let kept = checkpoint(&armed, x, Small::forward).mean();
    let model = optim.arm(LR, model);
    assert_panics(|| kept.backward(), "or another model");
    assert_goes_on(optim.disarm(model), &mut optim, plain(&[0]));
}

/// Plain Burn gives such a forward pass gradients: here they are lost.
#[test]
fn a_forward_pass_of_the_model_of_before_arm_is_refused() {
    for is_before in [true, false] {
        let (model, mut optim) = started();
        let early = is_before.then(|| model.loss(1));
        let armed = optim.arm(LR, model.clone());
        let loss = early.unwrap_or_else(|| model.loss(1));
        let grads = GradientsParams::from_grads(loss.backward(), &armed);
        let refused = optim.try_step(LR, armed, grads).unwrap_err();
        assert_error!(refused.error(), NoForward, "arm before the forward pass");
        let model = optim.disarm(refused.into_model());
        assert_goes_on(model, &mut optim, plain(&[0]));
    }
}

#[test]
fn a_step_or_disarming_with_something_else_is_refused() {
    let (model, mut optim) = started();
    let mut model = optim.arm(LR, model);
    let (other, error) = optim.try_disarm(small()).unwrap_err().into_parts();
    assert_error!(error, WrongModel);
    assert_eq!(bits(&other), bits(&small()));
    let (copy, error) = optim.try_disarm(model.clone()).unwrap_err().into_parts();
    assert_error!(error, Copy);
    assert_eq!(copy.values(), plain_values(&[0]));
    drop(copy);

    let grads = grads_of(&model, 1);
    let refused = optim.try_step(LR, other, grads).unwrap_err();
    assert_error!(
        refused.error(),
        WrongModel,
        "pass the model that `arm` returned"
    );
    let (other, grads) = refused.into_given();
    assert_eq!(bits(&other), bits(&small()));
    let refused = optim.try_step(LR, model.clone(), grads).unwrap_err();
    assert_error!(refused.error(), Copy);
    let (_, grads) = refused.into_given();
    let refused = optim.try_step(LR, model.valid(), grads).unwrap_err();
    assert_error!(refused.error(), Copy);
    let (_, grads) = refused.into_given();
    // A part of the model: the first parameter that is found is of a copy, or not there.
    let part = model.first.clone();
    let refused = optim.try_step(LR, part, grads).unwrap_err();
    let error = refused.error();
    let is_named = matches!(
        error,
        ReleaseError::WrongModel { .. } | ReleaseError::Copy { .. }
    );
    assert!(is_named, "{error}");
    let (_, grads) = refused.into_given();
    for wrong in [grads_of(&other, 1), GradientsParams::new()] {
        let refused = optim.try_step(LR, model, wrong).unwrap_err();
        assert_error!(refused.error(), Unclaimed, "GradientsParams::from_grads");
        model = refused.into_model();
    }
    let model = optim.step(LR, model, grads);
    assert_goes_on(model, &mut optim, plain(&[0, 1]));
}

/// The armed model is left, kept or dropped, and another is armed in its place.
#[test]
fn a_model_armed_in_place_of_the_armed_model() {
    for next in ["a copy of it", "the model of before", "a new model"] {
        for is_kept in [true, false] {
            let (model, mut optim) = started();
            let before = model.clone();
            let armed = optim.arm(LR, model);
            let mut plain = plain(&[0]);
            let model = match next {
                "a copy of it" => armed.clone(),
                "the model of before" => before,
                _ => {
                    // States are kept by id, and it has other ids.
                    plain.1 = adamw();
                    plain.0.clone()
                }
            };
            let kept = is_kept.then_some(armed);
            let assert_kept = || {
                let values = |model: &Small| unless_refused(|| model.values());
                if let Some(values) = kept.as_ref().and_then(values) {
                    assert_eq!(values, plain_values(&[0]), "{next}");
                }
            };
            let model = optim.arm(LR, model);
            assert_kept();
            assert_eq!(model.values(), plain_values(&[0]), "{next}");
            let model = finish(model, &mut optim, 1);
            assert_kept();
            assert_goes_on(model, &mut optim, train_plain(plain, &[1]));
        }
    }
}

/// A model with the ids of the armed one, in which it takes no part.
#[test]
fn another_model_of_the_same_ids_is_stepped() {
    let (before, mut optim) = started();
    let armed = optim.arm(LR, before.clone());
    let grads = grads_of(&before, 1);
    let stepped = optim.step(LR, before, grads);
    let plain = plain(&[0, 1]);
    assert_eq!(bits(&stepped), bits(&plain.0));
    assert_eq!(armed.values(), plain_values(&[0]));
    let armed = optim.arm(LR, armed);
    assert_eq!(optim.disarm(armed).values(), plain_values(&[0]));
    assert_goes_on(stepped, &mut optim, plain);
}

/// A copy that was built anew takes the weight of the model with it, which is told so.
#[test]
fn a_model_whose_weight_was_taken_is_refused() {
    let (model, mut optim) = started();
    let mut model = optim.arm(LR, model);
    let mut rebuilt = model.clone();
    rebuilt.tied = rebuilt.tied.set_require_grad(true);
    rebuilt.first = std::mem::replace(&mut model.first, small().first);
    rebuilt.second = std::mem::replace(&mut model.second, small().second);
    let rebuilt = optim.disarm(rebuilt);
    assert_eq!(rebuilt.values(), plain_values(&[0]));
    let what_to_do = "use the model that `step` or `disarm` returned";
    assert_panics(|| model.tied.val(), what_to_do);
    assert_panics(|| model.valid().tied.val(), what_to_do);
    let refused = optim.try_arm(LR, model).unwrap_err();
    assert_error!(refused.error(), Placeholder);
}

/// Burn's own optimizer reads around `Param::val`: it is refused, or the result is right, or at
/// least not readable.
#[test]
fn an_armed_model_given_to_burns_optimizer() {
    for is_dropped in [true, false] {
        let (model, mut optim) = started();
        let mut plain_optim = adamw().load_record(optim.to_record());
        let model = optim.arm(LR, model);
        let loss = model.loss(1);
        let keep = (!is_dropped).then_some(optim);
        let stepped = unless_refused(|| {
            let grads = GradientsParams::from_grads(loss.backward(), &model);
            plain_optim.step(LR, model, grads)
        });
        drop(keep);
        if let Some(values) = stepped.and_then(|model| unless_refused(|| model.values())) {
            assert_eq!(values, plain_values(&[0, 1]), "dropped {is_dropped}");
        }
    }
}

/// A copy from while the model is armed has the same leaves, as in plain Burn.
#[test]
fn a_copy_in_the_loss() {
    let difference = |model: &Small| {
        let copy = model.clone();
        let x = numbers::<2>([3, 4], 1, &flex());
        (model.forward(x.clone()) - copy.forward(x.mul_scalar(0.5)))
            .square()
            .mean()
    };
    let (start, mut plain_optim) = plain(&[0]);
    let plain = plain_step(start, &mut plain_optim, difference);
    let (model, mut optim) = started();
    let model = release_step(model, &mut optim, difference);
    assert_goes_on(model, &mut optim, (plain, plain_optim));
}

#[test]
fn a_layer_replaced_while_armed() {
    let replaced = |mut model: Small| {
        model.second = numbered_from(LinearConfig::new(6, 4).init(&flex()), 77);
        model
    };
    let (model, mut optim) = started();
    let model = replaced(optim.arm(LR, model));
    let model = finish(model, &mut optim, 1);
    let (start, states) = plain(&[0]);
    let plain = train_plain((replaced(start), states), &[1]);
    assert_goes_on(model, &mut optim, plain);

    let (model, mut optim) = started();
    let model = optim.arm(LR, model);
    let grads = grads_of(&model, 1);
    let refused = optim.try_step(LR, replaced(model), grads).unwrap_err();
    assert_error!(refused.error(), WrongModel, "rebuilt");
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

/// One process, which has two gradients in flight.
struct TwoInFlight;

impl GradientReduction for TwoInFlight {
    fn begin(
        &self,
        _: ParamId,
        grad: Tensor<1>,
        _: Recipients,
    ) -> Result<Box<dyn PendingGradient>, ReductionError> {
        Ok(Box::new(Pending(grad)))
    }

    fn max_in_flight(&self) -> NonZeroUsize {
        NonZeroUsize::MIN.saturating_add(1)
    }
}

struct Pending(Tensor<1>);

impl PendingGradient for Pending {
    fn wait(self: Box<Self>) -> Result<Option<Tensor<1>>, ReductionError> {
        Ok(Some(self.0))
    }
}

/// It waited for itself before: for the weight that it steps, or for one whose gradient is in flight.
#[test]
fn an_optimizer_that_reads_what_it_steps_is_refused() {
    for is_in_flight in [false, true] {
        assert_reading_is_refused(is_in_flight);
    }
}

fn assert_reading_is_refused(is_in_flight: bool) {
    let (done, is_done) = mpsc::channel();
    thread::spawn(move || {
        let armed = Arc::<Mutex<Option<Small>>>::default();
        let read = armed.clone();
        let onlooker = watched_adamw(move || {
            let armed = read.lock().expect("nobody panics with it").clone();
            if let Some(armed) = armed {
                armed.values();
            }
        });
        let refused = panic_of(|| {
            let mut optim = onlooker.with_gradient_release();
            if is_in_flight {
                optim = optim.with_reduction(Arc::new(TwoInFlight));
            }
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
    let what_to_do = "a copy of the model taken before `arm`";
    assert!(text.contains(what_to_do), "{text}");
}
