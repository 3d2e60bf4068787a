//! Copies of a model, taken and used at each moment, and everything that reads or replaces a
//! `Param`.

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::nn::{Linear, LinearConfig, LinearLayout};
use burn::optim::{GradientsParams, ModuleOptimizer};
use burn::store::ModuleRecord;
use burn::tensor::Tensor;
use burn_lean::{Outcome, ReleaseError, ReleaseOptimizer, WithGradientRelease};

use crate::harness::{LR, adamw, bits, flex, numbers, release_step};
use crate::small::{
    PARAMS, Small, assert_goes_on, bits_of, grads_of, numbered, numbered_from, panic_of, plain,
    plain_bits, plain_from, plain_values, read_or_refused, small,
};

/// A model and an optimizer after one step, and plain Burn's, with the same ids.
fn started() -> (Small, ReleaseOptimizer, (Small, ModuleOptimizer)) {
    let (model, optim) = plain(&[0]);
    let release = optim.clone().with_gradient_release();
    (model.clone(), release, (model, optim))
}

/// Ends a step that was armed before.
fn finish(model: Small, optim: &mut ReleaseOptimizer, step: usize) -> Small {
    let grads = grads_of(&model, step);
    optim.step(LR, model, grads)
}

/// The model that this record is of.
fn loaded(record: ModuleRecord) -> Small {
    numbered_from(small(), 3000).load_record(record)
}

fn is_nan(values: &[Vec<u32>]) -> bool {
    values
        .iter()
        .flatten()
        .all(|bits| f32::from_bits(*bits).is_nan())
}

/// A record that is right, or a refusal in words.
fn record_or_refused(model: Small) -> Option<ModuleRecord> {
    match panic_of(|| model.into_record()) {
        Ok(record) => Some(record),
        Err(text) => {
            assert!(text.contains("save after `step`"), "another panic: {text}");
            None
        }
    }
}

#[test]
fn valid_keeps_what_it_saw() {
    let (model, mut optim, plain) = started();
    let model = optim.arm(LR, model);
    let valid = model.valid();
    assert_eq!(valid.values(), plain_values(&[0]));
    let x = || numbers::<2>([3, 4], 9, &flex().inner());
    let expected = bits_of(plain.0.valid().forward(x()));
    assert_eq!(bits_of(valid.forward(x())), expected);
    assert!(!valid.tied.val().is_autodiff());
    let grads = grads_of(&model, 1);
    assert_eq!(bits_of(valid.forward(x())), expected);
    let model = optim.step(LR, model, grads);
    assert_eq!(bits_of(valid.forward(x())), expected);
    assert_eq!(bits(&loaded(valid.clone().into_record())), plain_bits(&[0]));
    assert_eq!(bits(&valid.materialize()), plain_bits(&[0]));
    assert_goes_on(model, &mut optim, plain_from(plain.0, plain.1, &[1]));
}

#[test]
fn valid_and_train_again() {
    let (model, mut optim, plain) = started();
    let model = optim.arm(LR, model);
    let again = model.valid().train();
    assert_eq!(again.values(), plain_values(&[0]));
    let model = finish(model, &mut optim, 1);
    assert_eq!(again.values(), plain_values(&[0]));
    // Its gradients are ordinary.
    let grads = grads_of(&again, 1);
    assert_eq!(grads.len(), PARAMS);
    let again = plain.1.clone().step(LR, again.materialize(), grads);
    assert_eq!(bits(&again), plain_bits(&[0, 1]));
    // The other order: the optimizer takes it as it is.
    let second = model.valid().train();
    assert_goes_on(second, &mut optim, plain_from(plain.0, plain.1, &[1]));
}

/// Where in a step a copy is taken. After backward it has the new weights, which plain Burn has
/// after `step`.
#[derive(Clone, Copy, Debug)]
enum Taken {
    BeforeForward,
    BeforeBackward,
    AfterBackward,
}

const MOMENTS: [Taken; 3] = [
    Taken::BeforeForward,
    Taken::BeforeBackward,
    Taken::AfterBackward,
];

/// A model that has gone on, and a copy that was taken in the middle of a step.
struct Kept {
    model: Small,
    optim: ReleaseOptimizer,
    plain: (Small, ModuleOptimizer),
    copy: Small,
    /// Plain Burn's model and optimizer at the copy.
    plain_copy: (Small, ModuleOptimizer),
}

