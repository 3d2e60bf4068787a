//! Modules that have a parameter twice, or one that gets no gradient.

use super::*;
use crate::small::{plain_values, started};

/// The distance of a student from its teacher, which has the same ids.
fn distance(pair: &(Linear, Linear), is_student_first: bool, again: bool) -> Tensor<1> {
    let x = numbers::<2>([3, 6], 1, &flex());
    forward(pair, x, again, move |(one, other): &(Linear, Linear), x| {
        let (student, teacher) = match is_student_first {
            true => (one, other),
            false => (other, one),
        };
        let of_teacher = match teacher.weight.device().is_autodiff() {
            true => teacher.forward(x.clone()).detach(),
            false => Tensor::from_inner(teacher.forward(x.clone().inner())),
        };
        (student.forward(x) - of_teacher).square().mean()
    })
}

#[test]
fn a_teacher_with_the_ids_of_its_student() {
    let device = flex();
    let start: Linear = seeded(&device, |device| LinearConfig::new(6, 4).init(device));
    let changed = |module: Linear| numbered_from(module, 300);
    let sgd = || SgdConfig::new().init();
    for teacher in [
        changed(start.clone().no_grad()),
        changed(start.clone()).valid(),
    ] {
        for is_student_first in [true, false] {
            let loss = |student: &Linear, again| {
                let (student, teacher) = (student.clone(), teacher.clone());
                let pair = match is_student_first {
                    true => (student, teacher),
                    false => (teacher, student),
                };
                distance(&pair, is_student_first, again)
            };
            let expected = plain_step(start.clone(), &mut sgd(), |student| loss(student, false));
            assert_ne!(bits(&expected), bits(&start));
            let found = plain_step(start.clone(), &mut sgd(), |student| loss(student, true));
            assert_bits(&bits(&found), &bits(&expected), "not armed");
            let mut optim = sgd().with_gradient_release();
            let found = release_step(start.clone(), &mut optim, |student| loss(student, true));
            assert_bits(&bits(&found), &bits(&expected), "armed");
        }
    }
}

/// As a target network: a constant, also in a scope that has captured it, or has it in its module.
#[test]
fn a_frozen_copy_of_the_armed_model() {
    type Pair = (Small, Small);
    let x = || numbers::<2>([3, 4], 1, &flex());
    let difference = |model: &Small, target: &Small, x: Tensor<2>| {
        model.forward(x.clone()) - target.forward(x.mul_scalar(2.0))
    };
    let captured = move |model: &Small, target: Small| {
        checkpoint(model, x(), move |model, x| difference(model, &target, x))
    };
    let nested = move |model: &Small, target: Small| {
        checkpoint(model, x(), move |model, x| {
            let of_target = checkpoint(&target, x.clone().mul_scalar(2.0), Small::forward);
            model.forward(x) - of_target
        })
    };
    let first = move |model: &Small, target: Small| {
        let pair = (model.clone(), target);
        checkpoint(&pair, x(), move |(model, target): &Pair, x| {
            difference(model, target, x)
        })
    };
    let last = move |model: &Small, target: Small| {
        let pair = (target, model.clone());
        checkpoint(&pair, x(), move |(target, model): &Pair, x| {
            difference(model, target, x)
        })
    };
    let inner = move |model: &Small, target: Small| {
        let pair = (model.clone(), target);
        checkpoint(&pair, x(), move |pair: &Pair, x| {
            checkpoint(pair, x, move |(model, target): &Pair, x| {
                difference(model, target, x)
            })
        })
    };
    type Run<'a> = &'a dyn Fn(&Small, Small) -> Tensor<2>;
    let runs: [(&str, Run); 5] = [
        ("captured", &captured),
        ("in a scope in the scope", &nested),
        ("after it in the module", &first),
        ("before it in the module", &last),
        ("in the module of two scopes", &inner),
    ];
    let (mut plain, mut plain_optim) = plain(&[0]);
    let target = plain.clone().no_grad();
    plain = plain_step(plain, &mut plain_optim, |model| {
        difference(model, &target, x()).square().mean()
    });
    for (what, run) in runs {
        let (model, mut optim) = started();
        let model = optim.arm(LR, model);
        let target = model.clone().no_grad();
        let loss = run(&model, target.clone()).square().mean();
        let grads = GradientsParams::from_grads(loss.backward(), &model);
        let model = optim.step(LR, model, grads);
        assert_bits(&bits(&model), &bits(&plain), what);
        assert_eq!(target.values(), plain_values(&[0]), "{what}");
    }
}

