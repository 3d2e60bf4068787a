//! Copies of a model, taken and used at each moment, and everything that reads or replaces a
//! `Param`.

mod changes;

use burn::module::ParamId;
use burn::nn::LinearLayout;
use burn_lean::MixedPrecision;

use crate::harness::prelude::*;
use crate::small::{Halve, plain_bits, plain_values, unless_refused};

/// A model and an optimizer after one step, and plain Burn's, with the same ids.
fn started() -> (Small, ReleaseOptimizer, Plain) {
    let plain = plain(&[0]);
    let optim = plain.1.clone().with_gradient_release();
    (plain.0.clone(), optim, plain)
}

/// The bits of the model that this record is of.
fn loaded(record: ModuleRecord) -> Bits {
    bits(&numbered_from(small(), 3000).load_record(record))
}

fn is_nan(values: &[Vec<u32>]) -> bool {
    let mut bits = values.iter().flatten();
    bits.all(|bits| f32::from_bits(*bits).is_nan())
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

/// On a device without autodiff.
#[test]
fn valid_keeps_what_it_saw() {
    let (model, mut optim, plain) = started();
    let model = optim.arm(LR, model);
    let valid = model.valid();
    assert!(!valid.tied.val().is_autodiff());
    let x = || numbers::<2>([3, 4], 9, &flex().inner());
    let expected = bits_of(plain.0.valid().forward(x()));
    assert_eq!(bits_of(valid.forward(x())), expected);
    let grads = grads_of(&model, 1);
    assert_eq!(bits_of(valid.forward(x())), expected);
    let model = optim.step(LR, model, grads);
    assert_eq!(bits_of(valid.forward(x())), expected);
    assert_eq!(loaded(valid.clone().into_record()), plain_bits(&[0]));
    assert_eq!(bits(&valid.materialize()), plain_bits(&[0]));
    assert_goes_on(model, &mut optim, train_plain(plain, &[1]));
}

/// A moment of a step. After backward a copy has the new weights, which plain Burn has after
/// `step`.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Moment {
    BeforeForward,
    BeforeBackward,
    AfterBackward,
}

const MOMENTS: [Moment; 3] = [
    Moment::BeforeForward,
    Moment::BeforeBackward,
    Moment::AfterBackward,
];

/// A model that has gone on, and a copy that was taken in the middle of a step.
struct Kept {
    model: Small,
    optim: ReleaseOptimizer,
    plain: Plain,
    copy: Small,
    /// Plain Burn's model and optimizer at the copy.
    plain_copy: Plain,
}

fn kept(taken: Moment, copy: impl Fn(&Small) -> Small) -> Kept {
    let (model, mut optim, before) = started();
    let after = train_plain(before.clone(), &[1]);
    let take = |moment, model: &Small| (moment == taken).then(|| copy(model));
    let model = optim.arm(LR, model);
    let at_forward = take(Moment::BeforeForward, &model);
    let loss = model.loss(1);
    let at_backward = take(Moment::BeforeBackward, &model);
    let grads = GradientsParams::from_grads(loss.backward(), &model);
    let at_step = take(Moment::AfterBackward, &model);
    let mut model = optim.step(LR, model, grads);
    for step in 2..5 {
        model = release_step(model, &mut optim, |model| model.loss(step));
    }
    let plain_copy = match taken {
        Moment::AfterBackward => after.clone(),
        _ => before,
    };
    Kept {
        model,
        optim,
        plain: train_plain(after, &[2, 3, 4]),
        copy: at_forward
            .or(at_backward)
            .or(at_step)
            .expect("one is taken"),
        plain_copy,
    }
}

/// A copy of each kind, taken at each moment: the best so far, which is used later.
fn each_copy(check: impl Fn(Kept)) {
    for taken in MOMENTS {
        check(kept(taken, Clone::clone));
        check(kept(taken, |model| model.valid().train()));
        check(kept(taken, |model| model.clone().clone()));
        check(kept(taken, |model| model.clone().fork(&flex())));
        check(kept(taken, |model| {
            model.valid().to_device(&flex().inner()).train()
        }));
    }
}