fn kept(taken: Taken, copy: impl Fn(&Small) -> Small) -> Kept {
    let (model, mut optim, plain) = started();
    let before = plain.clone();
    let mut plain = plain_from(plain.0, plain.1, &[1]);
    let after = plain.clone();
    let model = optim.arm(LR, model);
    let at_forward = copy(&model);
    let loss = model.loss(1);
    let at_backward = copy(&model);
    if !matches!(taken, Taken::BeforeForward | Taken::BeforeBackward) {
        drop((at_forward.clone(), at_backward.clone()));
    }
    let grads = GradientsParams::from_grads(loss.backward(), &model);
    let (copy, plain_copy) = match taken {
        Taken::BeforeForward => (at_forward, before),
        Taken::BeforeBackward => {
            drop(at_forward);
            (at_backward, before)
        }
        Taken::AfterBackward => {
            drop((at_forward, at_backward));
            (copy(&model), after)
        }
    };
    let mut model = optim.step(LR, model, grads);
    for step in 2..5 {
        model = release_step(model, &mut optim, |model| model.loss(step));
        plain = plain_from(plain.0, plain.1, &[step]);
    }
    Kept {
        model,
        optim,
        plain,
        copy,
        plain_copy,
    }
}

fn each_copy(check: impl Fn(Kept)) {
    for taken in MOMENTS {
        check(kept(taken, Clone::clone));
        check(kept(taken, |model| model.valid().train()));
        check(kept(taken, |model| model.clone().clone()));
        check(kept(taken, |model| model.clone().fork(&flex())));
    }
}

#[test]
fn the_best_so_far_is_read_later() {
    each_copy(|kept| {
        let expected = kept.plain_copy.0.values();
        assert_eq!(kept.copy.values(), expected);
        assert_eq!(kept.copy.clone().values(), expected);
        assert_eq!(kept.copy.valid().values(), expected);
        assert_eq!(
            bits_of(kept.copy.loss(9)),
            bits_of(kept.plain_copy.0.loss(9))
        );
        assert_eq!(
            bits(&kept.copy.clone().materialize()),
            bits(&kept.plain_copy.0)
        );
        assert_eq!(bits(&kept.model), bits(&kept.plain.0));
    });
}

#[test]
fn the_best_so_far_is_saved_later() {
    each_copy(|kept| {
        let expected = bits(&kept.plain_copy.0);
        assert_eq!(bits(&loaded(kept.copy.clone().into_record())), expected);
        assert_eq!(bits(&loaded(kept.copy.valid().into_record())), expected);
        assert_eq!(bits(&loaded(kept.copy.into_record())), expected);
    });
}

#[test]
fn the_best_so_far_is_armed_again() {
    each_copy(|mut kept| {
        let states = kept.plain_copy.1.to_record();
        let mut optim = adamw().load_record(states).with_gradient_release();
        assert_goes_on(kept.copy, &mut optim, kept.plain_copy);
        // The model itself is none the wiser.
        assert_goes_on(kept.model, &mut kept.optim, kept.plain);
    });
}

/// The same optimizer goes back to it.
#[test]
fn training_goes_back_to_the_best_so_far() {
    each_copy(|mut kept| {
        drop(kept.model);
        let plain = (kept.plain_copy.0, kept.plain.1);
        assert_goes_on(kept.copy, &mut kept.optim, plain);
    });
}

#[test]
fn the_best_so_far_is_trained_with_plain_burn() {
    each_copy(|kept| {
        let (model, optim) = (kept.copy.materialize(), kept.plain_copy.1.clone());
        let (model, _) = plain_from(model, optim, &[7, 8]);
        let (plain, _) = plain_from(kept.plain_copy.0, kept.plain_copy.1, &[7, 8]);
        assert_eq!(bits(&model), bits(&plain));
    });
}

/// Without `materialize()`: Burn's optimizer sees the placeholder.
#[test]
fn the_best_so_far_is_given_to_burns_optimizer_as_it_is() {
    each_copy(|kept| {
        let (plain, _) = plain_from(kept.plain_copy.0, kept.plain_copy.1.clone(), &[7]);
        let mut optim = kept.plain_copy.1;
        let grads = grads_of(&kept.copy, 7);
        assert_eq!(grads.len(), PARAMS);
        if let Ok(model) = panic_of(|| optim.step(LR, kept.copy, grads))
            && let Some(values) = read_or_refused(&model)
        {
            assert_eq!(values, plain.values());
        }
    });
}

