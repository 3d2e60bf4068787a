//! Value semantics: a copy keeps the values it had, whatever happens to the original.

use std::panic::{AssertUnwindSafe, catch_unwind};

use burn::module::{AutodiffModule, Module};
use burn::optim::{GradientsParams, Optimizer};
use burn_gradient_release::{Outcome, WithGradientRelease};

use super::{
    Bench, Inner, Model, P, PARAMETERS, R, armed_step, bench, gradients, loss, start, weights,
};
use crate::harness::models::{Mlp, MlpModel};
use crate::harness::run::{self, RATE, assert_all_released};
use crate::harness::weights::{load, save};
use crate::harness::{Recipe, Weights};
use burn::optim::AdamConfig;

#[test]
fn clones_kept_as_best_so_far_do_not_move() {
    let Bench {
        mut model,
        mut optim,
        expected,
    } = bench(4);
    let mut kept: Vec<(&str, Model, Weights)> = Vec::new();
    for step in 0..3 {
        let now = weights(&model);
        kept.push(("before arming", model.clone(), now.clone()));
        model = optim.arm(RATE, model);
        kept.push(("armed", model.clone(), now.clone()));
        let step_loss = loss(&model, step);
        kept.push(("after forward", model.clone(), now.clone()));
        let grads = GradientsParams::from_grads(step_loss.backward(), &model);
        let new = expected.steps[step as usize].clone();
        model = optim.step(RATE, model, grads);
        kept.push(("after the step", model.clone(), new));
    }
    for (when, copy, then) in &kept {
        weights(copy).assert_same(then, when);
    }
    // Cloning did not get in the way of training either.
    weights(&model).assert_same(&expected.steps[2], "the original");

    // And a copy can be trained on.
    let (_, copy, _) = kept.pop().expect("copies were kept");
    let copy = armed_step(&mut optim, copy, 3);
    weights(&copy).assert_same(&expected.steps[3], "training goes on with the copy");
}

#[test]
fn an_old_copy_trains_from_where_it_was() {
    let Bench {
        model,
        mut optim,
        expected,
    } = bench(1);
    let armed = optim.arm(RATE, model);
    let copy = armed.clone();
    let grads = gradients(&armed, 0);
    let _ = optim.step(RATE, armed, grads);

    let mut fresh = AdamConfig::new().init::<R, Model>().with_gradient_release();
    let copy = armed_step(&mut fresh, copy, 0);
    weights(&copy).assert_same(&expected.steps[0], "the same first step again");
}

#[test]
fn valid_keeps_what_it_saw() {
    let Bench {
        model,
        mut optim,
        expected,
    } = bench(1);
    let before = model.valid();
    let model = optim.arm(RATE, model);
    let armed = model.valid();
    let grads = gradients(&model, 0);
    let after_backward = model.valid();
    let model = optim.step(RATE, model, grads);
    let after_step = model.valid();

    let of = |inner: &MlpModel<Inner>| Weights::of::<Inner, _>(inner);
    of(&before).assert_same(&expected.first, "before arming");
    of(&armed).assert_same(&expected.first, "armed");
    of(&after_backward).assert_same(&expected.steps[0], "after backward");
    of(&after_step).assert_same(&expected.steps[0], "after the step");

    // And back to training.
    let trained = Model::from_inner(after_step);
    assert!(trained.layers[0].weight.is_require_grad());
    weights(&trained).assert_same(&expected.steps[0], "from_inner");
}

/// Trains one ordinary step without arming and returns the weights.
fn unarmed_step(model: Model, step: u64) -> Weights {
    let mut optim = AdamConfig::new().init::<R, Model>();
    let model = run::ordinary_step(RATE, model.clone(), &mut optim, loss(&model, step));
    weights(&model)
}

#[test]
fn a_fork_of_an_armed_model_is_its_own_model() {
    let Bench {
        model,
        mut optim,
        expected,
    } = bench(1);
    let model = optim.arm(RATE, model);
    let fork = model.clone().fork(&Default::default());
    let fork_grads = gradients(&fork, 0);
    assert_eq!(
        fork_grads.len(),
        PARAMETERS,
        "a fork's gradients are its own"
    );
    weights(&model).assert_same(&expected.first, "the fork's backward stepped nothing");

    let model = {
        let grads = gradients(&model, 0);
        optim.step(RATE, model, grads)
    };
    weights(&model).assert_same(&expected.steps[0], "the original");
    weights(&fork).assert_same(&expected.first, "the fork");
    unarmed_step(fork, 0).assert_same(&expected.steps[0], "the fork, trained");
}

