//! Wrong orders of calls: refused with an error that says so, and with the model handed back.

use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use burn::lr_scheduler::step::StepLrSchedulerConfig;
use burn::optim::MultiGradientsParams;
use burn::tensor::backend::DeviceOps;

use super::{
    Inner, Model, P, PARAMETERS, R, adam, armed_step, bench, gradients, loss, start, weights,
};
use crate::harness::prelude::*;

#[test]
fn a_second_backward_is_refused() {
    let (model, mut optim, expected) = bench(1);
    let model = optim.arm(RATE, model);
    let (first, second) = (loss(&model, 0), loss(&model, 1));
    let _ = first.backward();
    let grads = run::gradients(&model, second);
    let stepped = optim.try_step(RATE, model, grads);
    let (model, grads) = refused!(stepped, ReleaseError::AlreadyStepped { .. });
    assert!(!grads.is_empty(), "handed back");
    assert_eq!(weights(&model).len(), PARAMETERS);
    weights(&model).assert_same(&expected.steps[0], "stepped once, by the first backward");
}

/// Also if the second is over other parameters, so that each has one gradient.
#[test]
fn a_backward_whose_gradients_nobody_asks_for_is_refused() {
    let of_layer = |model: &Model, layer: usize| {
        let x = noise::<R, 2>(1, [4, 8], &Default::default());
        model.layers[layer].forward(x).mean()
    };
    let (model, mut optim, _) = bench(1);
    let model = optim.arm(RATE, model);
    let (first, second) = (of_layer(&model, 0), of_layer(&model, 1));
    let unclaimed = model.layers[0].weight.id;
    let thrown_away = first.backward();
    let grads = run::gradients(&model, second);
    let stepped = optim.try_step(RATE, model, grads);
    let (model, _) = refused!(stepped, error @ ReleaseError::Unclaimed { param }
        if *param == unclaimed && error.to_string().contains("load the last checkpoint"));

    // Asking for them late will do.
    let grads = GradientsParams::from_grads(thrown_away, &model);
    let model = optim.step(RATE, model, grads);
    assert_eq!(weights(&model).len(), PARAMETERS);
}

/// One refusal after the other, each of which changes nothing. (Arming, also by fork, and disarming
/// are among [`sequences`](crate::sequences).)
#[test]
fn between_backward_and_step_all_but_that_step_is_refused() {
    const UNFINISHED: ReleaseError = ReleaseError::Unfinished {
        stepped: PARAMETERS,
        armed: PARAMETERS,
    };
    let (model, mut optim, expected) = bench(2);
    let model = optim.arm(RATE, model);
    let grads = gradients(&model, 0);

    let unrelated = start::<Mlp>().model::<Mlp, R>();
    let stepped = optim.try_step(RATE, unrelated, GradientsParams::new());
    refused!(stepped, ReleaseError::WrongModel { .. });

    let stepped = optim.try_step(2.0 * RATE, model, grads);
    let (model, _) = refused!(stepped, ReleaseError::LearningRate { armed, given }
        if *armed == RATE && *given == 2.0 * RATE);

    // What was released has seen one device's gradients only.
    let device = <Inner as BackendTypes>::Device::default().id();
    let grads = vec![(GradientsParams::new(), device)];
    let stepped = optim.try_step_multi(RATE, model, MultiGradientsParams { grads });
    let (model, _) = refused!(
        stepped,
        ReleaseError::MultiDevice {
            stepped: PARAMETERS,
            armed: PARAMETERS
        }
    );
    assert_eq!(optim.try_to_record().err(), Some(UNFINISHED));

    let model = optim.step(RATE, model, GradientsParams::new());
    weights(&model).assert_same(&expected.steps[0], "nothing is lost");
    assert_eq!(optim.to_record().len(), PARAMETERS);
    let model = optim.arm(RATE, model);
    drop(gradients(&model, 1));
    weights(&model).assert_same(&expected.steps[1], "the step after");
    let refused = optim.try_into_adaptor().err().expect("removal");
    assert_eq!(*refused.error(), UNFINISHED);
    // Handed back.
    let mut optim = refused.into_model();
    optim.step(RATE, model, GradientsParams::new());
    assert!(optim.try_into_adaptor().is_ok());
}

/// They are for the model that was armed with them.
#[test]
fn sums_are_not_lost_with_another_model() {
    let (model, mut optim, expected) = bench(1);
    let sums = gradients(&model, 0);
    let model = optim.arm_accumulated(RATE, model, sums);
    let unrelated = start::<Mlp>().model::<Mlp, R>();
    let stepped = optim.try_step(RATE, unrelated, GradientsParams::new());
    refused!(stepped, ReleaseError::WrongModel { .. });
    let model = optim.step(RATE, model, GradientsParams::new());
    weights(&model).assert_same(&expected.steps[0], "of the sums alone");
}

