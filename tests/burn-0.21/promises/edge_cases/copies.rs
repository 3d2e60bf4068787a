//! Value semantics: a copy keeps the values it had, whatever happens to the original.

use super::{
    Inner, Model, P, PARAMETERS, R, TOLERANCE, adam, armed_step, bench, gradients, loss, start,
    weights,
};
use crate::harness::prelude::*;

/// What was taken of a model, in every way, and the values that it has to have.
struct Taken {
    when: &'static str,
    then: Weights,
    models: [(&'static str, Model); 3],
    valid: MlpModel<Inner>,
    record: <Model as Module<R>>::Record,
    bytes: Vec<u8>,
}

impl Taken {
    fn new(when: &'static str, model: &Model, then: &Weights) -> Self {
        let device = Default::default();
        Self {
            when,
            then: then.clone(),
            models: [
                ("clone", model.clone()),
                ("to_device", model.clone().to_device(&device)),
                ("fork", model.clone().fork(&device)),
            ],
            valid: model.valid(),
            record: model.clone().into_record(),
            bytes: save::<R, _>(model.clone()),
        }
    }

    /// `fresh` is a model of other weights, to load records into.
    fn check(self, fresh: Model) {
        let check = |way: &str, weights: Weights| {
            weights.assert_near(&self.then, TOLERANCE, format!("{way}, {}", self.when));
        };
        for (way, model) in &self.models {
            check(way, weights(model));
        }
        check("valid", Weights::of(&self.valid));
        check("record", weights(&fresh.clone().load_record(self.record)));
        let loaded = load::<R, _>(fresh, &self.bytes, &Default::default());
        check("bytes", weights(&loaded));
    }
}

#[test]
fn whatever_is_taken_of_a_model_keeps_its_values() {
    let (mut model, mut optim, expected) = bench(3);
    let mut taken = Vec::new();
    for step in 0..3 {
        let (old, new) = (weights(&model), &expected.steps[step as usize]);
        taken.push(Taken::new("before arming", &model, &old));
        model = optim.arm(RATE, model);
        taken.push(Taken::new("armed", &model, &old));
        let step_loss = loss(&model, step);
        taken.push(Taken::new("after forward", &model, &old));
        let grads = run::gradients(&model, step_loss);
        model = optim.step(RATE, model, grads);
        taken.push(Taken::new("after the step", &model, new));
        // None of it gets in the way of training.
        weights(&model).assert_near(new, TOLERANCE, step);
    }
    let fresh = start::<Mlp>().model::<Mlp, R>();
    taken
        .into_iter()
        .for_each(|taken| taken.check(fresh.clone()));
}

#[test]
fn a_copy_can_be_trained_on() {
    let (model, mut optim, expected) = bench(2);
    let armed = optim.arm(RATE, model);
    let copy = armed.clone();
    let grads = gradients(&armed, 0);
    let stepped = optim.step(RATE, armed, grads);
    // The old one from where it was, by another optimizer.
    let copy = armed_step(&mut adam(), copy, 0);
    weights(&copy).assert_near(&expected.steps[0], TOLERANCE, "the same first step again");
    // The new one, and what is made of it.
    let validated = Model::from_inner(stepped.valid());
    assert!(validated.layers[0].weight.is_require_grad());
    let copy = armed_step(&mut optim, stepped.clone(), 1);
    weights(&copy).assert_near(
        &expected.steps[1],
        TOLERANCE,
        "training goes on with the copy",
    );

    // If the armed model is gone, its gradients are those of an ordinary one.
    let (model, mut optim, expected) = bench(1);
    let model = optim.arm(RATE, model);
    let (copy, loss) = (model.clone(), loss(&model, 0));
    drop(model);
    let grads = run::gradients(&copy, loss);
    assert_eq!(grads.len(), PARAMETERS);
    let copy = optim.step(RATE, copy, grads);
    weights(&copy).assert_near(&expected.steps[0], TOLERANCE, "an ordinary step");
}

#[test]
fn forking_the_armed_model_itself_trains_on() {
    let (mut model, mut optim, expected) = bench(2);
    for step in 0..2 {
        model = optim.arm(RATE, model).fork(&Default::default());
        // New leaves are not armed: the gradients are returned, and the step is ordinary.
        let grads = gradients(&model, step);
        assert_eq!(grads.len(), PARAMETERS);
        model = optim.step(RATE, model, grads);
        weights(&model).assert_near(&expected.steps[step as usize], TOLERANCE, step);
        let report = optim.last_step().expect("a step was taken");
        assert_eq!(outcomes(&report), [0, 0, PARAMETERS, 0]);
    }
}

/// In Burn `to_device` gives a model that cannot be trained: its tensors are no leaves any more.
#[test]
fn to_device_before_arming_means_what_it_means_in_burn() {
    let start = start::<Mlp>();
    let mut plain = start.model::<Mlp, P>();
    let mut plain_optim = AdamConfig::new().init();
    let mut model = start.model::<Mlp, R>();
    let mut optim = adam();
    for step in 0..3 {
        plain = plain.to_device(&Default::default());
        let plain_grads = run::gradients(&plain, loss(&plain, step));
        let used = plain_grads.len();
        plain = plain_optim.step(RATE, plain, plain_grads);

        model = optim.arm(RATE, model.to_device(&Default::default()));
        let grads = gradients(&model, step);
        model = optim.step(RATE, model, grads);
        weights(&model).assert_near(&Weights::of(&plain), TOLERANCE, step);
        let report = optim.last_step().expect("a step was taken");
        let stepped = report.count(Outcome::Released) + report.count(Outcome::Ordinary);
        assert_eq!(stepped, used, "step {step}");
    }
}

#[test]
fn loading_a_record_into_an_armed_model_replaces_it() {
    let (model, mut optim, expected) = bench(2);
    let first = save::<R, _>(model.clone());
    let model = armed_step(&mut optim, model, 0);
    let model = armed_step(&mut optim, model, 1);
    weights(&model).assert_near(&expected.steps[1], TOLERANCE, "trained");

    // Back to the start, while armed: new leaves, hence ordinary gradients, and the state of a
    // fresh optimizer gives the first step again.
    let mut optim = adam();
    let model = optim.arm(RATE, model);
    let model = load::<R, _>(model, &first, &Default::default());
    weights(&model).assert_near(&expected.first, TOLERANCE, "loaded");
    let grads = gradients(&model, 0);
    let model = optim
        .try_step(RATE, model, grads)
        .expect("nothing was released elsewhere");
    weights(&model).assert_near(&expected.steps[0], TOLERANCE, "the first step again");
    // The next step is armed as ever.
    let model = armed_step(&mut optim, model, 1);
    weights(&model).assert_near(&expected.steps[1], TOLERANCE, "the second");
    assert_all_released(&optim.last_step().expect("a step was taken"), PARAMETERS);
}

#[test]
fn no_grad_on_an_armed_model_stops_its_training() {
    let (model, mut optim, expected) = bench(1);
    let model = optim.arm(RATE, model).no_grad();
    assert!(!model.layers[0].weight.is_require_grad());
    // A loss needs something to be differentiated by.
    let input = noise::<R, 2>(0, [2, 8], &Default::default()).require_grad();
    let output = model.layers[0].forward(input.clone()).sum();
    let mut grads = output.backward();
    assert!(input.grad(&grads).is_some());
    let grads = GradientsParams::from_module(&mut grads, &model);
    assert!(grads.is_empty());
    let model = optim
        .try_step(RATE, model, grads)
        .expect("nothing was released");
    weights(&model).assert_near(&expected.first, TOLERANCE, "frozen");
}

#[test]
fn a_clone_of_the_optimizer_is_independent() {
    let (mut model, mut optim, expected) = bench(4);
    model = armed_step(&mut optim, model, 0);
    let (mut copy, mut copy_model) = (optim.clone(), model.clone());
    // The original runs ahead, through other inputs.
    for step in 10..13 {
        model = armed_step(&mut optim, model, step);
    }
    assert!(!weights(&model).same(&expected.steps[0]));
    for step in 1..4 {
        copy_model = armed_step(&mut copy, copy_model, step);
        weights(&copy_model).assert_near(&expected.steps[step as usize], TOLERANCE, "the copy");
    }
}

/// What burn-train does: the optimizer is cloned while the model is armed by the first one.
#[test]
fn a_clone_of_an_armed_optimizer_leaves_the_step_to_the_original() {
    let (model, mut optim, expected) = bench(2);
    let model = optim.arm(RATE, model);
    let copy = optim.clone();
    let grads = gradients(&model, 0);
    let model = optim.step(RATE, model, grads);
    weights(&model).assert_near(&expected.steps[0], TOLERANCE, "the original");
    let record = copy.try_to_record();
    assert!(
        record.map_or(true, |record| record.is_empty()),
        "not the copy's step"
    );
    let model = armed_step(&mut optim, model, 1);
    weights(&model).assert_near(&expected.steps[1], TOLERANCE, "the original, once more");
}

/// Plain Burn's clone would have the weights from before the step: it is not passed off as that.
/// What copies the values at once has the new ones.
#[test]
fn what_is_taken_in_the_middle_of_a_step_has_the_new_values_or_none() {
    let (model, mut optim, expected) = bench(1);
    let model = optim.arm(RATE, model);
    let grads = gradients(&model, 0);
    let (clone, valid, bytes) = (model.clone(), model.valid(), save::<R, _>(model.clone()));
    let model = optim.step(RATE, model, grads);

    weights(&model).assert_near(&expected.steps[0], TOLERANCE, "stepped");
    Weights::of(&valid).assert_near(&expected.steps[0], TOLERANCE, "valid");
    let fresh = start::<Mlp>().model::<Mlp, R>();
    let loaded = load::<R, _>(fresh, &bytes, &Default::default());
    weights(&loaded).assert_near(&expected.steps[0], TOLERANCE, "bytes");
    let attempts: [&dyn Fn(); 3] = [
        &|| drop(weights(&clone)),
        &|| drop(loss(&clone, 1)),
        &|| drop(clone.valid()),
    ];
    for attempt in attempts {
        let text = panic_of(attempt);
        assert!(text.contains("taken after backward"), "{text}");
        assert!(text.contains("before backward, or of the model"), "{text}");
    }
}
