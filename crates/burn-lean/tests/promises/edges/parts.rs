//! Several models and optimizers under one loss.

use burn_lean::{clip_grad_norm, try_backward};

use crate::accumulation::bits_of as grad_bits;
use crate::harness::prelude::*;
use crate::small::kind;

fn layer(from: usize) -> Linear {
    numbered_from(LinearConfig::new(4, 4).init(&flex()), from)
}

type Three = [Linear; 3];

fn three() -> Three {
    [10, 20, 30].map(layer)
}

fn loss([a, b, c]: [&Linear; 3], x: Tensor<2>) -> Tensor<1> {
    let x = b.forward(gelu(a.forward(x)));
    c.forward(gelu(x)).square().mean()
}

fn input(step: usize) -> Tensor<2> {
    numbers([3, 4], step, &flex()).require_grad()
}

fn of<M: Module>(grads: &mut burn::tensor::Gradients, model: &M) -> GradientsParams {
    GradientsParams::from_module(grads, model)
}

/// Plain Burn's models, of which two have an optimizer.
struct PlainParts {
    models: Three,
    optims: [ModuleOptimizer; 2],
    sums: [GradientsAccumulator<Linear>; 2],
}

impl PlainParts {
    fn new() -> Self {
        let sums = [GradientsAccumulator::new(), GradientsAccumulator::new()];
        let (models, optims) = (three(), [adamw(), momentum()]);
        Self {
            models,
            optims,
            sums,
        }
    }

    /// Adds to the sums of these. Returns the gradients of the input and of the third model.
    fn backward(&mut self, step: usize, adds: &[usize]) -> (Vec<u32>, Vec<Option<Vec<u32>>>) {
        let x = input(step);
        let mut grads = loss(self.models.each_ref(), x.clone()).backward();
        for at in adds {
            let model = &self.models[*at];
            self.sums[*at].accumulate(model, of(&mut grads, model));
        }
        let third = &self.models[2];
        let of_x = bits_of(x.grad(&grads).unwrap());
        (of_x, grad_bits(&of(&mut grads, third), third))
    }

    fn step(&mut self, at: usize, max_norm: f64) {
        let model = self.models[at].clone();
        let mut grads = self.sums[at].grads();
        clip_grad_norm(&model, &mut grads, max_norm);
        self.models[at] = self.optims[at].step(LR, model, grads);
    }

    fn assert_same(&self, a: &Linear, b: &Linear) {
        assert_eq!(bits(a), bits(&self.models[0]));
        assert_eq!(bits(b), bits(&self.models[1]));
    }
}

const NO_CLIP: f64 = 1e9;

fn optims() -> [ReleaseOptimizer; 2] {
    [adamw(), momentum()].map(WithGradientRelease::with_gradient_release)
}

/// One model is stepped in each step, one in each second, and one by nobody: its gradients, and the
/// input's, are in what `backward` returns.
#[test]
fn stepping_and_accumulating() {
    let mut plain = PlainParts::new();
    let ([mut a, mut b, c], [mut adam, mut sgd]) = (three(), optims());
    for step in 0..6 {
        let (of_x, of_c) = plain.backward(step, &[0, 1]);
        plain.step(0, NO_CLIP);
        let x = input(step);
        let value = loss([&a, &b, &c], x.clone());
        let stepping = adam.stepping(LR, a);
        let mut grads;
        if step % 2 == 1 {
            plain.step(1, NO_CLIP);
            ((a, b), grads) = burn_lean::backward(value, (stepping, sgd.stepping(LR, b)));
        } else {
            ((a, ()), grads) = burn_lean::backward(value, (stepping, sgd.accumulating(&b)));
        }
        assert_eq!(bits_of(x.grad(&grads).unwrap()), of_x, "step {step}");
        let of_both = of(&mut grads, &(a.clone(), b.clone()));
        assert!(of_both.is_empty(), "step {step}");
        assert_eq!(grad_bits(&of(&mut grads, &c), &c), of_c, "step {step}");
        plain.assert_same(&a, &b);
    }
}

/// The second pass steps one with the sum of both, and clips the other by its norm in the first.
#[test]
fn measuring_beside_others() {
    let max_norm = 1e-3;
    let mut plain = PlainParts::new();
    plain.backward(1, &[0, 1]);
    plain.backward(1, &[0]);
    plain.step(0, NO_CLIP);
    plain.step(1, max_norm);

    let ([a, b, c], [mut adam, sgd]) = (three(), optims());
    let mut sgd = sgd.with_norm_clipping(NormClipping::GlobalNorm { max_norm });
    let [first, second] = [(); 2].map(|()| loss([&a, &b, &c], input(1)));
    let (((), norm), _) = burn_lean::backward(first, (adam.accumulating(&a), sgd.measuring(&b)));
    assert!(norm.is_finite());
    let parts = (adam.stepping(LR, a), sgd.stepping(LR, b));
    let ((a, b), _) = burn_lean::backward(second, parts);
    assert!(sgd.last_step().unwrap().clip_coefficient().unwrap() < 1.0);
    plain.assert_same(&a, &b);
}