/// Copies of two moments at once: each reads as its own.
#[test]
fn copies_of_both_sides_of_a_backward() {
    let (model, mut optim, plain) = started();
    let model = optim.arm(LR, model);
    let before = model.clone();
    let grads = grads_of(&model, 1);
    let after = model.clone();
    for _ in 0..2 {
        assert_eq!(before.values(), plain_values(&[0]));
        assert_eq!(after.values(), plain_values(&[0, 1]));
    }
    for (copy, batches) in [(&before, &[0][..]), (&after, &[0, 1]), (&model, &[0, 1])] {
        if let Some(record) = record_or_refused(copy.clone()) {
            assert_eq!(bits(&loaded(record)), plain_bits(batches));
        }
        let saved = copy.clone().materialize().into_record();
        assert_eq!(bits(&loaded(saved)), plain_bits(batches));
    }
    let model = optim.step(LR, model, grads);
    for (copy, batches) in [(&before, &[0][..]), (&after, &[0, 1])] {
        assert_eq!(bits(&copy.clone().materialize()), plain_bits(batches));
        if let Some(record) = record_or_refused(copy.clone()) {
            assert_eq!(bits(&loaded(record)), plain_bits(batches));
        }
    }
    assert_goes_on(model, &mut optim, plain_from(plain.0, plain.1, &[1]));
}

#[test]
fn a_record_of_the_armed_model() {
    for with_copy in [false, true] {
        let (model, mut optim, plain) = started();
        let model = optim.arm(LR, model);
        let copy = with_copy.then(|| model.clone());
        assert_eq!(bits(&loaded(model.clone().into_record())), plain_bits(&[0]));
        let grads = grads_of(&model, 1);
        match record_or_refused(model.clone()) {
            Some(record) => assert_eq!(bits(&loaded(record)), plain_bits(&[0, 1])),
            None => assert!(with_copy),
        }
        drop(copy);
        assert_eq!(
            bits(&loaded(model.clone().into_record())),
            plain_bits(&[0, 1])
        );
        let model = optim.step(LR, model, grads);
        assert_eq!(
            bits(&loaded(model.clone().into_record())),
            plain_bits(&[0, 1])
        );
        assert_goes_on(model, &mut optim, plain_from(plain.0, plain.1, &[1]));
    }
}

/// The record outlives model and optimizer; the armed model itself is consumed by it.
#[test]
fn a_record_that_takes_the_armed_model() {
    let (model, mut optim, _) = started();
    let model = optim.arm(LR, model);
    let grads = grads_of(&model, 1);
    let record = model.into_record();
    drop((optim, grads));
    assert_eq!(bits(&loaded(record)), plain_bits(&[0, 1]));
}

/// The average of the weights, as it is kept beside a model.
struct Average {
    of: Vec<Vec<f32>>,
    at: usize,
}

impl Average {
    fn update(average: Small, model: &Small) -> Small {
        struct Read(Vec<Vec<f32>>);
        impl ModuleVisitor for Read {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                self.0.push(param.val().into_data().iter::<f32>().collect());
            }
        }
        let mut read = Read(Vec::new());
        model.visit(&mut read);
        average.map(&mut Self { of: read.0, at: 0 })
    }
}

impl ModuleMapper for Average {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let new = &self.of[self.at];
        self.at += 1;
        param.map(|old| {
            let (shape, device) = (old.dims(), old.device());
            let new = burn::tensor::TensorData::new(new.clone(), shape);
            let new = Tensor::from_data(new, &device);
            (old.inner().mul_scalar(0.9) + Tensor::<D>::inner(new).mul_scalar(0.1)).autodiff()
        })
    }
}

#[test]
fn an_average_between_steps() {
    let (mut model, mut optim, mut plain) = started();
    let mut average = model.clone();
    let mut plain_average = plain.0.clone();
    for step in 1..5 {
        model = release_step(model, &mut optim, |model| model.loss(step));
        average = Average::update(average, &model);
        plain = plain_from(plain.0, plain.1, &[step]);
        plain_average = Average::update(plain_average, &plain.0);
        assert_eq!(bits(&average), bits(&plain_average), "after step {step}");
    }
    assert_goes_on(model, &mut optim, plain);
}

