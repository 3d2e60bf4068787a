//! LoRA and other reparameterizations: their factors are stepped inside backward, and the model
//! keeps them.

mod left;

use burn::module::{Lora, Reparameterization, Reparameterizer};
use burn::tensor::Shape;

use crate::harness::prelude::*;

/// Each of its three weights has two factors, and the rest is frozen.
pub(crate) const FACTORS: usize = 6;

fn with_lora(model: Small) -> Small {
    let base = model.clone().into_record().allow_partial(true);
    // Burn draws the factors; the other weights come back from the record.
    numbered_from(model.apply_lora(Lora::new(2, 4.0)), 500).load_record(base)
}

pub(crate) fn lora() -> Small {
    with_lora(small())
}

/// Plain Burn's model and optimizer after one step, and a release optimizer with these states.
fn started() -> (Plain, ReleaseOptimizer) {
    let start = train_plain((lora(), adamw()), &[0]);
    let optim = start.1.clone().with_gradient_release();
    (start, optim)
}

/// Bases, factors and effective weights.
pub(crate) fn all(model: &Small) -> (Bits, Vec<Vec<u32>>) {
    // Without autodiff: what is computed on a tape keeps its operands for a while.
    (bits(model), model.valid().values())
}

/// Trains both ways for three steps.
fn assert_goes_on(mut model: Small, optim: &mut ReleaseOptimizer, mut plain: Plain) {
    assert_eq!(all(&model), all(&plain.0), "before going on");
    for step in 50..53 {
        model = release_step(model, optim, |model| model.loss(step));
        plain = train_plain(plain, &[step]);
        assert_eq!(all(&model), all(&plain.0), "after step {step}");
    }
}

#[test]
fn lora_trains_as_in_plain_burn() {
    let mut plain = (lora(), adamw());
    let mut model = plain.0.clone();
    let mut optim = adamw().with_gradient_release();
    let frozen = bits_of(model.first.weight.base());
    for step in 0..10 {
        plain = train_plain(plain, &[step]);
        model = optim.arm(LR, model);
        assert!(model.first.weight.adapter().is_some());
        model = finish(model, &mut optim, step);
        assert_eq!(all(&model), all(&plain.0), "after step {step}");
        let report = optim.last_step().unwrap();
        let released = match step {
            0 => Outcome::ReleasedLate,
            _ => Outcome::Released,
        };
        assert_eq!(report.count(released), FACTORS);
        assert_eq!(report.in_place(), FACTORS, "in step {step}");
    }
    assert_eq!(bits_of(model.first.weight.base()), frozen);
}

#[test]
fn refusals_and_disarming() {
    let (start, mut optim) = started();
    let model = optim.arm(LR, start.0.clone());
    let model = optim.disarm(model);
    assert_eq!(all(&model), all(&start.0));
    let armed = optim.arm(LR, model);
    let armed = optim.arm(LR, armed);
    let grads = grads_of(&armed, 1);
    let refused = optim.try_step(LR, armed.clone(), grads).unwrap_err();
    assert_error!(refused.error(), Copy);
    let (_, grads) = refused.into_given();
    let model = optim.step(LR, armed, grads);
    assert_goes_on(model, &mut optim, train_plain(start, &[1]));
}

/// Copies that are taken between steps, and used after the model has gone on.
#[test]
fn a_copy_between_steps() {
    let (start, mut optim) = started();
    let mut model = release_step(start.0.clone(), &mut optim, |model| model.loss(1));
    let plain = train_plain(start, &[1]);
    let (copy, valid) = (model.clone(), model.valid());
    let mut later = plain.clone();
    for step in 2..5 {
        let assert_stays = |moment| {
            assert_eq!(all(&copy), all(&plain.0), "{moment} of step {step}");
            assert_eq!(valid.values(), plain.0.values(), "{moment} of step {step}");
        };
        model = optim.arm(LR, model);
        assert_stays("arm");
        let grads = grads_of(&model, step);
        assert_stays("backward");
        model = optim.step(LR, model, grads);
        assert_stays("step");
        later = train_plain(later, &[step]);
        assert_eq!(all(&model), all(&later.0), "after step {step}");
    }
    let merged = copy.clone().materialize();
    assert_eq!(bits(&merged), bits(&plain.0.clone().materialize()));
    // Plain Burn trains it on.
    let (copy, _) = train_plain((copy, plain.1.clone()), &[7, 8]);
    assert_eq!(all(&copy), all(&train_plain(plain, &[7, 8]).0));
    assert_goes_on(model, &mut optim, later);
}