#[test]
fn the_best_so_far_is_read_and_saved_later() {
    each_copy(|kept| {
        let (copy, plain) = (kept.copy, kept.plain_copy.0);
        assert_eq!(copy.values(), plain.values());
        assert_eq!(copy.clone().values(), plain.values());
        assert_eq!(copy.valid().values(), plain.values());
        assert_eq!(bits_of(copy.loss(9)), bits_of(plain.loss(9)));
        assert_eq!(bits(&copy.clone().materialize()), bits(&plain));
        assert_eq!(loaded(copy.clone().into_record()), bits(&plain));
        assert_eq!(loaded(copy.valid().into_record()), bits(&plain));
        assert_eq!(loaded(copy.into_record()), bits(&plain));
        assert_eq!(bits(&kept.model), bits(&kept.plain.0));
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
        let copy = (kept.copy.materialize(), kept.plain_copy.1.clone());
        let (model, _) = train_plain(copy, &[7, 8]);
        let (plain, _) = train_plain(kept.plain_copy, &[7, 8]);
        assert_eq!(bits(&model), bits(&plain));
    });
}

/// Without `materialize()`: Burn's optimizer sees the placeholder.
#[test]
fn the_best_so_far_is_given_to_burns_optimizer_as_it_is() {
    each_copy(|kept| {
        let (plain, _) = train_plain(kept.plain_copy.clone(), &[7]);
        let mut optim = kept.plain_copy.1;
        let grads = grads_of(&kept.copy, 7);
        assert_eq!(grads.len(), PARAMS);
        if let Some(values) = unless_refused(|| optim.step(LR, kept.copy, grads).values()) {
            assert_eq!(values, plain.values());
        }
    });
}