/// Before backward, or when it has begun: all models come back as they were, and both go on.
#[test]
fn a_part_that_is_refused() {
    type Other = fn(&Linear, &Linear) -> Linear;
    let table: [(&str, f64, Other); 3] = [
        ("OutOfRange", f64::NAN, |_, b| b.clone()),
        ("NotInGraph", LR, |_, _| layer(90)),
        ("DuplicateParam", LR, |a, _| a.clone()),
    ];
    for (expected, rate, other) in table {
        let mut plain = PlainParts::new();
        let ([a, b, c], [mut adam, mut sgd]) = (three(), optims());
        let pending = loss([&a, &b, &c], input(7));
        adam.accumulate(loss([&a, &b, &c], input(0)), &a);
        let other = other(&a, &b);
        let value = loss([&a, &b, &c], input(1));
        let parts = (adam.stepping(LR, a), sgd.stepping(rate, other));
        let refused = try_backward(value, parts).err().unwrap();
        assert_eq!(kind(refused.error()), expected);
        let ((a, _), value) = refused.into_given();
        assert_eq!(value.is_none(), expected == "NotInGraph");
        plain.assert_same(&a, &b);
        assert!(adam.last_step().is_none() && sgd.last_step().is_none());
        let parts = (adam.stepping(LR, a), sgd.stepping(LR, b));
        let ((a, b), _) = burn_lean::backward(pending, parts);
        plain.backward(0, &[0]);
        plain.backward(7, &[0, 1]);
        plain.step(0, NO_CLIP);
        plain.step(1, NO_CLIP);
        plain.assert_same(&a, &b);
    }
}

#[test]
fn a_part_that_is_dropped_does_nothing() {
    let (model, mut optim) = crate::small::started();
    drop(optim.stepping(LR, model.clone()));
    drop(optim.accumulating(&model));
    drop(optim.measuring(&model));
    assert!(!optim.has_sums() && optim.last_step().is_none());
    assert_goes_on(model, &mut optim, plain(&[0]));
}

/// A tuple of models, and an optimizer over a field of a model beside another over the others.
#[test]
fn several_models_of_one_optimizer() {
    type Rest = (Linear, Param<Tensor<2>>);
    let (mut plain, mut model) = (small(), small());
    let (mut plain_part, mut plain_rest) = (adamw(), momentum());
    let mut part = adamw().with_gradient_release();
    let mut rest = momentum().with_gradient_release();
    for step in 0..4 {
        let mut grads = plain.loss(step).backward();
        let of_rest: Rest = (plain.first, plain.tied);
        let grads_of_rest = of(&mut grads, &of_rest);
        (plain.first, plain.tied) = plain_rest.step(LR, of_rest, grads_of_rest);
        let of_part = of(&mut grads, &plain.second);
        plain.second = plain_part.step(LR, plain.second, of_part);

        let value = model.loss(step);
        let Small {
            first,
            second,
            tied,
        } = model;
        let parts = (part.stepping(LR, second), rest.stepping(LR, (first, tied)));
        let ((second, (first, tied)), _) = burn_lean::backward(value, parts);
        model = Small {
            first,
            second,
            tied,
        };
        assert_eq!(bits(&model), bits(&plain), "after step {step}");
        assert_eq!(rest.last_step().unwrap().count(Outcome::Released), 3);
    }
}

/// As with Burn's `GradientsParams`: the first one takes the gradient.
#[test]
fn a_parameter_in_two_models() {
    let shared = layer(1);
    let (a, b) = ((layer(2), shared.clone()), (layer(3), shared));
    let value = |a: &(Linear, Linear), b: &(Linear, Linear)| {
        let x = a.1.forward(a.0.forward(numbers::<2>([3, 4], 1, &flex())));
        b.1.forward(b.0.forward(x)).square().mean()
    };
    let mut grads = value(&a, &b).backward();
    let of_a = of(&mut grads, &a);
    let of_b = of(&mut grads, &b);
    let plain_a = adamw().step(LR, a.clone(), of_a);
    let plain_b = adamw().step(LR, b.clone(), of_b);
    let [mut one, mut two] = [adamw(), adamw()].map(WithGradientRelease::with_gradient_release);
    let given = value(&a, &b);
    let parts = (one.stepping(LR, a), two.stepping(LR, b));
    let ((a, b), _) = burn_lean::backward(given, parts);
    assert_eq!((bits(&a), bits(&b)), (bits(&plain_a), bits(&plain_b)));
    assert_eq!(two.last_step().unwrap().count(Outcome::Unused), 2);
}
