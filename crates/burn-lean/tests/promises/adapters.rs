//! LoRA and other reparameterizations: their factors are stepped inside backward, and the model
//! keeps them.

use burn::module::{Lora, Reparameterization, Reparameterizer};
use burn::tensor::Shape;

use crate::harness::prelude::*;

/// Each of its three weights has two factors, and the rest is frozen.
const FACTORS: usize = 6;

fn with_lora(model: Small) -> Small {
    let base = model.clone().into_record().allow_partial(true);
    // Burn draws the factors; the other weights come back from the record.
    numbered_from(model.apply_lora(Lora::new(2, 4.0)), 500).load_record(base)
}

fn lora() -> Small {
    with_lora(small())
}

fn loss_in_scope(model: &Small, step: usize) -> Tensor<1> {
    let x = numbers::<2>([3, 4], step, &flex());
    checkpoint(model, x, Small::forward).square().mean()
}

/// Plain Burn's model and optimizer after one step, and a release optimizer with these states.
fn started() -> (Plain, ReleaseOptimizer) {
    let start = train_plain((lora(), adamw()), &[0]);
    let optim = start.1.clone().with_gradient_release();
    (start, optim)
}

/// Bases, factors and effective weights.
fn all(model: &Small) -> (Bits, Vec<Vec<u32>>) {
    // Without autodiff: what is computed on a tape keeps its operands for a while.
    (bits(model), model.valid().values())
}

/// Trains on in whole steps and in windows, with scopes and without.
fn assert_goes_on(mut model: Small, optim: &mut ReleaseOptimizer, mut plain: Plain) {
    assert_eq!(all(&model), all(&plain.0), "before going on");
    for step in 50..54 {
        let loss = |model: &Small, step: usize| match step % 2 {
            0 => model.loss(step),
            _ => loss_in_scope(model, step),
        };
        let mut sums = GradientsAccumulator::new();
        if step > 51 {
            optim.accumulate(loss(&model, step + 10), &model);
            sums.accumulate(&plain.0, grads_of(&plain.0, step + 10));
        }
        model = release_step(model, optim, |model| loss(model, step));
        sums.accumulate(&plain.0, grads_of(&plain.0, step));
        plain.0 = plain.1.step(LR, plain.0, sums.grads());
        assert_eq!(all(&model), all(&plain.0), "after step {step}");
    }
}

#[test]
fn lora_trains_as_in_plain_burn() {
    let mut plain = (lora(), adamw());
    let mut model = plain.0.clone();
    let mut optim = adamw().with_gradient_release();
    let frozen = bits_of(model.first.weight.base());
    for step in 0..5 {
        plain = train_plain(plain, &[step]);
        model = release_step(model, &mut optim, |model| model.loss(step));
        assert_eq!(all(&model), all(&plain.0), "after step {step}");
        assert!(model.first.weight.adapter().is_some());
        let report = optim.last_step().unwrap();
        assert_eq!(report.count(Outcome::Released), FACTORS);
        assert_eq!(report.in_place(), FACTORS, "in step {step}");
    }
    assert_eq!(bits_of(model.first.weight.base()), frozen);
    assert_goes_on(model, &mut optim, plain);
}

/// What is done to both models between two steps.
#[test]
fn changed_between_steps() {
    let mapped = |mut model: Small| {
        let bias = model.first.bias.take().unwrap();
        let bias = bias.load_mapper(|bias| bias.div_scalar(4.0));
        model.first.bias = Some(bias.save_mapper(|bias| bias.mul_scalar(4.0)));
        model
    };
    let biases = ParamGroup::from_paths(vec!["first.bias", "second.bias"]);
    type Change<'a> = &'a dyn Fn(Small) -> Small;
    let table: [(&str, Change); 8] = [
        ("nothing", &|model| model),
        ("a clone", &|model| model.clone()),
        ("a fork", &|model| model.fork(&flex())),
        ("some biases are trained, too", &|model| {
            model.unfreeze_group(biases.clone())
        }),
        ("mappers are given", &mapped),
        ("saved and loaded", &|model| {
            let bytes = model.clone().into_record().into_bytes().unwrap();
            numbered_from(model, 900).load_record(ModuleRecord::from_bytes(bytes).unwrap())
        }),
        ("factors of one layer are frozen", &|model| {
            model.freeze_group(ParamGroup::from_predicate("first"))
        }),
        ("merged, and trained on as a whole", &|model| {
            let model = model.materialize();
            assert!(model.first.weight.adapter().is_none());
            model.unfreeze()
        }),
    ];
    for (name, change) in table {
        println!("{name}");
        let (start, mut optim) = started();
        let model = release_step(start.0.clone(), &mut optim, |model| model.loss(1));
        let plain = train_plain(start, &[1]);
        let copies = (model.clone(), model.valid());
        let merged = bits(&model.clone().materialize());
        assert_goes_on(
            change(model),
            &mut optim,
            (change(plain.0.clone()), plain.1),
        );
        // Copies keep the weights and the adapters that they were taken with.
        assert_eq!(all(&copies.0), all(&plain.0));
        assert_eq!(copies.1.values(), plain.0.values());
        assert_eq!(bits(&copies.0.materialize()), merged);
    }
}

#[test]
fn applied_between_steps() {
    let start = plain(&[0]);
    let mut optim = start.1.clone().with_gradient_release();
    let model = release_step(start.0.clone(), &mut optim, |model| model.loss(1));
    let (plain, plain_optim) = train_plain(start, &[1]);
    // The factors get ids of their own in each call, so one call makes both.
    let plain = with_lora(plain);
    let model = with_lora(model).load_record(plain.clone().into_record());
    assert_goes_on(model, &mut optim, (plain, plain_optim));
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
    let start = train_plain((small().apply_reparameterization(Scaling), adamw()), &[0]);
    let mut optim = start.1.clone().with_gradient_release();
    assert_goes_on(start.0.clone(), &mut optim, start);
    let report = optim.last_step().unwrap();
    assert_eq!(report.count(Outcome::Released), PARAMS + 3);
}