/// A visitor reads around the slots: it must see nothing that looks like weights.
#[test]
fn an_average_of_an_armed_model_is_no_number() {
    let (model, mut optim, plain) = started();
    let average = model.clone();
    let model = optim.arm(LR, model);
    if let Ok(average) = panic_of(|| Average::update(average, &model)) {
        assert!(is_nan(&average.values()));
    }
    let read: Vec<Vec<u32>> = bits(&model).into_iter().map(|(_, bits)| bits).collect();
    assert!(is_nan(&read));
    let model = finish(model, &mut optim, 1);
    assert_goes_on(model, &mut optim, plain_from(plain.0, plain.1, &[1]));
}

/// An average that was begun as a copy of the armed model.
#[test]
fn an_average_that_was_a_copy_of_the_armed_model() {
    let (model, mut optim, plain) = started();
    let model = optim.arm(LR, model);
    let average = model.clone();
    let model = finish(model, &mut optim, 1);
    let plain_after = plain_from(plain.0.clone(), plain.1, &[1]).0;
    let expected = Average::update(plain.0, &plain_after);
    assert_eq!(
        bits(&Average::update(average.clone().materialize(), &model)),
        bits(&expected)
    );
    // As it is, the average is made of placeholders.
    if let Ok(average) = panic_of(|| Average::update(average, &model))
        && let Some(values) = read_or_refused(&average)
    {
        assert_eq!(values, expected.values());
    }
}

/// A mapper over the armed model computes with placeholders.
#[test]
fn a_mapper_over_the_armed_model() {
    struct Halve;
    impl ModuleMapper for Halve {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            param.map(|weight| weight.inner().mul_scalar(0.5).autodiff().require_grad())
        }
    }
    for trains in [false, true] {
        let (model, mut optim, plain) = started();
        let expected = plain.0.clone().map(&mut Halve);
        let outcome = panic_of(|| {
            let model = optim.arm(LR, model).map(&mut Halve);
            let grads = match trains {
                true => grads_of(&model, 1),
                false => GradientsParams::new(),
            };
            optim.try_step(LR, model, grads).map_err(ReleaseError::from)
        });
        match outcome {
            Ok(Ok(model)) => {
                let plain = match trains {
                    true => plain_from(expected, plain.1, &[1]).0,
                    false => expected,
                };
                assert_eq!(bits(&model), bits(&plain), "trains {trains}");
            }
            Ok(Err(_)) => {}
            Err(text) => assert!(text.starts_with("gradient release: "), "{text}"),
        }
    }
}

/// What the mapper puts there does not depend on what was there.
#[test]
fn a_mapper_that_sets_the_weights_of_the_armed_model() {
    let (model, mut optim, plain) = started();
    let model = numbered_from(optim.arm(LR, model), 70);
    let expected = numbered_from(plain.0, 70);
    assert_eq!(model.values(), expected.values());
    let model = finish(model, &mut optim, 1);
    assert_eq!(optim.last_step().unwrap().count(Outcome::Ordinary), PARAMS);
    assert_goes_on(model, &mut optim, plain_from(expected, plain.1, &[1]));
}

#[test]
fn one_parameter_set_while_armed() {
    let (model, mut optim, mut plain) = started();
    let set = |param: Param<Tensor<2>>| {
        param.map(|old| numbers([4, 4], 33, &old.device()).set_require_grad(true))
    };
    plain.0.tied = set(plain.0.tied);
    let mut model = optim.arm(LR, model);
    model.tied = set(model.tied);
    assert_eq!(model.values(), plain.0.values());
    let model = finish(model, &mut optim, 1);
    assert_goes_on(model, &mut optim, plain_from(plain.0, plain.1, &[1]));
}

/// `Param::map` drops what leads to the slot, and gives the function the placeholder.
#[test]
fn one_parameter_computed_from_itself_while_armed() {
    for trains in [false, true] {
        let (model, mut optim, mut plain) = started();
        let double = |param: Param<Tensor<2>>| {
            param.map(|old| old.inner().mul_scalar(2.0).autodiff().require_grad())
        };
        plain.0.tied = double(plain.0.tied);
        let outcome = panic_of(|| {
            let mut model = optim.arm(LR, model);
            model.tied = double(model.tied);
            let grads = match trains {
                true => grads_of(&model, 1),
                false => GradientsParams::new(),
            };
            optim.try_step(LR, model, grads).map_err(ReleaseError::from)
        });
        match outcome {
            Ok(Ok(model)) => {
                let plain = match trains {
                    true => plain_from(plain.0, plain.1, &[1]).0,
                    false => plain.0,
                };
                assert_eq!(bits(&model), bits(&plain), "trains {trains}");
            }
            Ok(Err(_)) => {}
            Err(text) => assert!(text.starts_with("gradient release: "), "{text}"),
        }
    }
}