/// Backward steps the model before it runs the scopes of the copy below it again.
#[test]
fn a_frozen_copy_below_the_armed_model() {
    let through = |target: &Small, again| {
        let x = numbers::<2>([3, 4], 1, &flex()).require_grad();
        match again {
            true => checkpoint(target, x, |target, x| {
                checkpoint(target, x, Small::forward).tanh()
            }),
            false => target.forward(x).tanh(),
        }
    };
    let (model, mut optim) = plain(&[0]);
    let target = model.clone().no_grad();
    let expected = plain_step(model, &mut optim, |model| {
        model.forward(through(&target, false)).square().mean()
    });
    let (model, mut optim) = started();
    let model = optim.arm(LR, model);
    let hidden = through(&model.clone().no_grad(), true);
    let loss = model.forward(hidden).square().mean();
    let grads = GradientsParams::from_grads(loss.backward(), &model);
    let model = optim.step(LR, model, grads);
    assert_bits(&bits(&model), &bits(&expected), "below");
}

#[test]
fn a_parameter_that_got_another_leaf_while_armed() {
    let (model, mut optim) = started();
    let model = optim.arm(LR, model).no_grad().set_require_grad(true);
    let x = numbers([3, 4], 1, &flex());
    let inner = |model: &Small, x| checkpoint(model, x, Small::forward);
    let loss = checkpoint(&model, x, inner).square().mean();
    let grads = GradientsParams::from_grads(loss.backward(), &model);
    let model = optim.step(LR, model, grads);
    let expected: Plain = train_plain(plain(&[0]), &[1]);
    assert_bits(&bits(&model), &bits(&expected.0), "two scopes");
}

/// A gradient of zeros would let an optimizer decay it.
#[test]
fn a_parameter_of_one_element_that_gets_no_gradient() {
    devices().into_iter().for_each(of_one_element);
}

fn of_one_element(device: Device) {
    let heads: (Linear, Linear) = seeded(&device, |device| {
        (
            LinearConfig::new(6, 6).init(device),
            LinearConfig::new(6, 1).init(device),
        )
    });
    let bias = |head: &Linear| head.bias.clone().unwrap();
    let x = || numbers::<2>([3, 6], 1, &device);
    let body = |(body, _): &(Linear, Linear), x| body.forward(x);
    let grads = checkpoint(&heads, x(), body).sum().backward();
    assert!(heads.0.weight.grad(&grads).is_some());
    assert!(bias(&heads.1).grad(&grads).is_none());

    // Used and leading to no loss; and used again later, whose gradient comes first.
    let both =
        |(body, head): &(Linear, Linear), x: Tensor<2>| (body.forward(x.clone()), head.forward(x));
    let (hidden, _) = checkpoint(&heads, x(), both);
    assert!(bias(&heads.1).grad(&hidden.sum().backward()).is_none());
    let of_bias = |again| {
        let (hidden, scores) = forward(&heads, x(), again, both);
        let scores = scores.sin() + heads.1.forward(hidden).cos();
        let grad = bias(&heads.1).grad(&(scores * 0.3).sum().backward());
        bits_of(grad.unwrap())
    };
    assert_eq!(of_bias(true), of_bias(false));
}

/// AdamW would decay it.
#[test]
fn an_armed_parameter_of_one_element_that_gets_no_gradient() {
    let device = flex();
    let start: (Linear, Linear) = seeded(&device, |device| {
        (
            LinearConfig::new(6, 6).init(device),
            LinearConfig::new(6, 1).init(device),
        )
    });
    let loss = |heads: &(Linear, Linear), again| {
        let both = |(body, head): &(Linear, Linear), x: Tensor<2>| {
            (body.forward(x.clone()), head.forward(x))
        };
        let x = numbers::<2>([3, 6], 1, &heads.0.weight.device());
        forward(heads, x, again, both).0.square().mean()
    };
    let expected = plain_step(start.clone(), &mut adamw(), |heads| loss(heads, false));
    let mut optim = adamw().with_gradient_release();
    let found = release_step(start, &mut optim, |heads| loss(heads, true));
    assert_bits(&bits(&found), &bits(&expected), "a head without a loss");
}
