//! LoRA and other reparameterizations: their factors are stepped inside backward, and the model
//! keeps them.

use burn::module::{Lora, Module, Param, Reparameterization, Reparameterizer};
use burn::optim::{GradientsParams, ModuleOptimizer};
use burn::store::ModuleRecord;
use burn::tensor::{Shape, Tensor};
use burn_lean::{Outcome, ReleaseError, ReleaseOptimizer, WithGradientRelease};

use crate::harness::{Bits, LR, adamw, bits, plain_step, release_step};
use crate::small::{PARAMS, Small, grads_of, numbered_from, panic_of, plain, plain_from, small};

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

fn release(optim: &ModuleOptimizer) -> ReleaseOptimizer {
    optim.clone().with_gradient_release()
}

/// Bases, factors and effective weights.
pub(crate) fn all(model: &Small) -> (Bits, Vec<Vec<u32>>) {
    // Without autodiff: what is computed on a tape keeps its operands for a while.
    (bits(model), model.valid().values())
}

/// Trains both ways for three steps.
fn assert_goes_on(
    mut model: Small,
    optim: &mut ReleaseOptimizer,
    mut plain: (Small, ModuleOptimizer),
) {
    assert_eq!(all(&model), all(&plain.0), "before going on");
    for step in 50..53 {
        model = release_step(model, optim, |model| model.loss(step));
        plain = plain_from(plain.0, plain.1, &[step]);
        assert_eq!(all(&model), all(&plain.0), "after step {step}");
    }
}

#[test]
fn lora_trains_as_in_plain_burn() {
    let (mut plain, mut plain_optim) = (lora(), adamw());
    let mut model = plain.clone();
    let mut optim = adamw().with_gradient_release();
    let frozen = model.first.weight.base();
    for step in 0..10 {
        plain = plain_step(plain, &mut plain_optim, |model| model.loss(step));
        model = optim.arm(LR, model);
        assert!(model.first.weight.adapter().is_some());
        let grads = grads_of(&model, step);
        model = optim.step(LR, model, grads);
        assert_eq!(all(&model), all(&plain), "after step {step}");
        let report = optim.last_step().unwrap();
        let released = if step == 0 {
            Outcome::ReleasedLate
        } else {
            Outcome::Released
        };
        assert_eq!(report.count(released), FACTORS);
        assert_eq!(report.in_place(), FACTORS, "in step {step}");
    }
    assert_eq!(
        crate::small::bits_of(model.first.weight.base()),
        crate::small::bits_of(frozen)
    );
}

#[test]
fn refusals_and_disarming() {
    let (model, plain_optim) = plain_from(lora(), adamw(), &[0]);
    let mut optim = release(&plain_optim);
    let model1 = optim.arm(LR, model.clone());
    let model1 = optim.disarm(model1);
    assert_eq!(all(&model1), all(&model));
    let armed = optim.arm(LR, model1);
    let armed = optim.arm(LR, armed);
    let grads = grads_of(&armed, 1);
    let copy = armed.clone();
    let refused = optim.try_step(LR, copy, grads).unwrap_err();
    assert!(
        matches!(refused.error(), ReleaseError::Copy { .. }),
        "{refused:?}"
    );
    let (_, grads) = refused.into_given();
    let model1 = optim.step(LR, armed, grads);
    assert_goes_on(model1, &mut optim, plain_from(model, plain_optim, &[1]));
}

