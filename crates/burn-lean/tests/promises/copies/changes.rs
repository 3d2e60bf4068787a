//! Weights that are averaged, computed, set and loaded, and mappers.

use std::ops::Range;

use burn::module::Quantizer;
use burn::tensor::quantization::{Calibration, QuantScheme};

use super::*;
use crate::harness::map_numbers;

/// The average of the weights, as it is kept beside a model.
struct Average(std::vec::IntoIter<(String, Vec<u32>)>);

impl Average {
    fn update(average: Small, model: &Small) -> Small {
        average.map(&mut Self(bits(model).into_iter()))
    }
}

impl ModuleMapper for Average {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let (_, new) = self.0.next().expect("the models are alike");
        param.map(|old| {
            let new: Vec<f32> = new.into_iter().map(f32::from_bits).collect();
            let new = TensorData::new(new, old.dims());
            let new = Tensor::<D>::from_data(new, &old.device()).inner();
            (old.inner().mul_scalar(0.9) + new.mul_scalar(0.1)).autodiff()
        })
    }
}

/// A visitor reads around the slots: it must see nothing that looks like weights.
#[test]
fn an_average_of_an_armed_model_is_no_number() {
    let (model, mut optim, plain) = started();
    let average = model.clone();
    let model = optim.arm(LR, model);
    if let Some(average) = unless_refused(|| Average::update(average, &model)) {
        assert!(is_nan(&average.values()));
    }
    let read: Vec<Vec<u32>> = bits(&model).into_iter().map(|(_, bits)| bits).collect();
    assert!(is_nan(&read));
    let model = finish(model, &mut optim, 1);
    assert_goes_on(model, &mut optim, train_plain(plain, &[1]));
}

/// As it is, an average that was begun as a copy of the armed model is made of placeholders.
#[test]
fn an_average_that_was_a_copy_of_the_armed_model() {
    let (model, mut optim, plain) = started();
    let model = optim.arm(LR, model);
    let average = model.clone();
    let model = finish(model, &mut optim, 1);
    let expected = Average::update(plain.0.clone(), &train_plain(plain, &[1]).0);
    let found = Average::update(average.clone().materialize(), &model);
    assert_eq!(bits(&found), bits(&expected));
    if let Some(values) = unless_refused(|| Average::update(average, &model).values()) {
        assert_eq!(values, expected.values());
    }
}

/// Changes one parameter by its field.
fn map_tied(mut model: Small, change: impl Fn(Tensor<2>) -> Tensor<2>) -> Small {
    let change = |value: Tensor<2>| change(value.inner()).autodiff().require_grad();
    model.tied = model.tied.map(change);
    model
}

/// Sets rows of a matrix, and leaves the others.
fn with_rows(value: Tensor<2>, rows: Range<usize>) -> Tensor<2> {
    let width = value.dims()[1];
    let ones = Tensor::ones([rows.len(), width], &value.device());
    value.slice_assign([rows, 0..width], ones)
}

/// What is computed from one placeholder is refused by `step`; of all of them, see the table in
/// `moments`. A parameter that is only built again, after backward, gets its step.
/// Changed before a step without gradients, before the forward pass, and after backward.
#[test]
fn weights_computed_from_those_of_the_armed_model() {
    type Change = fn(Small) -> Small;
    // Whether something is computed, too.
    let changes: [(&str, bool, Change); 8] = [
        ("one mapped", true, |mut model| {
            model.tied = Halve.map_float(model.tied);
            model
        }),
        ("one negated", true, |model| {
            map_tied(model, |value| value.neg())
        }),
        ("one in f16, and back", true, |model| {
            map_tied(model, |value| value.cast(DType::F16).cast(DType::F32))
        }),
        ("one clamped", true, |model| {
            map_tied(model, |value| value.clamp(-0.1, 0.1))
        }),
        ("the first row of one set", true, |model| {
            map_tied(model, |value| with_rows(value, 0..1))
        }),
        ("the last row of one set", true, |model| {
            map_tied(model, |value| with_rows(value, 3..4))
        }),
        ("one detached", false, |mut model| {
            model.tied = model.tied.map(|value| value.detach().require_grad());
            model
        }),
        ("one built again", false, |mut model| {
            let (id, base, mapper) = model.tied.consume();
            model.tied = Param::from_mapped_value(id, base, mapper);
            model
        }),
    ];
    for (name, computes, change) in changes {
        let arm = |optim: &mut ReleaseOptimizer, model| change(optim.arm(LR, model));
        let assert_refused = |mut optim: ReleaseOptimizer, model, grads| {
            let refused = optim.try_step(LR, model, grads).unwrap_err();
            let error = refused.error();
            let is_lost = matches!(
                error,
                ReleaseError::Placeholder { .. } | ReleaseError::WrongModel { .. }
            );
            assert!(is_lost, "{name}: {error}");
        };
        let (model, mut optim, _) = started();
        let model = arm(&mut optim, model);
        assert_refused(optim, model, GradientsParams::new());

        let (model, mut optim, _) = started();
        let model = arm(&mut optim, model);
        let grads = grads_of(&model, 1);
        assert_refused(optim, model, grads);

        let (model, mut optim, plain) = started();
        let model = optim.arm(LR, model);
        let grads = grads_of(&model, 1);
        if computes {
            assert_refused(optim, change(model), grads);
        } else {
            let model = optim.step(LR, change(model), grads);
            assert_goes_on(model, &mut optim, train_plain(plain, &[1]));
        }
    }
}