/// Its slots are kept, and hold tensors of the new backend.
#[test]
#[cfg(feature = "ndarray")]
#[allow(deprecated)]
fn moved_to_another_backend_between_steps() {
    let (start, mut optim) = started();
    let model = finish(optim.arm(LR, start.0), &mut optim, 1);
    let model = model.to_device(&Device::ndarray().autodiff());
    let expected = all(&model);
    let model = optim.arm(LR, model);
    assert_eq!(model.valid().values(), expected.1);
    assert_eq!(all(&optim.disarm(model)), expected);
}

/// Two copies of one model, each with an optimizer: trained in turns, and armed at once.
#[test]
fn two_copies_are_trained() {
    for at_once in [false, true] {
        let (start, mut optim) = started();
        let mut model = release_step(start.0.clone(), &mut optim, |model| model.loss(1));
        let mut plain = train_plain(start, &[1]);
        let mut copy = model.clone();
        let mut plain_copy = plain.clone();
        let mut copy_optim = plain.1.clone().with_gradient_release();
        for step in 2..5 {
            plain = train_plain(plain, &[step]);
            plain_copy = train_plain(plain_copy, &[step + 10]);
            model = optim.arm(LR, model);
            if at_once {
                copy = copy_optim.arm(LR, copy);
                let grads = grads_of(&model, step);
                copy = finish(copy, &mut copy_optim, step + 10);
                model = optim.step(LR, model, grads);
            } else {
                model = finish(model, &mut optim, step);
                copy = release_step(copy, &mut copy_optim, |copy| copy.loss(step + 10));
            }
            let what = format!("at once {at_once}, step {step}");
            assert_eq!(all(&model), all(&plain.0), "{what}");
            assert_eq!(all(&copy), all(&plain_copy.0), "{what}: the copy");
            let report = copy_optim.last_step().unwrap();
            assert_eq!(report.count(Outcome::Ordinary), 0, "{what}: the copy");
        }
    }
}

/// One optimizer goes back to an earlier copy.
#[test]
fn training_goes_back_to_a_copy() {
    for keeps_the_model in [false, true] {
        let (start, mut optim) = started();
        let mut model = release_step(start.0.clone(), &mut optim, |model| model.loss(1));
        let plain = train_plain(start, &[1]);
        let copy = model.clone();
        model = release_step(model, &mut optim, |model| model.loss(2));
        let later = train_plain(plain.clone(), &[2]);
        let kept = keeps_the_model.then(|| model.clone());
        drop(model);
        assert_goes_on(copy, &mut optim, (plain.0, later.1));
        if let Some(kept) = kept {
            assert_eq!(all(&kept), all(&later.0));
        }
    }
}

/// It reads, merges and is saved as it was, also over later steps; it cannot be armed.
#[test]
fn a_copy_of_the_armed_model() {
    let (start, mut optim) = started();
    let mut model = optim.arm(LR, start.0.clone());
    let (copy, valid) = (model.clone(), model.valid());
    let merged = bits(&start.0.clone().materialize());
    let assert_stays = |moment| {
        assert_eq!(copy.values(), start.0.values(), "{moment}");
        assert_eq!(valid.values(), start.0.values(), "{moment}");
        assert_eq!(bits(&copy.clone().materialize()), merged, "{moment}");
    };
    assert_stays("armed");
    let grads = grads_of(&model, 1);
    assert_stays("after backward");
    model = optim.step(LR, model, grads);
    for step in 2..4 {
        model = optim.arm(LR, model);
        assert_stays("armed again");
        model = finish(model, &mut optim, step);
        assert_stays("after a later step");
    }
    match panic_of(|| copy.clone().into_record()) {
        Ok(record) => assert_eq!(bits(&lora().load_record(record).materialize()), merged),
        Err(text) => assert!(text.starts_with("gradient release: "), "{text}"),
    }
    let (copy, error) = optim.try_arm(LR, copy).unwrap_err().into_parts();
    let what_to_do = "take copies of such a model after `step`";
    assert!(error.to_string().contains(what_to_do), "{error}");
    assert_error!(error, CopyWithAdapters);
    assert_eq!(copy.values(), start.0.values());
    assert_goes_on(model, &mut optim, train_plain(start, &[1, 2, 3]));
}

