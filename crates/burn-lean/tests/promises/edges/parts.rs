//! Several models and optimizers under one loss.

use burn_lean::{clip_grad_norm, try_backward};

use super::refused::bits_of_grads;
use crate::harness::prelude::*;
use crate::small::kind;

const OTHER_LR: f64 = LR / 3.0;

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

/// One model is stepped in each step, one in each second, and one by nobody: its gradients, and the
/// input's, are in what `backward` returns.
#[test]
fn stepping_and_accumulating() {
    let (mut plain, mut plain_optims) = (three(), [adamw(), momentum()]);
    let mut sums = GradientsAccumulator::new();
    let [mut a, mut b, c] = plain.clone();
    let mut adam = adamw().with_gradient_release();
    let mut sgd = momentum().with_gradient_release();
    for step in 0..6 {
        let is_last = step % 2 == 1;
        let x = input(step);
        let mut grads = loss(plain.each_ref(), x.clone()).backward();
        let of_x = bits_of(x.grad(&grads).unwrap());
        let of_c = bits_of_grads(&plain[2], &of(&mut grads, &plain[2]));
        let [plain_a, plain_b, plain_c] = plain;
        sums.accumulate(&plain_b, of(&mut grads, &plain_b));
        let of_a = of(&mut grads, &plain_a);
        plain = [plain_optims[0].step(LR, plain_a, of_a), plain_b, plain_c];
        if is_last {
            let [plain_a, plain_b, plain_c] = plain;
            let plain_b = plain_optims[1].step(OTHER_LR, plain_b, sums.grads());
            plain = [plain_a, plain_b, plain_c];
        }

        let x = input(step);
        let value = loss([&a, &b, &c], x.clone());
        let stepping = adam.stepping(LR, a);
        let mut grads;
        if is_last {
            let parts = (stepping, sgd.stepping(OTHER_LR, b));
            ((a, b), grads) = burn_lean::backward(value, parts);
        } else {
            ((a, ()), grads) = burn_lean::backward(value, (stepping, sgd.accumulating(&b)));
        }
        assert_eq!(bits_of(x.grad(&grads).unwrap()), of_x, "step {step}");
        let of_both = of(&mut grads, &(a.clone(), b.clone()));
        assert!(of_both.is_empty(), "step {step}");
        assert_eq!(bits_of_grads(&c, &of(&mut grads, &c)), of_c, "step {step}");
        assert_eq!(bits(&a), bits(&plain[0]), "step {step}");
        assert_eq!(bits(&b), bits(&plain[1]), "step {step}");
    }
}

/// The second pass steps the one with the sum of both, and clips the other by its norm.
#[test]
fn measuring_beside_others() {
    let max_norm = 1e-3;
    let [plain_a, plain_b, _] = three();
    let [a, b, c] = [plain_a.clone(), plain_b.clone(), layer(30)];
    let mut grads = loss([&plain_a, &plain_b, &c], input(1)).backward();
    let mut sums = GradientsAccumulator::new();
    let of_a = of(&mut grads, &plain_a);
    let mut of_b = of(&mut grads, &plain_b);
    sums.accumulate(&plain_a, of_a);
    let mut grads = loss([&plain_a, &plain_b, &c], input(1)).backward();
    sums.accumulate(&plain_a, of(&mut grads, &plain_a));
    let plain_a = adamw().step(LR, plain_a, sums.grads());
    clip_grad_norm(&plain_b, &mut of_b, max_norm);
    let plain_b = momentum().step(LR, plain_b, of_b);

    let mut adam = adamw().with_gradient_release();
    let mut sgd = momentum().with_gradient_release();
    sgd = sgd.with_norm_clipping(NormClipping::GlobalNorm { max_norm });
    let first = loss([&a, &b, &c], input(1));
    let parts = (adam.accumulating(&a), sgd.measuring(&b));
    let (((), norm), _) = burn_lean::backward(first, parts);
    assert!(norm.is_finite());
    let second = loss([&a, &b, &c], input(1));
    let parts = (adam.stepping(LR, a), sgd.stepping(LR, b));
    let ((a, b), _) = burn_lean::backward(second, parts);
    assert!(sgd.last_step().unwrap().clip_coefficient().unwrap() < 1.0);
    assert_eq!(bits(&a), bits(&plain_a));
    assert_eq!(bits(&b), bits(&plain_b));
}

/// Before backward, or when it has begun: all models come back as they were, and both go on.
#[test]
fn a_part_that_is_refused() {
    for is_unrelated in [false, true] {
        let [a, b, c] = three();
        let mut adam = adamw().with_gradient_release();
        let mut sgd = momentum().with_gradient_release();
        let before = (bits(&a), bits(&b));
        let pending = loss([&a, &b, &c], input(7));
        let (other, rate) = match is_unrelated {
            true => (layer(90), LR),
            false => (b.clone(), f64::NAN),
        };
        let value = loss([&a, &b, &c], input(1));
        adam.accumulate(loss([&a, &b, &c], input(0)), &a);
        let parts = (adam.stepping(LR, a), sgd.stepping(rate, other));
        let refused = try_backward(value, parts).err().unwrap();
        let expected = if is_unrelated {
            "NotInGraph"
        } else {
            "OutOfRange"
        };
        assert_eq!(kind(refused.error()), expected);
        let ((a, _), value) = refused.into_given();
        assert_eq!(value.is_none(), is_unrelated);
        assert_eq!((bits(&a), bits(&b)), before);
        assert!(adam.last_step().is_none() && sgd.last_step().is_none());
        let parts = (adam.stepping(LR, a), sgd.stepping(LR, b));
        let ((a, b), _) = burn_lean::backward(pending, parts);

        let [mut plain_a, mut plain_b, _] = three();
        let mut sums = GradientsAccumulator::new();
        let mut grads = loss([&plain_a, &plain_b, &c], input(0)).backward();
        sums.accumulate(&plain_a, of(&mut grads, &plain_a));
        let mut grads = loss([&plain_a, &plain_b, &c], input(7)).backward();
        sums.accumulate(&plain_a, of(&mut grads, &plain_a));
        let of_b = of(&mut grads, &plain_b);
        plain_a = adamw().step(LR, plain_a, sums.grads());
        plain_b = momentum().step(LR, plain_b, of_b);
        assert_eq!((bits(&a), bits(&b)), (bits(&plain_a), bits(&plain_b)));
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