/// Copies that are taken between steps, and used after the model has gone on.
#[test]
fn a_copy_between_steps() {
    let (plain, plain_optim) = plain_from(lora(), adamw(), &[0]);
    let mut optim = adamw().with_gradient_release();
    let model = release_step(lora_of(&plain), &mut optim, |model| model.loss(0));
    // Its own ids, so its own plain run.
    assert_eq!(all(&model).1, all(&plain).1);
    drop((plain, plain_optim));

    let (start, start_optim) = plain_from(lora(), adamw(), &[0]);
    let mut optim = release(&start_optim);
    let mut model = release_step(start.clone(), &mut optim, |model| model.loss(1));
    let plain = plain_from(start, start_optim, &[1]);
    let copy = model.clone();
    let valid = model.valid();
    let mut plain_later = plain.clone();
    for step in 2..5 {
        model = optim.arm(LR, model);
        assert_eq!(all(&copy), all(&plain.0), "armed in step {step}");
        let grads = grads_of(&model, step);
        assert_eq!(
            all(&copy),
            all(&plain.0),
            "after the backward of step {step}"
        );
        model = optim.step(LR, model, grads);
        plain_later = plain_from(plain_later.0, plain_later.1, &[step]);
        assert_eq!(all(&copy), all(&plain.0), "after step {step}");
        assert_eq!(valid.values(), plain.0.values(), "after step {step}");
        assert_eq!(all(&model), all(&plain_later.0), "after step {step}");
    }
    let merged = copy.clone().materialize();
    assert_eq!(bits(&merged), bits(&plain.0.clone().materialize()));
    // Plain Burn trains it on.
    let (copy, _) = plain_from(copy, plain.1.clone(), &[7, 8]);
    assert_eq!(all(&copy), all(&plain_from(plain.0, plain.1, &[7, 8]).0));
    assert_goes_on(model, &mut optim, plain_later);
}

fn lora_of(like: &Small) -> Small {
    let model = lora();
    assert_eq!(bits(&model).len(), bits(like).len());
    model
}

/// Two copies of one model, each with an optimizer.
fn side_by_side(at_once: bool) {
    let (start, start_optim) = plain_from(lora(), adamw(), &[0]);
    let mut optim = release(&start_optim);
    let mut model = release_step(start.clone(), &mut optim, |model| model.loss(1));
    let mut plain = plain_from(start, start_optim, &[1]);
    let mut copy = model.clone();
    let mut copy_plain = plain.clone();
    let mut copy_optim = release(&plain.1);
    for step in 2..5 {
        plain = plain_from(plain.0, plain.1, &[step]);
        copy_plain = plain_from(copy_plain.0, copy_plain.1, &[step + 10]);
        if at_once {
            model = optim.arm(LR, model);
            copy = copy_optim.arm(LR, copy);
            let grads = grads_of(&model, step);
            let copy_grads = grads_of(&copy, step + 10);
            model = optim.step(LR, model, grads);
            copy = copy_optim.step(LR, copy, copy_grads);
        } else {
            model = release_step(model, &mut optim, |model| model.loss(step));
            copy = release_step(copy, &mut copy_optim, |copy| copy.loss(step + 10));
        }
        assert_eq!(all(&model), all(&plain.0), "after step {step}");
        assert_eq!(
            all(&copy),
            all(&copy_plain.0),
            "after step {step} of the copy"
        );
        let report = copy_optim.last_step().unwrap();
        assert_eq!(
            report.count(Outcome::Ordinary),
            0,
            "step {step} of the copy"
        );
    }
}

#[test]
fn two_copies_trained_in_turns() {
    side_by_side(false);
}

#[test]
fn two_copies_trained_at_once() {
    side_by_side(true);
}

/// One optimizer goes back to an earlier copy.
#[test]
fn training_goes_back_to_a_copy() {
    for keeps_the_model in [false, true] {
        let (start, start_optim) = plain_from(lora(), adamw(), &[0]);
        let mut optim = release(&start_optim);
        let mut model = release_step(start.clone(), &mut optim, |model| model.loss(1));
        let plain = plain_from(start, start_optim, &[1]);
        let copy = model.clone();
        model = release_step(model, &mut optim, |model| model.loss(2));
        let later = plain_from(plain.0.clone(), plain.1, &[2]);
        let kept = keeps_the_model.then(|| model.clone());
        drop(model);
        assert_goes_on(copy, &mut optim, (plain.0, later.1));
        if let Some(kept) = kept {
            assert_eq!(all(&kept), all(&later.0));
        }
    }
}