/// Functions that keep the value, as `set_require_grad` and `detach` do.
#[test]
fn one_parameter_passed_through_while_armed() {
    for taken in [false, true] {
        let (model, mut optim, plain) = started();
        let outcome = panic_of(|| {
            let mut model = optim.arm(LR, model);
            let early = taken.then(|| grads_of(&model, 1));
            model.tied = model.tied.map(|value| value.detach().require_grad());
            let grads = early.unwrap_or_default();
            optim.try_step(LR, model, grads).map_err(ReleaseError::from)
        });
        match outcome {
            Ok(Ok(model)) => {
                let plain = if taken {
                    plain_from(plain.0, plain.1, &[1]).0
                } else {
                    plain.0
                };
                assert_eq!(bits(&model), bits(&plain), "taken {taken}");
            }
            Ok(Err(error)) => {
                let is_refused = matches!(
                    error,
                    ReleaseError::WrongModel { .. } | ReleaseError::Placeholder { .. }
                );
                assert!(is_refused, "{error}");
            }
            Err(text) => assert!(text.starts_with("gradient release: "), "{text}"),
        }
    }
}

#[test]
fn what_is_taken_out_of_an_armed_parameter_is_no_number() {
    let (model, mut optim, _) = started();
    let model = optim.arm(LR, model);
    assert!(is_nan(&[bits_of(model.tied.base())]));
    assert!(is_nan(&[bits_of(model.tied.clone().into_value())]));
    let (_, base, _) = model.tied.clone().consume();
    assert!(is_nan(&[bits_of(base)]));
    assert!(is_nan(&[bits_of((*model.tied).clone())]));
    assert_eq!(
        bits_of(model.tied.val()),
        *plain_values(&[0]).last().unwrap()
    );
}

/// A `Param` built again around what was consumed.
#[test]
fn a_parameter_consumed_and_built_again() {
    for trains in [false, true] {
        let (model, mut optim, plain) = started();
        let outcome = panic_of(|| {
            let mut model = optim.arm(LR, model);
            let (id, base, mapper) = model.tied.consume();
            model.tied = Param::from_mapped_value(id, base, mapper);
            let grads = match trains {
                true => grads_of(&model, 1),
                false => GradientsParams::new(),
            };
            optim.try_step(LR, model, grads).map_err(ReleaseError::from)
        });
        match outcome {
            Ok(Ok(model)) => {
                let plain = if trains {
                    plain_from(plain.0, plain.1, &[1]).0
                } else {
                    plain.0
                };
                assert_eq!(bits(&model), bits(&plain), "trains {trains}");
            }
            Ok(Err(_)) => {}
            Err(text) => assert!(text.starts_with("gradient release: "), "{text}"),
        }
    }
}

#[test]
fn a_fork_before_arm() {
    let (model, mut optim, plain) = started();
    let fork = model.clone().fork(&flex());
    let model = optim.arm(LR, model);
    let model = finish(model, &mut optim, 1);
    let (fork, _) = plain_from(fork, plain.1.clone(), &[3]);
    assert_eq!(bits(&fork), plain_bits(&[0, 3]));
    assert_goes_on(model, &mut optim, plain_from(plain.0, plain.1, &[1]));
}

/// Its gradients are ordinary, and the armed model is not stepped by them.
#[test]
fn a_fork_while_armed() {
    let (model, mut optim, plain) = started();
    let model = optim.arm(LR, model);
    let fork = model.clone().fork(&flex());
    assert_eq!(fork.values(), plain_values(&[0]));
    let grads = grads_of(&fork, 1);
    assert_eq!(grads.len(), PARAMS);
    assert_eq!(model.values(), plain_values(&[0]));
    // They may be what the armed model is stepped with, as a worker's are.
    let model = optim.step(LR, model, grads);
    assert_eq!(optim.last_step().unwrap().count(Outcome::Ordinary), PARAMS);
    assert_eq!(fork.values(), plain_values(&[0]));
    assert_goes_on(model, &mut optim, plain_from(plain.0, plain.1, &[1]));
}