/// The reason is of the replicas; the way out is the same for all.
#[test]
fn replicas_that_disagree_say_how_to_go_on() {
    let (_, mut optim, _) = bench(1);
    optim.complete_next_record(|_| Err("rank 1 is gone".into()));
    let error = optim.try_to_record().err().expect("a state is missing");
    let text = error.to_string();
    assert!(
        text.starts_with("rank 1 is gone; let the process end"),
        "{text}"
    );
}

/// Loops that clone the model for `step` get the stepped weights; the original, which would be
/// neither old nor new, says so when it is read.
#[test]
fn a_copy_of_the_armed_model_may_finish_the_step() {
    let (model, mut optim, expected) = bench(2);
    let model = optim.arm(RATE, model);
    let copy = model.clone();
    let grads = gradients(&model, 0);
    let copy = optim.step(RATE, copy, grads);
    weights(&copy).assert_same(&expected.steps[0], "the copy");
    // The original is given up, not silently old.
    panic_of(|| weights(&model));
    let loaded = model.load_record(copy.clone().into_record());
    weights(&loaded).assert_same(&expected.steps[0], "the original, loaded");
    let copy = armed_step(&mut optim, copy, 1);
    weights(&copy).assert_same(&expected.steps[1], "the copy goes on");
}

/// Two parameters with one id, as cloning a `Param` makes them.
#[derive(Module, Debug)]
struct Twins<B: Backend> {
    one: Param<Tensor<B, 2>>,
    two: Param<Tensor<B, 2>>,
}

#[test]
fn two_parameters_with_one_id_are_refused() {
    let one: Param<Tensor<R, 2>> = Param::from_tensor(noise(1, [2, 2], &Default::default()));
    let shared = one.id;
    let twins = Twins {
        two: one.clone(),
        one,
    };
    let before = Weights::of(&twins);
    let mut optim = adam::<Twins<R>>();
    let way_out = "keep one `Param` and use it in both places";
    let armed = optim.try_arm(RATE, twins);
    let (twins, ()) = refused!(armed, error @ ReleaseError::DuplicateParam { param }
        if *param == shared && error.to_string().contains(way_out));
    Weights::of(&twins).assert_same(&before, "handed back as it was");
    assert!(!optim.is_armed());
}

/// Two parameters over one leaf, as `Param::from_tensor(one.val())` makes them: Burn has one gradient
/// for both, and trains the first alone.
#[test]
fn two_parameters_of_one_tensor_are_refused() {
    let one: Param<Tensor<R, 2>> = Param::from_tensor(noise(1, [2, 2], &Default::default()));
    let two = Param::from_tensor(one.val());
    let (first, second) = (one.id, two.id);
    assert_ne!(first, second);
    let twins = Twins { one, two };
    let mut optim = adam::<Twins<R>>();
    let expected = ReleaseError::SharedTensor { first, second };
    let (twins, ()) = refused!(optim.try_arm(RATE, twins), error if *error == expected);
    let armed = ReleaseAccumulator::new().try_arm(twins);
    let (twins, ()) = refused!(armed, error if *error == expected);
    let fork = || unreachable!("it is refused before");
    let armed = optim.try_arm_by_fork(RATE, twins.clone(), GradientsParams::new(), fork);
    refused!(armed, error if *error == expected);

    // The way out that the error names.
    let two = Param::from_tensor(twins.one.val().detach());
    let twins = Twins { two, ..twins };
    let product = |twins: &Twins<R>| (twins.one.val() * twins.two.val()).sum();
    run::armed_step(RATE, twins, &mut optim, product);
    assert_all_released(&optim.last_step().expect("a step"), 2);
}

/// Adam that panics at the fourth of six parameters.
fn failing() -> ReleaseOptimizer<Hooked, Model, R> {
    Hooked::failing_at(4)
        .make::<R, Model>()
        .with_gradient_release()
}