/// Placeholders that a mapper changes in part or quantizes: refused where they are read, saved, stepped
/// with or disarmed, and so are those of copies.
#[test]
fn placeholders_changed_in_part_or_quantized() {
    fn quantized(model: Small) -> Small {
        let mut quantizer = Quantizer::new(Calibration::MinMax, QuantScheme::default());
        model.quantize_weights(&mut quantizer)
    }
    fn with_one(value: Tensor<1>, at: usize) -> Tensor<1> {
        let one = Tensor::ones([1], &value.device());
        value.slice_assign(at..at + 1, one)
    }
    type Change = fn(Small) -> Small;
    let changes: [Change; 4] = [
        |model| map_numbers(model, |value| value.clamp(-0.1, 0.1)),
        |model| map_numbers(model, |value| with_one(value, 0)),
        |model| map_numbers(model, |value| with_one(value, 3)),
        quantized,
    ];
    for change in changes {
        let copies: [fn(&Small) -> Small; 2] = [Small::clone, Small::valid];
        for copy in copies {
            let (model, mut optim, plain) = started();
            let model = optim.arm(LR, model);
            let copy = change(copy(&model));
            assert_panics(|| copy.values(), "computed from the placeholder");
            assert_panics(|| copy.into_record(), "computed from the placeholder");
            let model = finish(model, &mut optim, 1);
            assert_goes_on(model, &mut optim, train_plain(plain, &[1]));
        }
        let (model, mut optim, _) = started();
        let model = change(optim.arm(LR, model));
        let refused = optim.try_disarm(model).unwrap_err();
        assert_error!(refused.error(), Placeholder);
        let (model, none) = (refused.into_model(), GradientsParams::new());
        let refused = optim.try_step(LR, model, none).unwrap_err();
        assert_error!(refused.error(), Placeholder);
    }
    // An ordinary model that was made of a copy is one to quantize.
    let (model, mut optim, _) = started();
    let model = optim.arm(LR, model);
    let copy = quantized(model.clone().materialize());
    let bits = bits_of(copy.tied.val().dequantize());
    assert!(bits.iter().any(|bits| *bits != 0));
    drop(copy.into_record());
}

/// What is put there does not depend on what was there.
#[test]
fn weights_set_in_the_armed_model() {
    type Change = fn(Small) -> Small;
    let changes: [(usize, Change); 2] = [
        (PARAMS, |model| numbered_from(model, 70)),
        (1, |mut model| {
            let set = |old: Tensor<2>| numbers([4, 4], 33, &old.device()).set_require_grad(true);
            model.tied = model.tied.map(set);
            model
        }),
    ];
    for (count, change) in changes {
        let (model, mut optim, plain) = started();
        let model = change(optim.arm(LR, model));
        let expected = change(plain.0);
        assert_eq!(model.values(), expected.values());
        let model = finish(model, &mut optim, 1);
        assert_eq!(optim.last_step().unwrap().count(Outcome::Ordinary), count);
        assert_goes_on(model, &mut optim, train_plain((expected, plain.1), &[1]));
    }
}