#[test]
fn a_copy_of_the_armed_model_reads_and_is_refused() {
    let (start, start_optim) = plain_from(lora(), adamw(), &[0]);
    let mut optim = release(&start_optim);
    let model = optim.arm(LR, start.clone());
    let copy = model.clone();
    assert_eq!(copy.values(), start.values());
    let grads = grads_of(&model, 1);
    assert_eq!(copy.values(), start.values());
    let model = optim.step(LR, model, grads);
    assert_eq!(copy.values(), start.values());
    let merged = copy.clone().materialize();
    assert_eq!(bits(&merged), bits(&start.clone().materialize()));
    let (copy, error) = match optim.try_arm(LR, copy) {
        Ok(copy) => {
            assert_goes_on(copy, &mut optim, (start, start_optim));
            return;
        }
        Err(refused) => refused.into_parts(),
    };
    assert!(
        matches!(error, ReleaseError::CopyWithAdapters { .. }),
        "{error}"
    );
    assert!(
        error
            .to_string()
            .contains("take copies of such a model after `step`")
    );
    assert_eq!(copy.values(), start.values());
    assert_goes_on(model, &mut optim, plain_from(start, start_optim, &[1]));
}

/// The copy of an armed model, after the model was armed again.
#[test]
fn a_copy_of_the_armed_model_stays_over_later_steps() {
    let (start, start_optim) = plain_from(lora(), adamw(), &[0]);
    let mut optim = release(&start_optim);
    let mut model = optim.arm(LR, start.clone());
    let (copy, valid) = (model.clone(), model.valid());
    let grads = grads_of(&model, 1);
    model = optim.step(LR, model, grads);
    for step in 2..4 {
        model = optim.arm(LR, model);
        assert_eq!(copy.values(), start.values(), "armed in step {step}");
        let grads = grads_of(&model, step);
        assert_eq!(valid.values(), start.values(), "in step {step}");
        model = optim.step(LR, model, grads);
        assert_eq!(copy.values(), start.values(), "after step {step}");
        assert_eq!(valid.values(), start.values(), "after step {step}");
        assert_eq!(
            bits(&copy.clone().materialize()),
            bits(&start.clone().materialize())
        );
    }
    let expected = bits(&start.clone().materialize());
    match panic_of(|| copy.into_record()) {
        Ok(record) => assert_eq!(bits(&lora().load_record(record).materialize()), expected),
        Err(text) => assert!(text.starts_with("gradient release: "), "{text}"),
    }
    assert_goes_on(
        model,
        &mut optim,
        plain_from(start, start_optim, &[1, 2, 3]),
    );
}

#[test]
fn records_of_factors() {
    let (start, start_optim) = plain_from(lora(), adamw(), &[0]);
    let mut optim = release(&start_optim);
    let load = |record: ModuleRecord| all(&numbered_from(lora(), 900).load_record(record));
    let model = optim.arm(LR, start.clone());
    assert_eq!(load(model.clone().into_record()), all(&start));
    let grads = grads_of(&model, 1);
    let plain = plain_from(start, start_optim, &[1]);
    assert_eq!(load(model.clone().into_record()), all(&plain.0));
    let model = optim.step(LR, model, grads);
    assert_eq!(load(model.clone().into_record()), all(&plain.0));
    assert_eq!(load(model.valid().into_record()), all(&plain.0));
    // It is loaded into the model that had been armed, too.
    let model = release_step(model, &mut optim, |model| model.loss(2));
    let later = plain_from(plain.0.clone(), plain.1, &[2]);
    let model = model.load_record(plain.0.clone().into_record());
    assert_goes_on(model, &mut optim, (plain.0, later.1));
}

#[test]
fn merged_after_training() {
    let (mut plain, mut plain_optim) = plain_from(lora(), adamw(), &[0]);
    let mut optim = release(&plain_optim);
    let mut model = release_step(plain.clone(), &mut optim, |model| model.loss(1));
    (plain, plain_optim) = plain_from(plain, plain_optim, &[1]);
    assert_eq!(
        bits(&model.valid().materialize()),
        bits(&plain.valid().materialize())
    );
    model = model.materialize();
    plain = plain.materialize();
    assert_eq!(bits(&model), bits(&plain));
    assert!(model.first.weight.adapter().is_none());
    // The merged weights are trained on.
    (model, plain) = (model.unfreeze(), plain.unfreeze());
    assert_goes_on(model, &mut optim, (plain, plain_optim));
    assert_eq!(optim.last_step().unwrap().outcomes().count(), PARAMS);
}