#[test]
fn forking_the_armed_model_itself_trains_on() {
    let Bench {
        mut model,
        mut optim,
        expected,
    } = bench(2);
    for step in 0..2 {
        model = optim.arm(RATE, model).fork(&Default::default());
        // New leaves are not armed: the gradients are returned, and the step is ordinary.
        let grads = gradients(&model, step);
        assert_eq!(grads.len(), PARAMETERS);
        model = optim.step(RATE, model, grads);
        weights(&model).assert_same(&expected.steps[step as usize], step);
        let report = optim.last_step().expect("a step was taken");
        assert_eq!(report.count(Outcome::Ordinary), PARAMETERS);
    }
}

/// In Burn `to_device` gives a model that cannot be trained: its tensors are no leaves any more.
#[test]
fn to_device_before_arming_means_what_it_means_in_burn() {
    let start = start::<Mlp>();
    let mut plain = start.model::<Mlp, P>();
    let mut plain_optim = AdamConfig::new().init();
    let mut model = start.model::<Mlp, R>();
    let mut optim = AdamConfig::new().init::<R, Model>().with_gradient_release();
    for step in 0..3 {
        plain = plain.to_device(&Default::default());
        let plain_grads = GradientsParams::from_grads(loss(&plain, step).backward(), &plain);
        let used = plain_grads.len();
        plain = plain_optim.step(RATE, plain, plain_grads);

        model = optim.arm(RATE, model.to_device(&Default::default()));
        let grads = gradients(&model, step);
        model = optim.step(RATE, model, grads);
        weights(&model).assert_same(&Weights::of::<P, _>(&plain), step);
        let report = optim.last_step().expect("a step was taken");
        let stepped = report.count(Outcome::Released) + report.count(Outcome::Ordinary);
        assert_eq!(stepped, used, "step {step}");
    }
}

#[test]
fn to_device_of_an_armed_copy_keeps_its_values() {
    let Bench {
        model,
        mut optim,
        expected,
    } = bench(1);
    let model = optim.arm(RATE, model);
    let moved = model.clone().to_device(&Default::default());
    let grads = gradients(&model, 0);
    let model = optim.step(RATE, model, grads);
    weights(&model).assert_same(&expected.steps[0], "the original");
    weights(&moved).assert_same(&expected.first, "the moved copy");
}

#[test]
fn a_record_of_an_armed_model_has_its_values() {
    let Bench {
        model,
        mut optim,
        expected,
    } = bench(1);
    let model = optim.arm(RATE, model);
    let (bytes, record) = (save::<R, _>(model.clone()), model.clone().into_record());
    let grads = gradients(&model, 0);
    let after_backward = save::<R, _>(model.clone());
    let model = optim.step(RATE, model, grads);

    let device = Default::default();
    let fresh = || start::<Mlp>().model::<Mlp, R>();
    weights(&load::<R, _>(fresh(), &bytes, &device)).assert_same(&expected.first, "bytes");
    weights(&fresh().load_record(record)).assert_same(&expected.first, "record");
    weights(&load::<R, _>(fresh(), &after_backward, &device))
        .assert_same(&expected.steps[0], "after backward");
    weights(&model).assert_same(&expected.steps[0], "the original");
}

#[test]
fn loading_a_record_into_an_armed_model_replaces_it() {
    let Bench {
        model,
        mut optim,
        expected,
    } = bench(2);
    let first = save::<R, _>(model.clone());
    let model = armed_step(&mut optim, model, 0);
    let model = armed_step(&mut optim, model, 1);
    weights(&model).assert_same(&expected.steps[1], "trained");

    // Back to the start, while armed: new leaves, hence ordinary gradients, and the state of a
    // fresh optimizer gives the first step again.
    let mut optim = AdamConfig::new().make::<R, Model>().with_gradient_release();
    let model = optim.arm(RATE, model);
    let model = load::<R, _>(model, &first, &Default::default());
    weights(&model).assert_same(&expected.first, "loaded");
    let grads = gradients(&model, 0);
    let model = optim
        .try_step(RATE, model, grads)
        .expect("nothing was released elsewhere");
    weights(&model).assert_same(&expected.steps[0], "the first step again");
    // The next step is armed as ever.
    let model = armed_step(&mut optim, model, 1);
    weights(&model).assert_same(&expected.steps[1], "the second");
    assert_all_released(&optim.last_step().expect("a step was taken"), PARAMETERS);
}