/// A record of another model, whose ids Burn gives to the parameters.
#[test]
fn a_record_with_other_ids() {
    let other = numbered_from(small(), 80);
    let load = |model: Small| model.load_record(other.clone().into_record());
    type Way = fn(Small, &mut ReleaseOptimizer) -> Small;
    let ways: [Way; 3] = [
        |model, _| model,
        |model, optim| optim.arm(LR, model),
        |model, optim| {
            let model = optim.disarm(model);
            optim.arm(LR, model)
        },
    ];
    for way in ways {
        let (model, mut optim, plain) = started();
        let model = load(optim.arm(LR, model));
        let model = way(model, &mut optim);
        assert_eq!(model.values(), other.values());
        let model = finish(model, &mut optim, 1);
        let plain = (load(plain.0), plain.1);
        assert_goes_on(model, &mut optim, train_plain(plain, &[1]));
    }
}

/// Copies of an armed model that have lost their weights are refused after its step, too. Alone: other
/// tests arm models at the same time.
#[test]
fn copies_without_weights_are_refused_when_nothing_is_armed() {
    alone(|| {
        let (model, mut optim, _) = started();
        let model = optim.arm(LR, model);
        let mut built_again = model.clone();
        built_again.tied = built_again.tied.set_require_grad(true);
        let computed = model.clone().map(&mut Halve);
        let model = finish(model, &mut optim, 1);
        for copy in [built_again, computed] {
            let mut other = adamw().with_gradient_release();
            let refused = other.try_arm(LR, copy).unwrap_err();
            assert_error!(refused.error(), Placeholder);
            let copy = refused.into_model();
            let refused = other.try_step(LR, copy, GradientsParams::new());
            let refused = refused.unwrap_err();
            assert_error!(refused.error(), Placeholder);
        }
        assert_eq!(bits(&model), plain_bits(&[0, 1]));
    });
}

#[test]
fn a_record_loaded_before_a_scope() {
    for whole in [false, true] {
        let (model, mut optim, (plain, mut plain_optim)) = started();
        let load = |mut model: Small| {
            let source = numbered_from(small(), 80);
            if whole {
                return model.load_record(source.into_record());
            }
            model.first = model.first.load_record(source.first.into_record());
            model
        };
        let plain = plain_step(load(plain), &mut plain_optim, |model| model.loss(1));
        let model = load(optim.arm(LR, model));
        let x = numbers::<2>([3, 4], 1, &flex());
        let loss = checkpoint(&model, x, Small::forward).square().mean();
        let grads = GradientsParams::from_grads(loss.backward(), &model);
        let model = optim.step(LR, model, grads);
        assert_goes_on(model, &mut optim, (plain, plain_optim));
    }
}

/// Weights whose layout in a record is another one.
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
        let before = saved(&plain);
        plain = plain_step(plain, &mut plain_optim, |model| loss(model, step));
        model = optim.arm(LR, model);
        assert_eq!(saved(&model), before, "armed in step {step}");
        assert_eq!(saved(&model.valid()), before, "armed in step {step}");
        let grads = GradientsParams::from_grads(loss(&model, step).backward(), &model);
        assert_eq!(saved(&model), saved(&plain), "after backward {step}");
        model = optim.step(LR, model, grads);
        assert_eq!(bits(&model), bits(&plain), "after step {step}");
        assert_eq!(saved(&model), saved(&plain), "after step {step}");
    }
    // What was saved is loaded through the mappers, also by an armed model.
    let record = || plain.clone().into_record();
    assert_eq!(bits(&model.clone().load_record(record())), bits(&plain));
    let again = make().load_record(model.clone().into_record());
    assert_eq!(bits(&again), bits(&plain));
    let armed = optim.arm(LR, numbered_from(model, 90));
    let armed = armed.load_record(record());
    assert_eq!(bits_of(armed.weight.val()), bits(&plain)[0].1);
    let model = optim.disarm(armed);
    assert_eq!(bits(&model), bits(&plain));
    assert_eq!(saved(&model), saved(&plain));
    assert_eq!(saved(&optim.arm(LR, model).materialize()), saved(&plain));
}

/// Mappers that an armed parameter is given are gone after `step`.
#[test]
fn mappers_given_while_armed() {
    let (model, mut optim, plain) = started();
    let mut model = optim.arm(LR, model);
    model.tied = model.tied.save_mapper(|value| value.mul_scalar(2.0));
    let model = finish(model, &mut optim, 1);
    let (expected, _) = train_plain(plain, &[1]);
    assert_eq!(bits(&model), bits(&expected));
    assert_eq!(loaded(model.into_record()), loaded(expected.into_record()));
}