/// The model itself is forked: what was armed is gone.
#[test]
fn the_armed_model_is_forked() {
    let (model, mut optim, plain) = started();
    let model = optim.arm(LR, model).fork(&flex());
    let grads = grads_of(&model, 1);
    assert_eq!(model.values(), plain_values(&[0]));
    let model = match optim.try_step(LR, model, grads) {
        Ok(model) => model,
        Err(refused) => {
            let (model, grads) = refused.into_given();
            let model = optim.arm(LR, model);
            optim.step(LR, model, grads)
        }
    };
    assert_goes_on(model, &mut optim, plain_from(plain.0, plain.1, &[1]));
}

#[test]
fn to_the_same_device_while_armed() {
    let (model, mut optim, plain) = started();
    let model = optim.arm(LR, model).to_device(&flex());
    assert_eq!(model.values(), plain_values(&[0]));
    // In plain Burn the tensors are no leaves any more: neither is stepped.
    let plain_model = plain.0.clone().to_device(&flex());
    let loss = plain_model.loss(1);
    let plain_grads = panic_of(|| GradientsParams::from_grads(loss.backward(), &plain_model).len());
    let outcome = panic_of(|| {
        let grads = grads_of(&model, 1);
        let count = grads.len();
        optim
            .try_step(LR, model, grads)
            .map(|model| (model, count))
            .map_err(ReleaseError::from)
    });
    match outcome {
        Ok(Ok((model, count))) => {
            assert_eq!(Ok(count), plain_grads);
            let expected = if count == 0 {
                plain_bits(&[0])
            } else {
                plain_bits(&[0, 1])
            };
            assert_eq!(bits(&model), expected);
        }
        Ok(Err(error)) => assert!(!error.to_string().is_empty()),
        Err(text) => assert!(plain_grads.is_err(), "{text}"),
    }
}

#[test]
#[cfg(feature = "ndarray")]
#[allow(deprecated)]
fn to_another_backend_while_armed() {
    let other = burn::tensor::Device::ndarray().autodiff();
    let (model, mut optim, plain) = started();
    let moved = panic_of(|| plain.0.clone().to_device(&other).values());
    let model = optim.arm(LR, model);
    for is_fork in [false, true] {
        let copy = model.clone();
        let outcome = panic_of(|| match is_fork {
            true => copy.fork(&other).values(),
            false => copy.to_device(&other).values(),
        });
        match (outcome, &moved) {
            (Ok(values), Ok(expected)) => assert_eq!(&values, expected, "fork {is_fork}"),
            (Ok(values), Err(_)) => panic!("plain Burn refuses, and here is {values:?}"),
            (Err(text), _) => {
                assert!(
                    text.starts_with("gradient release: ") || moved.is_err(),
                    "{text}"
                );
            }
        }
    }
    assert_eq!(model.values(), plain_values(&[0]));
    let model = finish(model, &mut optim, 1);
    assert_goes_on(model, &mut optim, plain_from(plain.0, plain.1, &[1]));
}

#[test]
fn a_frozen_copy_of_the_armed_model() {
    let (model, mut optim, plain) = started();
    let model = optim.arm(LR, model);
    let target = model.clone().no_grad();
    assert_eq!(target.values(), plain_values(&[0]));
    assert!(!target.loss(1).is_require_grad());
    // As a target network: its loss is a constant.
    let difference = |model: &Small, target: &Small| {
        let x = numbers::<2>([3, 4], 1, &flex());
        (model.forward(x.clone()) - target.forward(x))
            .square()
            .mean()
            + model.loss(1)
    };
    let plain_target = plain.0.clone().no_grad();
    let (plain_model, mut plain_optim) = plain;
    let grads = difference(&plain_model, &plain_target).backward();
    let grads = GradientsParams::from_grads(grads, &plain_model);
    let plain_model = plain_optim.step(LR, plain_model, grads);

    let grads = difference(&model, &target).backward();
    let grads = GradientsParams::from_grads(grads, &model);
    assert_eq!(target.values(), plain_values(&[0]));
    let model = optim.step(LR, model, grads);
    assert_eq!(target.values(), plain_values(&[0]));
    assert_goes_on(model, &mut optim, (plain_model, plain_optim));
}