#[test]
fn merged_while_armed() {
    let (plain, plain_optim) = plain_from(lora(), adamw(), &[0]);
    let mut optim = release(&plain_optim);
    let model = optim.arm(LR, plain.clone()).materialize();
    assert_eq!(bits(&model), bits(&plain.clone().materialize()));
    drop(optim.step(LR, model, GradientsParams::new()));
    assert_goes_on(plain.clone(), &mut optim, (plain, plain_optim));
}

#[test]
fn lora_after_some_steps() {
    let (start, start_optim) = plain(&[0]);
    let mut optim = release(&start_optim);
    let model = release_step(start.clone(), &mut optim, |model| model.loss(1));
    let (plain, plain_optim) = plain_from(start, start_optim, &[1]);
    assert_eq!(bits(&model), bits(&plain));
    // The factors get ids of their own in each call, so one call makes both.
    let plain_lora = with_lora(plain);
    let record = plain_lora.clone().into_record();
    let model = with_lora(model).load_record(record);
    assert_goes_on(model, &mut optim, (plain_lora, plain_optim));
}

/// Some biases stay trainable beside the factors.
#[test]
fn factors_and_ordinary_parameters() {
    let unfreeze = |model: Small| {
        model.unfreeze_group(burn::module::ParamGroup::from_paths(vec![
            "first.bias",
            "tied",
        ]))
    };
    let (plain, plain_optim) = plain_from(unfreeze(lora()), adamw(), &[0]);
    assert!(plain.tied.is_require_grad());
    let mut optim = release(&plain_optim);
    assert_goes_on(plain.clone(), &mut optim, (plain, plain_optim));
    let report = optim.last_step().unwrap();
    // The base of `tied` has an adapter: Burn keeps one reparameterization a parameter.
    assert_eq!(report.count(Outcome::Ordinary), 1);
    assert_eq!(report.count(Outcome::Released), FACTORS + 1);
}

/// Burn's traversal keeps the reparameterization that an armed parameter has: the model is frozen,
/// and no
/// adapter is there. Whoever trains it is told at once.
#[test]
fn lora_applied_while_armed() {
    let (plain, plain_optim) = plain(&[0]);
    let mut optim = release(&plain_optim);
    let model = optim.arm(LR, plain.clone()).apply_lora(Lora::new(2, 4.0));
    let outcome = panic_of(|| grads_of(&model, 1));
    match outcome {
        Ok(grads) => {
            assert!(model.first.weight.adapter().is_some());
            let model = optim.step(LR, model, grads);
            let is_number = |bits: &u32| f32::from_bits(*bits).is_finite();
            assert!(model.values().iter().flatten().all(is_number));
        }
        Err(text) => {
            assert!(text.contains("requires a tracked"), "another panic: {text}");
            assert_eq!(model.values(), plain.values());
            let model = optim.disarm(model);
            assert_eq!(bits(&model), bits(&plain));
            assert!(panic_of(|| grads_of(&model, 1)).is_err());
            assert_goes_on(model.unfreeze(), &mut optim, (plain, plain_optim));
        }
    }
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
    let (plain, plain_optim) = plain_from(small().apply_reparameterization(Scaling), adamw(), &[0]);
    assert_eq!(bits(&plain).len(), PARAMS + 3);
    let mut optim = release(&plain_optim);
    assert_goes_on(
        plain.clone(),
        &mut optim,
        (plain.clone(), plain_optim.clone()),
    );
    let report = optim.last_step().unwrap();
    assert_eq!(report.count(Outcome::Ordinary), 3);
    assert_eq!(report.count(Outcome::Released), PARAMS);

    // Armed, disarmed, and a record of it while armed.
    let mut optim = release(&plain_optim);
    let model = optim.arm(LR, plain.clone());
    let record = model.clone().into_record();
    let loaded = numbered_from(small().apply_reparameterization(Scaling), 5).load_record(record);
    assert_eq!(all(&loaded), all(&plain));
    let model = optim.disarm(model);
    assert_goes_on(model, &mut optim, (plain, plain_optim));
}