#[test]
fn no_grad_on_an_armed_model_stops_its_training() {
    let Bench {
        model,
        mut optim,
        expected,
    } = bench(1);
    let model = optim.arm(RATE, model).no_grad();
    assert!(!model.layers[0].weight.is_require_grad());
    // A loss needs something to be differentiated by.
    let input = crate::harness::noise::<R, 2>(0, [2, 8], &Default::default()).require_grad();
    let output = model.layers[0].forward(input.clone()).sum();
    let mut grads = output.backward();
    assert!(input.grad(&grads).is_some());
    let grads = GradientsParams::from_module(&mut grads, &model);
    assert!(grads.is_empty());
    let model = optim
        .try_step(RATE, model, grads)
        .expect("nothing was released");
    weights(&model).assert_same(&expected.first, "frozen");
}

#[test]
fn a_clone_of_the_optimizer_is_independent() {
    let start = start::<Mlp>();
    let expected = run::plain::<Mlp, _, P>(&start, &AdamConfig::new(), 4);
    let mut model = start.model::<Mlp, R>();
    let mut optim = AdamConfig::new().init::<R, Model>().with_gradient_release();
    model = armed_step(&mut optim, model, 0);
    let mut copy = optim.clone();
    let mut copy_model = model.clone();
    // The original runs ahead, through other inputs.
    for step in 10..13 {
        model = armed_step(&mut optim, model, step);
    }
    assert!(!weights(&model).same(&expected.steps[0]));
    for step in 1..4 {
        copy_model = armed_step(&mut copy, copy_model, step);
        weights(&copy_model).assert_same(&expected.steps[step as usize], "the copy");
    }
}

/// What burn-train does: the optimizer is cloned while the model is armed by the first one.
#[test]
fn a_clone_of_an_armed_optimizer_leaves_the_step_to_the_original() {
    let Bench {
        model,
        mut optim,
        expected,
    } = bench(2);
    let model = optim.arm(RATE, model);
    let copy = optim.clone();
    let grads = gradients(&model, 0);
    let model = optim.step(RATE, model, grads);
    weights(&model).assert_same(&expected.steps[0], "the original");
    assert!(
        copy.try_to_record()
            .map_or(true, |record| record.is_empty()),
        "not the copy's step"
    );
    let model = armed_step(&mut optim, model, 1);
    weights(&model).assert_same(&expected.steps[1], "the original, once more");
}

#[test]
fn unarmed_gradients_are_those_of_plain_burn() {
    let start = start::<Mlp>();
    let plain = start.model::<Mlp, P>();
    let release = start.model::<Mlp, R>();
    let plain_grads = loss(&plain, 0).backward();
    let release_grads = loss(&release, 0).backward();
    for (plain, release) in plain.layers.iter().zip(&release.layers) {
        let expected = plain.weight.grad(&plain_grads).expect("used").into_data();
        let given = release
            .weight
            .grad(&release_grads)
            .expect("used")
            .into_data();
        assert_eq!(expected.as_bytes(), given.as_bytes());
        assert!(expected.iter::<f32>().any(|value| value != 0.0));
    }
}

/// Plain Burn's copy would have the weights from before the step: it is not passed off as that.
#[test]
fn a_copy_taken_in_the_middle_of_a_step_is_not_kept() {
    let Bench {
        model,
        mut optim,
        expected,
    } = bench(1);
    let before = model.clone();
    let model = optim.arm(RATE, model);
    let grads = gradients(&model, 0);
    let between = model.clone();
    let model = optim.step(RATE, model, grads);

    weights(&model).assert_same(&expected.steps[0], "stepped");
    weights(&before).assert_same(&expected.first, "taken before backward");
    let attempts: [&dyn Fn(); 3] = [
        &|| drop(weights(&between)),
        &|| drop(loss(&between, 1)),
        &|| drop(between.valid()),
    ];
    for attempt in attempts {
        let caught = catch_unwind(AssertUnwindSafe(attempt));
        let payload = caught.expect_err("half a step old");
        let text = payload.downcast_ref::<String>().expect("a text");
        assert!(text.contains("taken after backward"), "{text}");
        assert!(text.contains("before backward, or of the model"), "{text}");
    }
}