/// A record of the same model: its parameters keep their ids.
#[test]
fn a_record_loaded_before_forward() {
    for is_own in [true, false] {
        let (model, mut optim, plain) = started();
        let source = match is_own {
            true => numbered_from(plain.0.clone(), 80),
            false => numbered_from(small(), 80),
        };
        let record = || source.clone().into_record();
        let expected = plain_from(plain.0.load_record(record()), plain.1, &[1]);
        let model = optim.arm(LR, model).load_record(record());
        assert_eq!(model.values(), source.values());
        let model = finish(model, &mut optim, 1);
        assert_goes_on(model, &mut optim, expected);
    }
}

/// In plain Burn the gradients of the old weights are lost, and nothing is stepped.
#[test]
fn a_record_loaded_between_forward_and_backward() {
    for is_own in [true, false] {
        let (model, mut optim, plain) = started();
        let source = match is_own {
            true => numbered_from(plain.0.clone(), 80),
            false => numbered_from(small(), 80),
        };
        let states = optim.to_record();
        let model = optim.arm(LR, model);
        let loss = model.loss(1);
        let model = model.load_record(source.clone().into_record());
        let grads = GradientsParams::from_grads(loss.backward(), &model);
        assert_eq!(model.values(), source.values());
        match optim.try_step(LR, model, grads) {
            Ok(model) => assert_goes_on(model, &mut optim, (source.clone(), plain.1)),
            Err(refused) => {
                let error = refused.error().clone();
                let is_named = matches!(
                    error,
                    ReleaseError::WrongModel { .. } | ReleaseError::Unclaimed { .. }
                );
                assert!(is_named, "{error}");
                let model = refused.into_model();
                assert_eq!(model.values(), source.values());
                let mut optim = optim.load_record(states);
                let model = model.load_record(source.clone().into_record());
                assert_goes_on(model, &mut optim, (source.clone(), plain.1));
            }
        }
    }
}

#[test]
fn a_record_loaded_between_backward_and_step() {
    let (model, mut optim, plain) = started();
    let source = numbered_from(plain.0.clone(), 80);
    let states = optim.to_record();
    let model = optim.arm(LR, model);
    let grads = grads_of(&model, 1);
    let model = model.load_record(source.clone().into_record());
    assert_eq!(model.values(), source.values());
    // Plain Burn steps what was loaded.
    let mut plain_optim = plain.1.clone();
    let expected = plain_optim.step(LR, source.clone(), grads_of(&plain.0, 1));
    match optim.try_step(LR, model, grads) {
        Ok(model) => assert_eq!(bits(&model), bits(&expected)),
        Err(refused) => {
            let error = refused.error().clone();
            assert!(matches!(error, ReleaseError::WrongModel { .. }), "{error}");
            assert!(error.to_string().contains("loaded"));
            let model = refused.into_model();
            assert_eq!(model.values(), source.values());
            let mut optim = optim.load_record(states);
            assert_goes_on(model, &mut optim, (source, plain.1));
        }
    }
}

#[test]
fn materialized_while_armed() {
    for after_backward in [false, true] {
        let (model, mut optim, plain) = started();
        let model = optim.arm(LR, model);
        let early = after_backward.then(|| grads_of(&model, 1));
        let model = model.materialize();
        let grads = early.unwrap_or_else(|| grads_of(&model, 1));
        let batches = if after_backward { &[0, 1][..] } else { &[0] };
        assert_eq!(bits(&model), plain_bits(batches));
        match optim.try_step(LR, model, grads) {
            Ok(model) => {
                assert_goes_on(model, &mut optim, plain_from(plain.0, plain.1, &[1]));
            }
            Err(refused) => {
                assert!(after_backward);
                let error = refused.error();
                assert!(matches!(error, ReleaseError::WrongModel { .. }), "{error}");
                assert_eq!(bits(&refused.into_model()), plain_bits(&[0, 1]));
            }
        }
    }
}