/// The armed model keeps its weights.
#[test]
fn a_step_that_ends_with_a_copy() {
    let (start, mut optim) = started();
    // Its slots are armed a second time.
    let model = release_step(start.0.clone(), &mut optim, |model| model.loss(1));
    let plain = train_plain(start, &[1]);
    let model = optim.arm(LR, model);
    let copy = model.clone().fork(&flex());
    let grads = grads_of(&copy, 2);
    let copy = optim.step(LR, copy, grads);
    assert_eq!(model.values(), plain.0.values());
    assert_eq!(all(&copy), all(&train_plain(plain.clone(), &[2]).0));
    let model = optim.arm(LR, model);
    assert_eq!(all(&optim.disarm(model)), all(&plain.0));
}

#[test]
fn records_of_factors() {
    let (start, mut optim) = started();
    let load = |record: ModuleRecord| all(&numbered_from(lora(), 900).load_record(record));
    let model = optim.arm(LR, start.0.clone());
    assert_eq!(load(model.clone().into_record()), all(&start.0));
    let grads = grads_of(&model, 1);
    let plain = train_plain(start, &[1]);
    assert_eq!(load(model.clone().into_record()), all(&plain.0));
    let model = optim.step(LR, model, grads);
    assert_eq!(load(model.clone().into_record()), all(&plain.0));
    assert_eq!(load(model.valid().into_record()), all(&plain.0));
    // Armed a second time, too.
    let model = optim.arm(LR, model);
    assert_eq!(load(model.clone().into_record()), all(&plain.0));
    let model = optim.disarm(model);
    // It is loaded into the model that had been armed, too.
    let model = release_step(model, &mut optim, |model| model.loss(2));
    let later = train_plain(plain.clone(), &[2]);
    let model = model.load_record(plain.0.clone().into_record());
    assert_goes_on(model, &mut optim, (plain.0, later.1));
}

/// Merged, the weights are trained on.
#[test]
fn merged_after_training() {
    let (start, mut optim) = started();
    let model = release_step(start.0.clone(), &mut optim, |model| model.loss(1));
    let (plain, plain_optim) = train_plain(start, &[1]);
    let merged = |model: &Small| bits(&model.valid().materialize());
    assert_eq!(merged(&model), merged(&plain));
    let (model, plain) = (model.materialize(), plain.materialize());
    assert_eq!(bits(&model), bits(&plain));
    assert!(model.first.weight.adapter().is_none());
    let (model, plain) = (model.unfreeze(), plain.unfreeze());
    assert_goes_on(model, &mut optim, (plain, plain_optim));
    assert_eq!(optim.last_step().unwrap().outcomes().count(), PARAMS);
}

#[test]
fn merged_while_armed() {
    let (start, mut optim) = started();
    let model = optim.arm(LR, start.0.clone()).materialize();
    assert_eq!(bits(&model), bits(&start.0.clone().materialize()));
    drop(optim.step(LR, model, GradientsParams::new()));
    assert_goes_on(start.0.clone(), &mut optim, start);
}

#[test]
fn lora_after_some_steps() {
    let start = plain(&[0]);
    let mut optim = start.1.clone().with_gradient_release();
    let model = release_step(start.0.clone(), &mut optim, |model| model.loss(1));
    let (plain, plain_optim) = train_plain(start, &[1]);
    assert_eq!(bits(&model), bits(&plain));
    // The factors get ids of their own in each call, so one call makes both.
    let plain = with_lora(plain);
    let record = plain.clone().into_record();
    let model = with_lora(model).load_record(record);
    assert_goes_on(model, &mut optim, (plain, plain_optim));
}

/// Some biases stay trainable beside the factors.
#[test]
fn factors_and_ordinary_parameters() {
    let group = ParamGroup::from_paths(vec!["first.bias", "tied"]);
    let start = train_plain((lora().unfreeze_group(group), adamw()), &[0]);
    assert!(start.0.tied.is_require_grad());
    let mut optim = start.1.clone().with_gradient_release();
    assert_goes_on(start.0.clone(), &mut optim, start);
    let report = optim.last_step().unwrap();
    // The base of `tied` has an adapter: Burn keeps one reparameterization a parameter.
    assert_eq!(report.count(Outcome::Ordinary), 1);
    assert_eq!(report.count(Outcome::Released), FACTORS + 1);
}