#[test]
fn a_panic_half_way_is_told_until_a_checkpoint_is_loaded() {
    let start = start::<Mlp>();
    let expected = run::plain::<Mlp, _, P>(&start, &AdamConfig::new(), 2);
    let mut optim = failing();
    let model = optim.arm(RATE, start.model::<Mlp, R>());
    // The failure is not swallowed.
    panic_of(|| loss(&model, 0).backward());

    let interrupted = ReleaseError::Interrupted {
        stepped: 3,
        armed: PARAMETERS,
    };
    let text = interrupted.to_string();
    assert!(text.contains("checkpoint"), "names the way back: {text}");
    assert_eq!(optim.try_to_record().err().as_ref(), Some(&interrupted));
    let (model, ()) = refused!(optim.try_arm(RATE, model), error if *error == interrupted);
    let stepped = optim.try_step(RATE, model, GradientsParams::new());
    let (model, _) = refused!(stepped, error if *error == interrupted);
    // Last to first: the last layer and the bias below are new, the weight below was lost.
    let last = Weights::of(&model.layers[2]);
    assert_eq!(last.distance_within(&expected.steps[0], 4), 0.0, "stepped");
    let first = Weights::of(&model.layers[0]);
    assert_eq!(
        first.distance_within(&expected.first, 0),
        0.0,
        "not stepped"
    );
    let text = panic_of(|| weights(&model));
    assert!(text.contains("checkpoint"), "{text}");

    // The checkpoint of before the first step: first weights and an empty record. The failure was
    // the fourth call only, so the optimizer itself is sound again.
    let mut optim = optim.load_record(Default::default());
    let model = model.load_record(start.model::<Mlp, R>().into_record());
    let loss = |model: &_, step| loss::<R>(model, step);
    let (again, _) = run::armed(model, &mut optim, 2, &loss);
    assert_same_steps(&again.steps, &expected.steps, "from the checkpoint");
}

#[test]
fn a_panic_inside_an_ordinary_step_is_told_too() {
    let model = start::<Mlp>().model::<Mlp, R>();
    let mut optim = failing();
    let grads = gradients(&model, 0);
    panic_of(|| optim.step(RATE, model, grads));
    let error = optim.try_to_record().err().expect("the states are mixed");
    assert!(
        matches!(error, ReleaseError::Interrupted { .. }),
        "{error:?}"
    );
}

/// It waited for itself before.
#[test]
fn an_optimizer_that_reads_the_parameter_it_steps_is_refused() {
    let (done, is_done) = mpsc::channel();
    thread::spawn(move || {
        let text = panic_of(|| {
            // The model itself: a clone would have the weights of its own moment.
            let armed = Arc::<Mutex<Option<Arc<Model>>>>::default();
            let seen = armed.clone();
            let onlooker = Hooked::with_hook(move |_, rate| {
                let armed = seen.lock().expect("nobody panics with it").clone();
                drop(armed.expect("it is armed").layers[2].weight.val());
                rate
            });
            let mut optim = onlooker.make::<R, Model>().with_gradient_release();
            let model = Arc::new(optim.arm(RATE, start::<Mlp>().model::<Mlp, R>()));
            *armed.lock().expect("nobody panics with it") = Some(model.clone());
            drop(loss(&model, 0).backward());
        });
        // Nobody listens any more if it took too long.
        let _ = done.send(text);
    });
    let text = is_done
        .recv_timeout(Duration::from_secs(120))
        .expect("it is refused, and does not wait for itself");
    assert!(text.contains("while it steps"), "{text}");
    assert!(
        text.contains("a clone of the model taken before `arm`"),
        "{text}"
    );
}

#[test]
fn a_rate_that_is_none_is_refused() {
    let (mut model, mut optim, expected) = bench(1);
    let mut grads = gradients(&model, 0);
    for rate in [f64::NAN, f64::INFINITY, -RATE] {
        (model, _) = refused!(optim.try_arm(rate, model), ReleaseError::OutOfRange { .. });
        let stepped = optim.try_step(rate, model, grads);
        (model, grads) = refused!(stepped, ReleaseError::OutOfRange { .. });
    }
    let model = optim.step(RATE, model, grads);
    weights(&model).assert_same(&expected.steps[0], "as if nothing had been asked");
}

/// The step before it is taken; the one with it is refused, and not left out without a word.
#[test]
fn a_schedule_that_comes_to_no_rate_is_refused() {
    let ends = StepLrSchedulerConfig::new(RATE, 1).with_gamma(f64::NAN);
    let (model, optim, expected) = bench(1);
    let mut optim = optim.with_lr_scheduler(ends.init().expect("any gamma will do"));
    let model = armed_step(&mut optim, model, 0);
    weights(&model).assert_same(&expected.steps[0], "the step before");
    let grads = gradients(&model, 1);
    let stepped = optim.try_step(f64::NAN, model, grads);
    let (model, _) = refused!(stepped, ReleaseError::OutOfRange { .. });
    weights(&model).assert_same(&expected.steps[0], "the step before");
}

#[test]
#[should_panic(expected = "a budget of 0 bytes keeps no activation")]
fn a_budget_of_nothing_is_refused() {
    let _ = adam::<Model>().with_recompute(Recompute::Budget(0));
}