/// Weights whose layout in a record is another one.
#[test]
fn load_and_save_mappers_stay() {
    let make = || {
        // Square: Burn 0.22 refuses to load any other into a layer that has its weight already.
        let layer = LinearConfig::new(4, 4)
            .with_layout(LinearLayout::Col)
            .init(&flex());
        let mut layer: Linear = numbered(layer);
        let bias = layer.bias.take().unwrap();
        layer.bias = Some(
            bias.load_mapper(|bias| bias.div_scalar(4.0))
                .save_mapper(|bias| bias.mul_scalar(4.0)),
        );
        layer
    };
    let loss = |model: &Linear, step| {
        model
            .forward(numbers::<2>([3, 4], step, &flex()))
            .square()
            .mean()
    };
    let saved = |model: &Linear| {
        let bytes = model.clone().into_record().into_bytes().unwrap();
        bytes.to_vec()
    };
    let mut plain = make();
    let mut model = plain.clone();
    let mut plain_optim = adamw();
    let mut optim = adamw().with_gradient_release();
    for step in 0..3 {
        let before = saved(&plain);
        plain = crate::harness::plain_step(plain, &mut plain_optim, |model| loss(model, step));
        model = optim.arm(LR, model);
        assert_eq!(saved(&model), before, "armed in step {step}");
        assert_eq!(saved(&model.valid()), before, "armed in step {step}");
        let grads = GradientsParams::from_grads(loss(&model, step).backward(), &model);
        assert_eq!(
            saved(&model),
            saved(&plain),
            "after the backward of step {step}"
        );
        model = optim.step(LR, model, grads);
        assert_eq!(bits(&model), bits(&plain), "after step {step}");
        assert_eq!(saved(&model), saved(&plain), "after step {step}");
    }
    // What was saved is loaded through the mappers, also by an armed model.
    let record = || plain.clone().into_record();
    assert_eq!(bits(&model.clone().load_record(record())), bits(&plain));
    assert_eq!(
        bits(&make().load_record(model.clone().into_record())),
        bits(&plain)
    );
    let armed = optim
        .arm(LR, numbered_from(model, 90))
        .load_record(record());
    assert_eq!(bits_of(armed.weight.val()), bits(&plain)[0].1);
    let model = optim.disarm(armed);
    assert_eq!(bits(&model), bits(&plain));
    assert_eq!(saved(&model), saved(&plain));
    assert_eq!(saved(&optim.arm(LR, model).materialize()), saved(&plain));
}

/// Mappers that an armed parameter is given stay, too, or the call is refused.
#[test]
fn mappers_given_while_armed() {
    let (model, mut optim, plain) = started();
    let mut model = optim.arm(LR, model);
    model.tied = model.tied.save_mapper(|value| value.mul_scalar(2.0));
    let model = finish(model, &mut optim, 1);
    let (expected, _) = plain_from(plain.0, plain.1, &[1]);
    assert_eq!(bits(&model), bits(&expected));
    let read = bits(&loaded(model.into_record()));
    assert_eq!(read, bits(&loaded(expected.into_record())));
}

/// Ids, and what a parameter says of itself, are as in plain Burn at each moment.
#[test]
fn what_a_parameter_says_of_itself() {
    let (model, mut optim, _) = started();
    let ids = |model: &Small| -> Vec<ParamId> {
        vec![model.first.weight.id, model.second.weight.id, model.tied.id]
    };
    let expected = ids(&model);
    let shape = model.first.weight.shape();
    let check = |model: &Small, is_armed: bool| {
        assert_eq!(ids(model), expected);
        assert_eq!(model.first.weight.shape(), shape);
        assert_eq!(model.first.weight.val().shape(), shape);
        assert!(model.first.weight.is_require_grad());
        assert_eq!(model.first.weight.device(), flex());
        assert_eq!(model.devices(), [flex()]);
        assert_eq!(model.num_params(), 4 * 6 + 6 + 6 * 4 + 4 + 4 * 4);
        assert!(is_armed || model.first.weight.val().is_require_grad());
        let valid = model.valid();
        assert!(!valid.first.weight.val().is_require_grad());
        assert!(valid.train().first.weight.is_require_grad());
    };
    check(&model, false);
    let model = optim.arm(LR, model);
    check(&model, true);
    let grads = grads_of(&model, 1);
    check(&model, true);
    let model = optim.step(LR, model, grads);
    check(&model, false);
}

/// Loops that clone the model for each call, as many of Burn's examples do.
#[test]
fn a_loop_that_clones() {
    let (mut model, mut optim) = (small(), adamw().with_gradient_release());
    let mut clones = Vec::new();
    for step in 0..4 {
        model = optim.arm(LR, model.clone());
        let grads = grads_of(&model.clone(), step);
        clones.push(model.clone());
        model = optim.step(LR, model, grads);
    }
    assert_eq!(bits(&model), plain_bits(&[0, 1, 2, 3]));
    for (step, clone) in clones.iter().enumerate() {
        let batches: Vec<usize> = (0..=step).collect();
        assert_eq!(clone.values(), plain_values(&batches));
    }
}