/// Mappers that a parameter is given between two steps.
#[test]
fn load_and_save_mappers_stay() {
    let bias = ParamGroup::from_path("first.bias");
    let given = |mut model: Small| {
        let bias = model.first.bias.take().unwrap();
        let bias = bias.load_mapper(|bias| bias.div_scalar(4.0));
        model.first.bias = Some(bias.save_mapper(|bias| bias.mul_scalar(4.0)));
        model
    };
    let saved = |model: &Small| {
        let record = model.clone().into_record();
        record.into_bytes().unwrap().to_vec()
    };
    let start = train_plain((lora().unfreeze_group(bias), adamw()), &[0]);
    let mut optim = start.1.clone().with_gradient_release();
    let model = release_step(start.0.clone(), &mut optim, |model| model.loss(1));
    let (plain, plain_optim) = train_plain(start, &[1]);
    let (mut model, mut plain) = (given(model), (given(plain), plain_optim));
    for step in 2..5 {
        model = optim.arm(LR, model);
        assert_eq!(saved(&model), saved(&plain.0), "armed in step {step}");
        model = finish(model, &mut optim, step);
        plain = train_plain(plain, &[step]);
        assert_eq!(saved(&model), saved(&plain.0), "after step {step}");
    }
    let record = plain.0.clone().into_record();
    assert_goes_on(model.load_record(record), &mut optim, plain);
}

/// Burn's traversal keeps the reparameterization that an armed parameter has: the model is frozen,
/// and no adapter is there. Whoever trains it is told at once.
#[test]
fn lora_applied_while_armed() {
    let start = plain(&[0]);
    let mut optim = start.1.clone().with_gradient_release();
    let model = optim.arm(LR, start.0.clone());
    let model = model.apply_lora(Lora::new(2, 4.0));
    assert_panics(|| grads_of(&model, 1), "requires a tracked");
    assert_eq!(model.values(), start.0.values());
    let model = optim.disarm(model);
    assert_eq!(bits(&model), bits(&start.0));
    assert!(panic_of(|| grads_of(&model, 1)).is_err());
    assert_goes_on(model.unfreeze(), &mut optim, start);
}

/// `base * scale`, and both are trained.
#[derive(Module, Debug)]
struct Scaled {
    scale: Param<Tensor<1>>,
}

impl Reparameterization for Scaled {
    const NAME: &'static str = "scaled";

    fn apply<const D: usize>(&self, base: Tensor<D>) -> Tensor<D> {
        base * self.scale.val().reshape(Shape::from(vec![1; D]))
    }
}

struct Scaling;

impl Reparameterizer for Scaling {
    type Reparam = Scaled;

    fn reparameterize<const D: usize>(
        &mut self,
        path: &str,
        param: Param<Tensor<D>>,
    ) -> (Param<Tensor<D>>, Option<Scaled>) {
        if path == "second.bias" || D != 2 {
            return (param, None);
        }
        let scale = Tensor::ones([1], &param.lazy_device()).mul_scalar(1.25);
        let scale = Param::from_tensor(scale);
        (param, Some(Scaled { scale }))
    }
}

#[test]
fn trainable_bases_with_trainable_scales() {
    let scaled = || small().apply_reparameterization(Scaling);
    let start = train_plain((scaled(), adamw()), &[0]);
    assert_eq!(bits(&start.0).len(), PARAMS + 3);
    let mut optim = start.1.clone().with_gradient_release();
    assert_goes_on(start.0.clone(), &mut optim, start.clone());
    let report = optim.last_step().unwrap();
    assert_eq!(report.count(Outcome::Ordinary), 3);
    assert_eq!(report.count(Outcome::Released), PARAMS);

    // Armed, disarmed, and a record of it while armed.
    let mut optim = start.1.clone().with_gradient_release();
    let model = optim.arm(LR, start.0.clone());
    let record = model.clone().into_record();
    let loaded = numbered_from(scaled(), 5).load_record(record);
    assert_eq!(all(&loaded), all(&start.0));
    assert_goes_on(optim.disarm(model), &mut optim, start);
}