/// Each call that needs an ordinary model names the way to one.
#[test]
fn the_best_so_far_is_cast_or_stepped_as_it_is() {
    each_copy(|mut kept| {
        let cast = MixedPrecision::bf16().cast(kept.copy).unwrap_err();
        assert_error!(cast.error(), ArmedElsewhere, "`materialize()`");
        let copy = cast.into_model();
        let grads = grads_of(&copy, 7);
        let refused = kept.optim.try_step(LR, copy, grads).unwrap_err();
        assert_error!(refused.error(), Copy, "`materialize()`");
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
    let assert_is = |copy: &Small, batches: &[usize]| {
        if let Some(record) = record_or_refused(copy.clone()) {
            assert_eq!(loaded(record), plain_bits(batches));
        }
        let ordinary = copy.clone().materialize();
        assert_eq!(bits(&ordinary), plain_bits(batches));
        assert_eq!(loaded(ordinary.into_record()), plain_bits(batches));
    };
    for _ in 0..2 {
        assert_eq!(before.values(), plain_values(&[0]));
        assert_eq!(after.values(), plain_values(&[0, 1]));
    }
    for (copy, batches) in [(&before, &[0][..]), (&after, &[0, 1]), (&model, &[0, 1])] {
        assert_is(copy, batches);
    }
    let model = optim.step(LR, model, grads);
    assert_is(&before, &[0]);
    assert_is(&after, &[0, 1]);
    assert_goes_on(model, &mut optim, train_plain(plain, &[1]));
}

/// With a copy of before backward, it could be of either.
#[test]
fn a_record_of_the_armed_model_that_was_frozen() {
    for has_copy in [false, true] {
        let (model, mut optim, _) = started();
        let model = optim.arm(LR, model);
        let copy = has_copy.then(|| model.clone());
        let grads = grads_of(&model, 1);
        let model = model.no_grad();
        assert_eq!(model.values(), plain_values(&[0, 1]));
        match record_or_refused(model) {
            Some(record) => assert_eq!(loaded(record), plain_bits(&[0, 1])),
            None => assert!(has_copy, "there is one weight"),
        }
        drop((copy, grads));
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
    assert_eq!(loaded(record), plain_bits(&[0, 1]));
}

#[test]
fn what_is_taken_out_of_an_armed_parameter_is_no_number() {
    let (model, mut optim, _) = started();
    let model = optim.arm(LR, model);
    let (_, consumed, _) = model.tied.clone().consume();
    let value = model.tied.clone().into_value();
    for taken in [model.tied.base(), value, consumed, (*model.tied).clone()] {
        assert!(is_nan(&[bits_of(taken)]));
    }
    let expected = plain_values(&[0]);
    assert_eq!(Some(&bits_of(model.tied.val())), expected.last());
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
    assert_goes_on(model, &mut optim, train_plain(plain, &[1]));
}

/// The armed model keeps its weights, and the optimizer goes on with the copy: with its gradients, or
/// with sums that the model was armed with.
#[test]
fn a_step_that_ends_with_a_copy() {
    for has_sums in [false, true] {
        let (model, mut optim, plain) = started();
        let sums = match has_sums {
            true => grads_of(&plain.0, 1),
            false => GradientsParams::new(),
        };
        let model = optim.arm_accumulated(LR, model, sums);
        let (copy, grads) = match has_sums {
            true => (model.clone(), GradientsParams::new()),
            false => {
                let fork = model.clone().fork(&flex());
                let grads = grads_of(&fork, 1);
                (fork, grads)
            }
        };
        let copy = optim.step(LR, copy, grads);
        assert_eq!(model.values(), plain_values(&[0]), "sums {has_sums}");
        assert_eq!(model.valid().values(), plain_values(&[0]));
        assert_eq!(bits_of(model.loss(9)), bits_of(plain.0.loss(9)));
        let model = optim.arm(LR, model);
        assert_eq!(bits(&optim.disarm(model)), plain_bits(&[0]));
        assert_goes_on(copy, &mut optim, train_plain(plain, &[1]));
    }
}

/// In plain Burn the tensors are no leaves any more: neither is stepped.
#[test]
fn to_the_same_device_while_armed() {
    let (model, mut optim, plain) = started();
    let model = optim.arm(LR, model).to_device(&flex());
    assert_eq!(model.values(), plain_values(&[0]));
    let plain = plain.0.to_device(&flex());
    for model in [&model, &plain] {
        assert!(grads_of(model, 1).is_empty());
    }
    let model = optim.step(LR, model, GradientsParams::new());
    assert_eq!(bits(&model), plain_bits(&[0]));
}

/// They keep the weights that they were taken with.
#[test]
fn copies_moved_to_the_same_device_while_armed() {
    let (model, mut optim, plain) = started();
    let model = optim.arm(LR, model);
    let copies = [
        model.clone().to_device(&flex()),
        model.valid().to_device(&flex().inner()),
    ];
    let assert_stay = || {
        for copy in &copies {
            assert_eq!(copy.values(), plain_values(&[0]));
        }
    };
    assert_stay();
    let grads = grads_of(&model, 1);
    assert_stay();
    let model = optim.step(LR, model, grads);
    assert_stay();
    assert_goes_on(model, &mut optim, train_plain(plain, &[1]));
}

#[test]
#[cfg(feature = "ndarray")]
#[allow(deprecated)]
fn to_another_backend_while_armed() {
    let other = Device::ndarray().autodiff();
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
                let is_refused = text.starts_with("gradient release: ") || moved.is_err();
                assert!(is_refused, "{text}");
            }
        }
    }
    assert_eq!(model.values(), plain_values(&[0]));
    let model = finish(model, &mut optim, 1);
    assert_goes_on(model, &mut optim, train_plain(plain, &[1]));
}

/// As a target network: its loss is a constant.
#[test]
fn a_frozen_copy_of_the_armed_model() {
    let difference = |model: &Small, target: &Small| {
        let x = numbers::<2>([3, 4], 1, &flex());
        let difference = model.forward(x.clone()) - target.forward(x);
        difference.square().mean() + model.loss(1)
    };
    let (model, mut optim, mut plain) = started();
    let target = plain.0.clone().no_grad();
    plain.0 = plain_step(plain.0, &mut plain.1, |model| difference(model, &target));

    let model = optim.arm(LR, model);
    let target = model.clone().no_grad();
    assert_eq!(target.values(), plain_values(&[0]));
    assert!(!target.loss(1).is_tracked());
    let grads = difference(&model, &target).backward();
    let grads = GradientsParams::from_grads(grads, &model);
    assert_eq!(target.values(), plain_values(&[0]));
    let model = optim.step(LR, model, grads);
    assert_eq!(target.values(), plain_values(&[0]));
    assert_goes_on(model, &mut optim, plain);
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
