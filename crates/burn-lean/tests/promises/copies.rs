//! Copies of a model and what its parameters carry. What a user does with copies in any order is walked
//! through in `edges::sequences`.

use burn::nn::LinearLayout;

use crate::harness::prelude::*;

/// It shares the memory of the weights, so the next step copies them, once.
#[test]
fn a_living_copy_prevents_steps_in_place() {
    let (mut model, mut optim) = crate::small::started();
    for (keeps, in_place) in [(false, PARAMS), (true, 0), (false, PARAMS)] {
        let (copy, before) = (keeps.then(|| model.clone()), model.values());
        model = release_step(model, &mut optim, |model| model.loss(1));
        assert_eq!(optim.last_step().unwrap().in_place(), in_place);
        if let Some(copy) = copy {
            assert_eq!(copy.values(), before);
        }
    }
}

#[test]
fn what_a_parameter_says_of_itself() {
    let (model, mut optim) = crate::small::started();
    let says = |model: &Small| {
        let weight = &model.first.weight;
        let is_trained = [weight.is_require_grad(), weight.val().is_require_grad()];
        (
            weight.id,
            weight.shape(),
            weight.device(),
            model.devices(),
            model.num_params(),
            is_trained,
        )
    };
    let before = says(&model);
    let model = release_step(model, &mut optim, |model| model.loss(1));
    assert_eq!(says(&model), before);
    assert!(!model.valid().first.weight.val().is_require_grad());
}

/// Weights whose layout in a record is another one, and a bias that is saved in other units.
#[test]
fn load_and_save_mappers_stay() {
    let make = || {
        // Square: Burn 0.22 refuses to load any other into a layer that has its weight already.
        let layer = LinearConfig::new(4, 4).with_layout(LinearLayout::Col);
        let mut layer: Linear = numbered(layer.init(&flex()));
        let bias = layer.bias.take().unwrap();
        let bias = bias.load_mapper(|bias| bias.div_scalar(4.0));
        layer.bias = Some(bias.save_mapper(|bias| bias.mul_scalar(4.0)));
        layer
    };
    let loss = |model: &Linear, step| {
        let x = numbers::<2>([3, 4], step, &flex());
        model.forward(x).square().mean()
    };
    let saved = |model: &Linear| {
        let bytes = model.clone().into_record().into_bytes().unwrap();
        bytes.to_vec()
    };
    let mut plain = make();
    let mut model = plain.clone();
    let (mut plain_optim, mut optim) = (adamw(), adamw().with_gradient_release());
    for step in 0..3 {
        plain = plain_step(plain, &mut plain_optim, |model| loss(model, step));
        model = release_step(model, &mut optim, |model| loss(model, step));
        assert_eq!(saved(&model), saved(&plain), "after step {step}");
        assert_eq!(saved(&model.valid()), saved(&plain), "after step {step}");
    }
    let again = make().load_record(model.into_record());
    assert_eq!(bits(&again), bits(&plain));
}

/// Burn gives the parameters the ids of the record: their states begin anew.
#[test]
fn a_record_with_other_ids() {
    let load = |model: Small| model.load_record(numbered_from(small(), 80).into_record());
    let (model, mut optim) = crate::small::started();
    let (plain, plain_optim) = plain(&[0]);
    let record = load(plain);
    let model = model.load_record(record.clone().into_record());
    assert_goes_on(model, &mut optim, (record, plain_optim));
}
